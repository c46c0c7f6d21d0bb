"""`eagle3lab inspect`: what is on disk, who wrote it, and whether it looks trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3lab.cli.output import Format, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from eagle3lab.checkpoint.report import Inspection
    from eagle3lab.checkpoint.statistics import Progress

# Wide enough for a table in a pipe or a file, where there is no terminal to ask.
_WIDTH_WITHOUT_TERMINAL = 200
_COLOURS = {
    "trained": "green",
    "untouched": "yellow",
    "constant": "yellow",
    "broken": "red",
    "undecided": "dim",
    "not-weights": "dim",
}


def inspect(
    path: Annotated[str, typer.Argument(help="The folder of a drafter (or a target).", show_default=False)],
    format_: Annotated[Format, typer.Option("--format", help="A table for people, or JSON.")] = Format.text,
    statistics: Annotated[
        bool, typer.Option("--statistics/--no-statistics", help="Read the values, not only the headers.")
    ] = True,
    effective_rank: Annotated[
        bool, typer.Option("--effective-rank", help="Add each matrix's effective rank (on a bounded sample).")
    ] = False,
) -> None:
    """Show a checkpoint: files, configuration, tensors, statistics, what looks trained, who wrote it."""
    from eagle3lab.checkpoint.report import inspect_checkpoint

    with _progress(statistics) as progress:
        inspection = inspect_checkpoint(
            path, statistics=statistics, effective_rank=effective_rank, progress=progress
        )
    if format_ is Format.json:
        print_json(inspection.to_json())
    else:
        _print(inspection)


@contextmanager
def _progress(wanted: bool) -> Iterator[Progress | None]:
    """A bar on stderr while values are read, if stderr is a terminal."""
    import sys

    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from eagle3lab.text import printable

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading")

        def update(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=printable(name, 48))

        yield update


def _print(inspection: Inspection) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=False, width=_WIDTH_WITHOUT_TERMINAL)
    _print_files(console, inspection)
    if inspection.checkpoint.tensors:
        _print_provenance(console, inspection)
    if inspection.config is not None:
        _print_config(console, inspection)
    if inspection.checkpoint.tensors:
        _print_tensors(console, inspection)


def _print_files(console: Console, inspection: Inspection) -> None:
    from rich.text import Text

    from eagle3lab.checkpoint.store import repeated
    from eagle3lab.text import printable

    checkpoint = inspection.checkpoint
    tensors = checkpoint.tensors.values()
    console.print(Text(printable(str(checkpoint.path)), style="bold"))
    size = sum(tensor.nbytes for tensor in tensors)
    names = ", ".join(checkpoint.files.read)
    summary = f"{len(tensors)} tensors, {size:,} bytes, in {printable(names)}" if names else "no weights here"
    console.print(Text(summary))
    for file in checkpoint.files.ignored:
        console.print(Text(f"not read: {printable(file.name)} ({printable(file.reason)})", style="yellow"))
    for old in repeated(checkpoint.contents.offered):
        text = f"stands twice: {printable(old.name)}; a later file replaces the one in {printable(old.file)}"
        console.print(Text(text, style="yellow"))
    for entry in checkpoint.contents.not_tensors:
        console.print(Text(f"not a tensor: {printable(entry)}", style="yellow"))


def _print_provenance(console: Console, inspection: Inspection) -> None:
    from rich.text import Text

    from eagle3lab.text import printable

    found = inspection.provenance
    version = f" {printable(found.version)}" if found.version else ""
    console.print(Text(f"\nWritten by: {found.title}{version} ({found.confidence:.0%})", style="bold"))
    for text in found.evidence:
        console.print(Text(f"  · {printable(text)}"))


def _print_config(console: Console, inspection: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from eagle3lab.checkpoint.report import config_fields
    from eagle3lab.text import printable

    assert inspection.config is not None
    table = Table(title="config.json", title_justify="left")
    for heading in ("field", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, entry in config_fields(inspection.config).items():
        style = "dim" if entry["source"] == "default" else ""
        table.add_row(
            name, Text(printable(str(entry["value"]))), Text(printable(entry["source"])), style=style
        )
    console.print()
    console.print(table)


def _print_tensors(console: Console, inspection: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from eagle3lab.text import printable

    table = Table(title="tensors", title_justify="left")
    table.add_column("name", overflow="fold", min_width=36)
    for heading in ("dtype", "shape"):
        table.add_column(heading, no_wrap=True)
    with_ranks = any(stats.effective_rank is not None for stats in inspection.statistics.values())
    numbers = ["mean", "std", "abs mean", "min", "max", "zeros", *(["rank"] if with_ranks else [])]
    if inspection.statistics:
        for heading in numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("looks", no_wrap=True)
        table.add_column("because", overflow="fold", min_width=24)
    for name, tensor in inspection.checkpoint.tensors.items():
        row: list[Any] = [Text(printable(name)), tensor.dtype, "×".join(map(str, tensor.shape)) or "scalar"]
        if inspection.statistics:
            row += _numbers(inspection, name, with_ranks)
            judged = inspection.judgements[name]
            sure = f" {judged.confidence:.0%}" if judged.confidence else ""
            row += [Text(judged.state + sure, style=_COLOURS[judged.state]), Text(printable(judged.reason))]
        table.add_row(*row)
    console.print()
    console.print(table)


def _numbers(inspection: Inspection, name: str, with_ranks: bool) -> list[str]:
    stats = inspection.statistics.get(name)
    if stats is None:
        return [""] * (7 if with_ranks else 6)
    values = [f"{value:.3g}" for value in (stats.mean, stats.std, stats.abs_mean, stats.min, stats.max)]
    values.append(str(stats.zeros))
    if with_ranks:
        rank = stats.effective_rank
        values.append("" if rank is None else f"{rank:.0f}/{stats.rank_limit}")
    return values
