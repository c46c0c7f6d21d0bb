"""A run as seen on a terminal or in a CI log: progress while it goes, every failure in full at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.syntax import Syntax
from rich.text import Text

from eagle3lab.book.chapters import ChapterRun, Failure


class ConsoleObserver:
    """A bar per chapter that runs, on a terminal; a line per chapter that ended, everywhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> ConsoleObserver:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, chapter: str, cells: int) -> None:
        """Show a bar, or a line where there is no terminal."""
        if self._console.is_terminal:
            self._tasks[chapter] = self._progress.add_task(chapter, total=cells)
        else:
            self._console.print(f"  runs    {chapter} ({cells} cells)", highlight=False)

    def cell(self, chapter: str, number: int) -> None:
        """Move the bar: every cell before `number` is done."""
        if chapter in self._tasks:
            self._progress.update(self._tasks[chapter], completed=number - 1)

    def finished(self, run: ChapterRun) -> None:
        """Replace the bar by the outcome."""
        if run.chapter in self._tasks:
            self._progress.remove_task(self._tasks.pop(run.chapter))
        if run.failure is not None:
            line = Text.assemble(
                ("  failed  ", "bold red"), run.chapter, f"  {run.failure.message.splitlines()[0]}"
            )
        else:
            state = ("  cached  ", "cyan") if run.cached else ("  passed  ", "green")
            line = Text.assemble(
                state, run.chapter, f"  {run.seconds:.1f} s, {_count(len(run.claims), 'claim')}"
            )
        self._console.print(line, overflow="ellipsis", no_wrap=True)


def report(console: Console, runs: Sequence[ChapterRun], claims: Path, failed: Path) -> None:
    """Print every failure with chapter, cell, source and traceback, then one line of totals."""
    broken = [(run, run.failure) for run in runs if run.failure is not None]
    for run, failure in broken:
        console.print(_details(run, failure, failed))
    made = sum(len(run.claims) for run in runs)
    reused = sum(run.cached for run in runs)
    total = f"{_count(len(runs), 'chapter')}, {reused} unchanged, {_count(made, 'claim')} in {claims}"
    if broken:
        console.print(Text(f"{len(broken)} failed of {total}", "bold red"), soft_wrap=True)
    else:
        console.print(Text(total), soft_wrap=True)


def _details(run: ChapterRun, failure: Failure, failed: Path) -> Panel:
    place = run.chapter + (f", cell In [{failure.cell}]" if failure.cell else "")
    parts: list[Text | Syntax] = [Text(failure.message, "bold")]
    if failure.source:
        parts += [Text(), Syntax(failure.source, "python", background_color="default", word_wrap=True)]
    if failure.traceback:
        parts += [Text(), Text(failure.traceback)]
    notebook = failed / f"{run.chapter}.ipynb"
    if notebook.is_file():
        parts += [Text(), Text(f"As far as it came: {notebook}", "dim")]
    return Panel(Group(*parts), title=Text(place, "bold red"), title_align="left", border_style="red")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
