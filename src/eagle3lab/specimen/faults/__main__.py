"""`python -m eagle3lab.specimen.faults [NAME …]`: train the heads that training faults are injected with."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eagle3lab.specimen.faults.train import TRAININGS, train
from eagle3lab.specimen.quiet import quiet


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 2 when speculators is missing."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.specimen.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TRAININGS)}; all by default")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(TRAININGS):
        parser.error(f"there is no training called {min(unknown)}")
    console = Console(stderr=True)
    quiet()
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int, note: str) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total, note=note)
            progress.update(tasks[what], completed=done, total=total, note=note)

        try:
            for name in chosen.names or TRAININGS:
                train(name, report)
        except ImportError as error:
            console.print(
                f"{error}: training needs pip install 'eagle3lab[train]'", style="red", markup=False
            )
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
