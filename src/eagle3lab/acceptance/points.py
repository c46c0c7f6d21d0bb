"""The numbers behind the plots of a report: over time, by request, by draft position."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from eagle3lab.acceptance.statistics import estimate

if TYPE_CHECKING:
    from eagle3lab.acceptance.report import ServerReport

POINTS = 60
"""Points of a curve over time: neighbouring rows are joined into so many groups, each with its interval."""

BINS = 24
"""Bars of a distribution at the most."""


@dataclass(frozen=True, slots=True)
class Point:
    """A group of neighbouring rows: when, and the accept length with its 95 % interval (no width for one row)."""

    time: datetime | int
    lines: int
    accept_length: float
    low: float
    high: float


def has_times(server: ServerReport) -> bool:
    """Whether every row carries a time."""
    import numpy as np

    return bool(len(server.table["time"])) and bool(np.isfinite(server.table["time"]).all())


def points_over_time(server: ServerReport, most: int = POINTS, *, timed: bool = True) -> tuple[Point, ...]:
    """At most `most` groups of a server's rows, in order.

    With `timed` false, or where a row carries no time, `Point.time` is the number of the group's first row.
    """
    import numpy as np

    table = server.table
    rows = len(table["lines"])
    timed = timed and has_times(server)
    points = []
    for group in np.array_split(np.arange(rows), min(most, rows)) if rows else ():
        steps = table["steps"][group]
        found = estimate(table["tokens"][group] / steps, steps, floor=1.0)
        low, high = (found.low, found.high) if found.known else (found.mean, found.mean)
        first = int(group[0])
        when = (
            datetime.fromtimestamp(float(table["time"][first]), tz=UTC).replace(tzinfo=None)
            if timed
            else first
        )
        points.append(Point(when, int(table["lines"][group].sum()), found.mean, low, high))
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows (requests, or intervals of a log) whose accept length lies in [low, high): how many, and their share."""

    low: float
    high: float
    rows: int
    share: float


def distribution(server: ServerReport, most: int = BINS) -> tuple[Bin, ...]:
    """How the accept length is spread over the rows, in bins of equal width from 1 to the longest; empty without rows.

    The width is a tenth, or as many tenths as keep the bins at most `most`.
    """
    import numpy as np

    table = server.table
    if not len(table["lines"]):
        return ()
    values = table["tokens"] / table["steps"]
    width = 0.1 * max(1, int(np.ceil((float(values.max()) - 1) / 0.1 / most)))
    place = np.maximum(((values - 1) / width + 1e-9).astype(int), 0)
    counts = np.bincount(place)
    total = int(counts.sum())
    return tuple(
        Bin(1 + i * width, 1 + (i + 1) * width, int(count), int(count) / total)
        for i, count in enumerate(counts)
    )


@dataclass(frozen=True, slots=True)
class PositionRow:
    """A draft position: shares of the verify steps, measured and promised by training; None where not known.

    conditional: share among the steps that accepted every position before.
    """

    position: int
    measured: float | None
    conditional: float | None
    promised: float | None


def by_position(server: ServerReport) -> tuple[PositionRow, ...]:
    """The draft positions that are measured or promised."""
    measured = server.per_position.unconditional if server.per_position else ()
    conditional = server.per_position.conditional if server.per_position else ()
    promised = server.expected.per_position if server.expected else ()
    return tuple(
        PositionRow(
            i + 1,
            measured[i] if i < len(measured) else None,
            conditional[i] if i < len(conditional) else None,
            promised[i] if i < len(promised) else None,
        )
        for i in range(max(len(measured), len(promised)))
    )
