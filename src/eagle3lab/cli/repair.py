"""`eagle3lab repair`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from eagle3lab.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from eagle3lab.repair import Change, Refusal, RepairPlan
    from eagle3lab.repair.model import Edit

_WIDTH_WITHOUT_TERMINAL = 180
_SHOWN = 3  # edits of a change
SCHEMA_VERSION = 1


def repair(
    drafter: Annotated[
        Optional[Path],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(help="Folder of the drafter's checkpoint; it is only read.", show_default=False),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--for", help="Who is to load the copy: sglang==X.Y.Z, vllm==X.Y.Z, installed, or speculators."
        ),
    ] = "installed",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder to make for the copy; it must not exist.", show_default=False),
    ] = None,
    target: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the target: settles layer ids, proves a token map, gives a head."),
    ] = None,
    undo: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A repaired folder whose original is to be written to --out.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, write nothing.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also run the release's own loader on the copy (takes seconds).")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Force the copy to the disk: a power failure cannot undo it.")
    ] = False,
    format: Annotated[Format, typer.Option(help="A table for people, or JSON.")] = Format.text,
) -> None:
    """A corrected copy of a drafter that an engine release loads completely, or the reason why there is none.

    Exit status: 0 done, 1 refused and nothing written, 2 an input cannot be read or the copy not be written.
    """
    if undo is not None:
        if drafter is not None or out is None:
            raise typer.BadParameter("--undo takes a repaired folder and --out, and no drafter")
        _undo(undo, out, sync, format)
        return
    if drafter is None or (out is None and not dry_run):
        raise typer.BadParameter("give a drafter, and either --out or --dry-run")
    from eagle3lab.checkpoint import open_checkpoint
    from eagle3lab.repair import plan_repair, write_repair
    from eagle3lab.repair.folder import check_out

    checkpoint = open_checkpoint(drafter)
    if out is not None:
        check_out(out, drafter)
    plan = plan_repair(checkpoint, engine, None if target is None else open_checkpoint(target))
    written = None
    if not plan.refusals and not dry_run:
        assert out is not None
        written = write_repair(plan, out, verify=verify, sync=sync)
    if format is Format.json:
        print_json(_report(plan, None if written is None else written.path, verify and written is not None))
    else:
        _print_text(plan, None if written is None else written.path, verify)
    if plan.refusals:
        raise typer.Exit(1)


def _undo(undo: Path, out: Path, sync: bool, format: Format) -> None:
    from eagle3lab.repair import undo_repair
    from eagle3lab.text import printable

    restored = undo_repair(undo, out, sync=sync)
    if format is Format.json:
        print_json(
            {"schema_version": SCHEMA_VERSION, "restored": str(restored.path), "files": list(restored.files)}
        )
    else:
        typer.echo(f"{printable(str(out))}: the original, {len(restored.files)} files, each byte as it was.")


def _report(plan: RepairPlan, out: Path | None, verified: bool) -> dict[str, Any]:
    from eagle3lab.repair.model import change_to_dict, load_summary, refusal_to_dict

    return {
        "schema_version": SCHEMA_VERSION,
        "engine": plan.engine,
        "source": str(plan.path),
        "status": plan.status,
        "out": None if out is None else str(out),
        "changes": [change_to_dict(change) for change in plan.changes],
        "refusals": [refusal_to_dict(refusal) for refusal in plan.refusals],
        "notes": list(plan.notes),
        "load": {"before": load_summary(plan.before), "after": load_summary(plan.after)},
        "verified_by_own_loader": verified,
    }


def _print_text(plan: RepairPlan, out: Path | None, verify: bool) -> None:
    from rich.text import Text

    from eagle3lab.text import printable

    # Where there is no terminal to ask, wide enough that little is folded.
    to = console(_WIDTH_WITHOUT_TERMINAL, markup=False)
    if plan.changes:
        headings = ("fault", "change", "seen", "proof", "before → after")
        to.print(_table(f"Changes for {plan.engine}", headings, map(_change_row, plan.changes)))
    if plan.refusals:
        to.print(
            _table("Not repaired", ("fault", "reason", "seen", "instead"), map(_refusal_row, plan.refusals))
        )
    for note in plan.notes:
        to.print(Text(f"Note: {printable(note, 600)}"))
    for line in _conclusion(plan, out, verify):
        to.print(printable(line, 1000))


def _table(title: str, headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(title=escape(title), title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _change_row(change: Change) -> tuple[str, ...]:
    shown = [_edit(edit) for edit in change.edits[:_SHOWN]]
    if len(change.edits) > _SHOWN:
        shown.append(f"… and {len(change.edits) - _SHOWN} more")
    seen = _lines(change.evidence)
    return (change.fault, _lines((change.title,)), seen, _lines((change.proof,)), "\n".join(shown))


def _refusal_row(refusal: Refusal) -> tuple[str, ...]:
    reason = _lines((refusal.reason,))
    return refusal.fault or "–", reason, _lines(refusal.evidence), _lines(refusal.alternatives)


def _lines(sentences: tuple[str, ...]) -> str:
    from eagle3lab.text import printable

    return "\n".join(printable(line, 600) for sentence in sentences for line in sentence.split("\n"))


def _edit(edit: Edit) -> str:
    from eagle3lab.repair.model import ConfigEdit, IndexEdit, RenameEdit
    from eagle3lab.text import printable

    if isinstance(edit, ConfigEdit):
        if not edit.path:
            return "config.json, the whole file"
        return f"{edit.path}: {_json(edit.before)} → {_json(edit.after)}"
    if isinstance(edit, RenameEdit):
        return f"{printable(edit.before, 120)} → {printable(edit.after, 120)}"
    if isinstance(edit, IndexEdit):
        return f"index: {printable(edit.tensor, 120)} → {printable(edit.file, 120)}"
    before = "absent" if edit.before is None else f"{edit.before.dtype} {list(edit.before.shape)}"
    return f"{printable(edit.tensor, 120)}: {before} → {edit.after.dtype} {list(edit.after.shape)}"


def _json(value: Any) -> str:
    import json

    from eagle3lab.checkpoint.config import ABSENT
    from eagle3lab.text import printable

    return "absent" if value is ABSENT else printable(json.dumps(value), 120)


def _conclusion(plan: RepairPlan, out: Path | None, verify: bool) -> list[str]:
    if plan.refusals:
        return ["Refused: nothing was written."]
    lines = []
    if not plan.changes:
        lines.append(
            f"Nothing to repair for {plan.engine}: its diagnosis has no fault that other files would mend."
        )
    if plan.after is not None:
        filled, of = len(plan.after.parameters_with("loaded")), len(plan.after.parameters)
        others = [p for p in plan.after.parameters if p.status != "loaded"]
        left = f"; {', '.join(p.name for p in others)}: {others[0].reason}." if others else "."
        lines.append(f"Simulated, {plan.engine} loads {filled} of {of} parameters from the copy{left}")
    if out is None:
        return [*lines, "Nothing was written."]
    if verify:
        lines.append(f"{plan.engine}'s own loader did the same.")
    kind = "the repaired copy" if plan.changes else "an unchanged copy"
    return [*lines, f"{out}: {kind}, with repair-journal.json."]
