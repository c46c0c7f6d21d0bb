"""One model for everything that counts acceptance: intervals of a log, requests, probe events.

A row is what one line (or one request) says about a stretch of verify steps:

- `steps`, the verify steps behind it: exact where the engine prints enough to know (vLLM, per-request JSON),
  proportional where only the running requests are printed (SGLang: every running request verifies once a forward,
  and a line is printed every `decode_log_interval` forwards), and 1 where neither is known;
- `length`, the accept length (tokens per verify step, bonus included, at least 1);
- the accept rate as printed, and per position where known.

Every field of a row is a sum, so rows merge by addition. A series keeps at most `CAPACITY` rows: beyond that,
neighbours are merged pairwise, which keeps the order in time and the mean exact and the memory bounded whatever the
size of the log.

Lines that are read one by one are kept as tuples until there are many of them, and columns that come by the million
as arrays: a log of a few hundred lines is read and judged without numpy, whose import takes longer than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

CAPACITY = 16_384
"""Rows a series keeps before neighbours are merged: far more than a plot or an interval needs."""

CLOSED = 2_048
"""Rows a series keeps once its server has ended; also what statistics work on."""

FEW = 256
"""Rows that a series may keep as tuples once its server has ended: arrays take a fifth of their memory."""

LARGEST = 1e15
"""Largest figure that is believed, and read: the powers of greater ones leave the range of floats."""

MAX_POSITIONS = 64
"""Draft positions kept; longer per-position lists are not speculation of any known release."""


class Weight(Enum):
    """What a mean over rows is weighted by."""

    STEPS = "verify steps"
    RUNNING = "running requests (each verifies once a forward)"
    LINES = "lines (the verify steps are not known)"


COLUMNS = (
    "time",
    "lines",
    "steps",
    "tokens",
    "length_sum",
    "rate_tokens",
    "rate_steps",
    "running",
    "context",
)
"""Columns of a series, one value a row each (float64 where they are arrays):

time: seconds since the epoch of the row's first line (NaN when the line has no time).
lines: lines merged into the row.
steps: weight: verify steps, or a number proportional to them.
tokens: sum of length x steps.
length_sum: sum of length over lines (for means by line).
rate_tokens, rate_steps: sum of printed rate x steps, and of the steps of the lines that print one.
running: sum of running requests over lines (NaN when not printed).
context: sum of tokens in the cache per running request over lines (NaN when not printed).
"""


@dataclass(frozen=True, slots=True)
class PerPosition:
    """Acceptance by draft position, 1-based: element j of each tuple is position j + 1.

    unconditional: share of verify steps in which this position was accepted.
    conditional: share among the steps in which all earlier positions were accepted (None where none were).
    steps: verify steps behind the shares, 0.0 when the source prints shares without counts.
    """

    unconditional: tuple[float, ...]
    conditional: tuple[float | None, ...]
    steps: float

    @classmethod
    def from_unconditional(cls, shares: tuple[float, ...], steps: float = 0.0) -> PerPosition:
        """From the share of verify steps that accepted each position (vLLM's per-position acceptance rate)."""
        before = (1.0, *shares[:-1])
        conditional = tuple(s / b if b > 0 else None for s, b in zip(shares, before, strict=True))
        return cls(shares, conditional, steps)

    @property
    def accept_length(self) -> float:
        """1 + the sum of the unconditional shares."""
        return 1 + sum(self.unconditional)


@dataclass(slots=True)
class Series:
    """The rows of one source (one rank of one server), in the order of the file.

    label: rank label such as "DP0 TP0", empty when the lines carry none.
    chunks: rows as columns (see `COLUMNS`); waiting: rows after them that are no columns yet, fields in that order.
    """

    label: str = ""
    idle: int = 0
    backwards: int = 0
    weightless: int = 0
    exact_steps: bool = False
    positions: list[float] = field(default_factory=list)
    position_steps: float = 0.0
    accepted: float = 0.0
    proposed: float = 0.0
    _keys: list[Any] = field(default_factory=list)
    _pairs: dict[tuple[float, float], int] = field(default_factory=dict)
    waiting: list[tuple[float, ...]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    _rows: int = 0
    _last_time: float = -math.inf

    def append(
        self,
        *,
        time: float,
        length: float,
        rate: float | None = None,
        steps: float | None = None,
        running: float | None = None,
        context: float | None = None,
    ) -> None:
        """Add one line; `steps` exact when known, otherwise `running` stands in for it."""
        self.exact_steps |= steps is not None
        weight = steps if steps is not None else None if running is None else max(running, 1.0)
        if weight is None or not math.isfinite(weight):
            self.weightless += 1
            weight = 1.0
        if math.isfinite(time):
            self.backwards += time < self._last_time
            self._last_time = time
        rated = (0.0, 0.0)
        if rate is not None and math.isfinite(rate):
            self._add_pair(round(length, 2), round(rate, 2), 1)
            rated = (rate * weight, weight)
        others = (math.nan if value is None else value for value in (running, context))
        self.waiting.append(tuple(map(float, (time, 1, weight, length * weight, length, *rated, *others))))
        if len(self.waiting) >= CAPACITY:
            self._flush()

    def _flush(self) -> None:
        """Turn the lines that wait into columns."""
        import numpy as np

        if self.waiting:
            columns = np.array(self.waiting).T.copy()
            self.waiting = []
            self._add_chunk(dict(zip(COLUMNS, columns, strict=True)))

    def extend(
        self, *, time: Column, length: Column, rate: Column, steps: Column, running: Column, context: Column
    ) -> None:
        """Add lines as columns of equal length; `steps` is known, and NaN stands for "not printed" elsewhere."""
        import numpy as np

        self._flush()
        if not len(length):
            return
        printed = np.isfinite(rate)
        self._note_order(time)
        self._keys.append(
            np.rint(length[printed] * 100).astype(np.int64) * 101
            + np.rint(rate[printed] * 100).astype(np.int64)
        )
        self._add_chunk(
            {
                "time": time,
                "lines": np.ones(len(length)),
                "steps": steps,
                "tokens": length * steps,
                "length_sum": length,
                "rate_tokens": np.where(printed, np.nan_to_num(rate) * steps, 0.0),
                "rate_steps": np.where(printed, steps, 0.0),
                "running": running,
                "context": context,
            }
        )

    def _add_chunk(self, chunk: dict[str, Column]) -> None:
        self.chunks.append(chunk)
        self._rows += len(chunk["lines"])
        if self._rows > 2 * CAPACITY:
            self._coarsen()

    def _note_order(self, time: Column) -> None:
        import numpy as np

        seen = time[np.isfinite(time)]
        if len(seen):
            self.backwards += int((np.diff(seen) < 0).sum()) + int(seen[0] < self._last_time)
            self._last_time = float(seen[-1])

    def _count_pairs(self) -> None:
        """Count the distinct pairs among the columns."""
        if not self._keys:
            return
        import numpy as np

        values, counts = np.unique(np.concatenate(self._keys), return_counts=True)
        self._keys = []
        for key, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._add_pair(key // 101 / 100, key % 101 / 100, count)

    def _add_pair(self, length: float, rate: float, count: int) -> None:
        """Count a printed pair: what decides the formula when the release is unknown."""
        pair = (length, rate)
        if pair in self._pairs or len(self._pairs) < CAPACITY:
            self._pairs[pair] = self._pairs.get(pair, 0) + count

    def close(self) -> None:
        """Shrink for good: nothing more will be added, and the series is one of many."""
        if self.chunks or len(self.waiting) > FEW:
            self._flush()
            self._coarsen(CLOSED)

    def _coarsen(self, capacity: int = CAPACITY) -> None:
        self._count_pairs()
        table = self.table()
        while len(table["lines"]) > capacity:
            table = merge_pairs(table)
        self.chunks, self._rows = [table], len(table["lines"])

    def table(self) -> dict[str, Column]:
        """The rows as columns (see `COLUMNS`); row i is earlier in the file than row i + 1."""
        import numpy as np

        self._flush()
        if len(self.chunks) != 1:
            empty = np.zeros(0)
            merged = {
                name: np.concatenate([chunk[name] for chunk in self.chunks]) if self.chunks else empty
                for name in COLUMNS
            }
            self.chunks = [merged]
        return self.chunks[0]

    def total(self, name: str) -> float:
        """The sum of a column."""
        column = COLUMNS.index(name)
        return math.fsum(row[column] for row in self.waiting) + float(
            sum(chunk[name].sum() for chunk in self.chunks)
        )

    def add_positions(self, counts: list[float], steps: float) -> None:
        """Add accepted counts per position over `steps` verify steps."""
        counts = counts[:MAX_POSITIONS]
        self.positions += [0.0] * (len(counts) - len(self.positions))
        for index, count in enumerate(counts):
            self.positions[index] += count
        self.position_steps += steps

    @property
    def lines(self) -> int:
        """Lines that carried a measurement."""
        return len(self.waiting) + int(sum(chunk["lines"].sum() for chunk in self.chunks))

    @property
    def pairs(self) -> dict[tuple[float, float], int]:
        """Printed (accept length, accept rate) to the number of lines that print them, to two decimals."""
        self._count_pairs()
        return self._pairs

    @property
    def drafts_per_step(self) -> int | None:
        """Drafts proposed in every verify step, where the counts say so exactly."""
        steps = self.total("steps")
        if not self.exact_steps or self.weightless or not steps or not self.proposed:
            return None
        drafts = self.proposed / steps
        return round(drafts) if abs(drafts - round(drafts)) < 1e-6 else None

    @property
    def weight(self) -> Weight:
        """What the rows' `steps` are."""
        if self.weightless:
            return Weight.LINES
        return Weight.STEPS if self.exact_steps else Weight.RUNNING

    def per_position(self) -> PerPosition | None:
        """Acceptance by position, or None where the source prints none."""
        if not self.positions or self.position_steps <= 0:
            return None
        shares = tuple(count / self.position_steps for count in self.positions)
        return PerPosition.from_unconditional(shares, self.position_steps)


def merge_pairs(table: dict[str, Column]) -> dict[str, Column]:
    """Neighbouring rows merged two and two; the time is that of the earlier one."""
    import numpy as np

    rows = len(table["lines"])
    even = rows // 2 * 2
    return {
        name: np.concatenate(
            [column[:even:2] if name == "time" else column[:even:2] + column[1:even:2], column[even:]]
        )
        for name, column in table.items()
    }


def pooled(series: list[Series]) -> dict[str, list[float]]:
    """At most `CLOSED` rows of several series: in the order of time where all have one, else series after series."""
    series = [s for s in series if s.lines]
    if any(s.chunks for s in series) or sum(s.lines for s in series) > CLOSED:
        table = _joined([s.table() for s in series])
        while len(table["lines"]) > CLOSED:
            table = merge_pairs(table)
        return {name: column.tolist() for name, column in table.items()}
    rows = [row for s in series for row in s.waiting]
    if len(series) > 1 and all(math.isfinite(row[0]) for row in rows):
        rows.sort(key=itemgetter(0))
    columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in COLUMNS)
    return dict(zip(COLUMNS, columns, strict=True))


def _joined(tables: list[dict[str, Column]]) -> dict[str, Column]:
    import numpy as np

    if len(tables) == 1:
        return tables[0]
    joined = {name: np.concatenate([t[name] for t in tables]) for name in COLUMNS}
    if np.isfinite(joined["time"]).all():
        order = np.argsort(joined["time"], kind="stable")
        return {name: column[order] for name, column in joined.items()}
    return joined
