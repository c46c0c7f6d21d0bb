"""`eagle3lab repair`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from eagle3lab.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from eagle3lab.repair.model import RepairPlan

_WIDTH_WITHOUT_TERMINAL = 180
SCHEMA_VERSION = 1


def repair(
    drafter: Annotated[
        Optional[Path],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(help="Folder of the drafter's checkpoint; it is only read.", show_default=False),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--for", help="Who is to load the copy: sglang==X.Y.Z, installed, vllm or speculators."),
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
    from eagle3lab.repair import plan_repair, repair_engine, write_repair
    from eagle3lab.repair.folder import check_out

    facts = repair_engine(engine)
    checkpoint = open_checkpoint(drafter)
    if out is not None:
        check_out(out, drafter)
    plan = plan_repair(checkpoint, facts, None if target is None else open_checkpoint(target))
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
    from eagle3lab.repair.journal import change_to_dict, refusal_to_dict
    from eagle3lab.repair.model import load_summary

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
    from eagle3lab.repair.tables import plan_tables
    from eagle3lab.text import printable

    # Where there is no terminal to ask, wide enough that little is folded.
    to = console(_WIDTH_WITHOUT_TERMINAL, markup=False)
    for drawn in plan_tables(plan):
        to.print(drawn)
    for line in _conclusion(plan, out, verify):
        to.print(printable(line, 1000))


def _conclusion(plan: RepairPlan, out: Path | None, verify: bool) -> list[str]:
    if plan.refusals:
        return ["Refused: nothing was written."]
    after = plan.after
    assert after is not None
    filled = len(after.parameters_with("loaded"))
    lines = [f"Simulated, {plan.engine} loads {filled} of {len(after.parameters)} parameters from the copy"]
    others = [p for p in after.parameters if p.status != "loaded"]
    lines[0] += f"; {', '.join(p.name for p in others)}: {others[0].reason}." if others else "."
    if not plan.changes:
        lines.insert(0, f"Nothing to repair for {plan.engine}.")
        lines.append(
            "If it is not accepted all the same, the reason is not in these files: see eagle3lab diagnose."
        )
    if out is None:
        return [*lines, "Nothing was written."]
    if verify:
        lines.append(f"{plan.engine}'s own loader did the same.")
    kind = "the repaired copy" if plan.changes else "an unchanged copy"
    return [*lines, f"{out}: {kind}, with repair-journal.json."]
