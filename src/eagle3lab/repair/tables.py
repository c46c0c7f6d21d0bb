"""A repair plan drawn for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from eagle3lab.repair.model import ABSENT, ConfigEdit, Edit, IndexEdit, RenameEdit, ValuesEdit
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.repair.model import Change, Refusal, RepairPlan

_SHOWN = 3


def plan_tables(plan: RepairPlan) -> list[Table | Text]:
    """What to print for a plan: its changes, its refusals, its notes."""
    drawn: list[Table | Text] = []
    if plan.changes:
        table = Table(title=f"Changes for {escape(plan.engine)}", title_justify="left")
        for heading in ("fault", "change", "seen", "proof", "before → after"):
            table.add_column(heading, overflow="fold")
        for change in plan.changes:
            table.add_row(*map(Text, _change_row(change)))
        drawn.append(table)
    if plan.refusals:
        table = Table(title="Not repaired", title_justify="left")
        for heading in ("fault", "reason", "seen", "instead"):
            table.add_column(heading, overflow="fold")
        for refusal in plan.refusals:
            table.add_row(*map(Text, _refusal_row(refusal)))
        drawn.append(table)
    return [*drawn, *(Text(f"Note: {printable(note, 600)}") for note in plan.notes)]


def _change_row(change: Change) -> tuple[str, ...]:
    shown = [_edit(edit) for edit in change.edits[:_SHOWN]]
    if len(change.edits) > _SHOWN:
        shown.append(f"… and {len(change.edits) - _SHOWN} more")
    return (
        change.fault,
        _clean(change.title),
        _lines(change.evidence),
        _clean(change.proof),
        "\n".join(shown),
    )


def _refusal_row(refusal: Refusal) -> tuple[str, ...]:
    return (
        refusal.fault or "–",
        _clean(refusal.reason),
        _lines(refusal.evidence),
        _lines(refusal.alternatives),
    )


def _lines(sentences: tuple[str, ...]) -> str:
    return "\n".join(_clean(sentence) for sentence in sentences)


def _clean(text: str) -> str:
    return "\n".join(printable(line, 600) for line in text.split("\n"))


def _edit(edit: Edit) -> str:
    if isinstance(edit, ConfigEdit):
        if not edit.path:
            return "config.json, the whole file"
        return f"{edit.path}: {_json(edit.before)} → {_json(edit.after)}"
    if isinstance(edit, RenameEdit):
        return f"{printable(edit.before, 120)} → {printable(edit.after, 120)}"
    if isinstance(edit, IndexEdit):
        return f"index: {printable(edit.tensor, 120)} → {printable(edit.file, 120)}"
    assert isinstance(edit, ValuesEdit)
    before = "absent" if edit.before is None else f"{edit.before.dtype} {list(edit.before.shape)}"
    return f"{printable(edit.tensor, 120)}: {before} → {edit.after.dtype} {list(edit.after.shape)}"


def _json(value: Any) -> str:
    import json

    return "absent" if value is ABSENT else printable(json.dumps(value), 120)
