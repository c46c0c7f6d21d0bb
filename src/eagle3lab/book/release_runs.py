"""Runs of releases that are alike, for tables that show each run once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def runs_of(releases: Iterable[str], cells: Callable[[str], list[str]]) -> list[tuple[list[str], list[str]]]:
    """Neighbouring releases that agree in all `cells`, in the order given, each run with its cells."""
    runs: list[tuple[list[str], list[str]]] = []
    for release in releases:
        shown = cells(release)
        if runs and runs[-1][1] == shown:
            runs[-1][0].append(release)
        else:
            runs.append(([release], shown))
    return runs


def span_of(run: Sequence[str]) -> str:
    """A run's name: `0.5.9`, or `0.5.9 to 0.5.12`."""
    return run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"
