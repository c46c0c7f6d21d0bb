"""`python -m eagle3lab.book`: run the chapters, show how it goes, report every failure, collect the claims."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

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

from eagle3lab.book import parameters
from eagle3lab.book.chapters import ChapterRun, Failure, Layout, find_chapters
from eagle3lab.book.runner import Observer, run
from eagle3lab.errors import InputError


class ConsoleObserver(Observer):
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
    broken = [(one, one.failure) for one in runs if one.failure is not None]
    for one, failure in broken:
        console.print(_details(one, failure, failed))
    made = sum(len(one.claims) for one in runs)
    reused = sum(one.cached for one in runs)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chapters named in `arguments` (all by default).

    Returns:
        0 when every chapter passed, 1 when one failed, 2 when the arguments do not fit, 130 when interrupted.
    """
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # a cancelled CI job must stop its kernels as Ctrl-C does
    try:
        return _run(options)
    except InputError as error:
        print(f"eagle3lab.book: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: every kernel was stopped", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    layout = Layout.of(options.root, options.out)
    notebooks = find_chapters(layout, options.chapters)
    given = {}
    if options.parameter or options.parameters:
        given = parameters.fit(options.parameter, options.parameters, parameters.declared(notebooks))
    console = Console()
    with ConsoleObserver(console) as observer:
        runs = run(
            layout,
            notebooks,
            given,
            jobs=options.jobs,
            force=options.force,
            cell_timeout=options.cell_timeout,
            observer=observer,
        )
    report(console, runs, layout.claims, layout.failed)
    return 1 if any(one.failure for one in runs) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m eagle3lab.book",
        description="Run the chapters in notebooks/ in parallel by papermill; skip those that are unchanged.",
    )
    parser.add_argument("chapters", nargs="*", help="names or their beginnings, such as 04 (default: all)")
    parser.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="set a parameter in every chapter that declares it",
    )  # fmt: skip
    parser.add_argument(
        "--parameters", type=Path, metavar="FILE",
        help="a JSON object of parameters; a chapter's name may hold an object of its own",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=_positive, help=f"chapters at once (default: {os.cpu_count()}, the CPUs)"
    )
    parser.add_argument(
        "--cell-timeout", type=_positive, default=600, metavar="SECONDS", help="for one cell (600)"
    )
    parser.add_argument("--force", action="store_true", help="run even what is unchanged")
    parser.add_argument("--root", type=Path, default=Path(), help="the project (default: here)")
    parser.add_argument("--out", type=Path, help="where everything goes (default: ROOT/_build)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
