"""What takes minutes: a bar for each stage, and other libraries' bars and notes kept out of our output."""

from __future__ import annotations

import warnings
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bars:
    """A progress bar for each stage, shown as long as the context lasts."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def update(self, stage: str, done: int, total: int, note: str) -> None:
        """Move the bar of `stage`."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, note=note)
        self._progress.update(self._tasks[stage], completed=done, total=total, note=note)


def quiet() -> None:
    """Silence the progress bars of transformers, and the warning that tqdm gives in a notebook without widgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import tqdm.auto  # noqa: F401  (warns once, on its first import)
        from transformers.utils import logging

    logging.disable_progress_bar()
