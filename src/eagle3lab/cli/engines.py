"""`eagle3lab engines`: what SGLang releases do with a drafter, and what changed from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from eagle3lab.cli.output import Format, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eagle3lab.engines.atlas.changes import Change
    from eagle3lab.engines.extract import ReleaseFacts

_WIDTH_WITHOUT_TERMINAL = 160
# Changes of these topics say what a release does with a drafter; the table of all releases shows no others.
_IN_THE_TABLE = (
    "tensor names",
    "parameters",
    "drafter classes",
    "targets",
    "layer ids",
    "algorithms",
    "accept rate",
    "vocabulary padding",
    "short tensors",
    "taken from the target",
)


def engines(
    a: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(
            help="sglang==X.Y.Z, installed, or the path of a source tree or wheel.", show_default=False
        ),
    ] = None,
    b: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="Another one: shows what it does otherwise than the first.", show_default=False),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="A table for people, or JSON.")] = Format.text,
) -> None:
    """Show every release in the atlas; with A what that release does; with A and B what is different in B."""
    from eagle3lab.engines.atlas.resolve import resolve_release

    if a is None:
        _all_releases(format_)
        return
    first = resolve_release(a)
    if b is None:
        _one(first.label, first.facts, first.notes, format_)
        return
    second = resolve_release(b)
    _two(first.label, second.label, first.facts, second.facts, (*first.notes, *second.notes), format_)


def _all_releases(format_: Format) -> None:
    from eagle3lab.engines.atlas.changes import changes_by_release
    from eagle3lab.engines.atlas.data import entries

    changed = changes_by_release()
    if format_ is Format.json:
        print_json(
            [
                {
                    "release": entry.release,
                    "wheel": entry.wheel,
                    "sha256": entry.sha256,
                    "changes": [_as_json(change) for change in changed[entry.release]],
                }
                for entry in entries()
            ],
            ascii=False,
        )
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title="SGLang releases: what changed at each for a drafter", title_justify="left")
    table.add_column("release", no_wrap=True)
    table.add_column("changes", overflow="fold")
    for entry in entries():
        lines = _by_topic(change for change in changed[entry.release] if change.topic in _IN_THE_TABLE)
        table.add_row(
            entry.release, Text("\n".join(f"{topic}: {'; '.join(c)}" for topic, c in lines.items()))
        )
    _print([table])


def _one(label: str, facts: ReleaseFacts, notes: tuple[str, ...], format_: Format) -> None:
    if format_ is Format.json:
        from eagle3lab.engines.atlas.codec import as_json

        print_json({"engine": label, "notes": notes, "facts": as_json(facts)}, ascii=False)
        return
    from rich.table import Table
    from rich.text import Text

    from eagle3lab.engines.atlas.changes import describe
    from eagle3lab.text import printable

    table = Table(title=printable(label), title_justify="left")
    for heading in ("topic", "item", "what it does"):
        table.add_column(heading, overflow="fold")
    for topic, items in describe(facts).items():
        for number, (item, text) in enumerate(items.items()):
            table.add_row("" if number else topic, Text(printable(item)), Text(printable(text)))
    _print([table, *(Text(f"note: {note}") for note in notes)])


def _two(
    first: str,
    second: str,
    before: ReleaseFacts,
    after: ReleaseFacts,
    notes: tuple[str, ...],
    format_: Format,
) -> None:
    from eagle3lab.engines.atlas.changes import differences

    found = differences(before, after)
    if format_ is Format.json:
        print_json(
            {"from": first, "to": second, "notes": notes, "changes": [_as_json(change) for change in found]},
            ascii=False,
        )
        return
    from rich.table import Table
    from rich.text import Text

    from eagle3lab.text import printable

    table = Table(title=printable(f"{first} → {second}"), title_justify="left")
    for heading in ("topic", "item", "before", "after"):
        table.add_column(heading, overflow="fold")
    topic = None
    for change in found:
        cells = (change.item, _shown(change.before), _shown(change.after))
        table.add_row(
            "" if change.topic == topic else change.topic, *(Text(printable(cell)) for cell in cells)
        )
        topic = change.topic
    drawn: list[RenderableType] = (
        [table] if found else [Text(printable(f"{first} and {second} do the same."))]
    )
    _print([*drawn, *(Text(f"note: {note}") for note in notes)])


def _shown(text: str | None) -> str:
    """An item without a value is shown by a tick, one that is not there by a dash."""
    return "-" if text is None else text or "✓"


def _by_topic(changes: Iterable[Change]) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for change in changes:
        lines.setdefault(change.topic, []).append(str(change))
    return lines


def _as_json(change: Change) -> dict[str, Any]:
    return {"topic": change.topic, "item": change.item, "before": change.before, "after": change.after}


def _print(drawn: Iterable[RenderableType]) -> None:
    import sys

    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False)
    for part in drawn:
        console.print(part)
