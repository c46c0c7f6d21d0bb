"""`python -m eagle3lab.book`: run the chapters, report every failure, collect the claims."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from eagle3lab.errors import InputError


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
    from rich.console import Console

    from eagle3lab.book import parameters
    from eagle3lab.book.chapters import Layout, find_chapters
    from eagle3lab.book.console import ConsoleObserver, report
    from eagle3lab.book.runner import run

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
