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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.float64]

CAPACITY = 16_384
"""Rows a series keeps before neighbours are merged: far more than a plot or a bootstrap needs."""

CLOSED = 2_048
"""Rows a series keeps once its server has ended; also what statistics work on."""

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
"""Columns of a series, all float64, one row each:

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
    _waiting: list[tuple[float, float, float, float, float, float]] = field(default_factory=list)
    _chunks: list[dict[str, Any]] = field(default_factory=list)
    _rows: int = 0
    _last_time: float = float("-inf")

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
        nan = float("nan")
        self.exact_steps |= steps is not None
        weight = steps if steps is not None else nan if running is None else max(running, 1.0)
        row = (time, length, rate, weight, running, context)
        self._waiting.append(tuple(nan if value is None else float(value) for value in row))  # type: ignore[arg-type]
        if len(self._waiting) >= CAPACITY:
            self._flush()

    def _flush(self) -> None:
        import numpy as np

        if self._waiting:
            columns = np.array(self._waiting).T.copy()
            self._waiting = []
            self._extend(*columns)

    def extend(
        self, *, time: Column, length: Column, rate: Column, steps: Column, running: Column, context: Column
    ) -> None:
        """Add lines as columns of equal length; NaN stands for "not printed"."""
        self._flush()
        if len(length):
            self._extend(time, length, rate, steps, running, context)

    def _extend(
        self, time: Column, length: Column, rate: Column, steps: Column, running: Column, context: Column
    ) -> None:
        import numpy as np

        known = np.isfinite(steps)
        self.weightless += int(len(steps) - known.sum())
        steps = np.where(known, steps, 1.0)
        printed = np.isfinite(rate)
        self._note_order(time)
        self._keys.append(
            np.rint(length[printed] * 100).astype(np.int64) * 101
            + np.rint(rate[printed] * 100).astype(np.int64)
        )
        self._chunks.append(
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
        self._rows += len(length)
        if self._rows > 2 * CAPACITY:
            self._coarsen()

    def _note_order(self, time: Column) -> None:
        import numpy as np

        seen = time[np.isfinite(time)]
        if len(seen):
            self.backwards += int((np.diff(seen) < 0).sum()) + int(seen[0] < self._last_time)
            self._last_time = float(seen[-1])

    def _count_pairs(self) -> None:
        """Count distinct printed pairs: what decides the formula when the release is unknown."""
        import numpy as np

        if not self._keys:
            return
        values, counts = np.unique(np.concatenate(self._keys), return_counts=True)
        self._keys = []
        for key, count in zip(values.tolist(), counts.tolist(), strict=True):
            pair = (key // 101 / 100, key % 101 / 100)
            if pair in self._pairs or len(self._pairs) < CAPACITY:
                self._pairs[pair] = self._pairs.get(pair, 0) + count

    def close(self) -> None:
        """Shrink for good: nothing more will be added, and the series is one of many."""
        self._flush()
        self._coarsen(CLOSED)

    def _coarsen(self, capacity: int = CAPACITY) -> None:
        self._count_pairs()
        table = self.table()
        while len(table["lines"]) > capacity:
            table = merge_pairs(table)
        self._chunks, self._rows = [table], len(table["lines"])

    def table(self) -> dict[str, Column]:
        """The rows as columns (see `COLUMNS`); row i is earlier in the file than row i + 1."""
        import numpy as np

        self._flush()
        if len(self._chunks) != 1:
            empty = np.zeros(0)
            merged = {
                name: np.concatenate([chunk[name] for chunk in self._chunks]) if self._chunks else empty
                for name in COLUMNS
            }
            self._chunks = [merged]
        return self._chunks[0]

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
        return len(self._waiting) + int(sum(chunk["lines"].sum() for chunk in self._chunks))

    @property
    def pairs(self) -> dict[tuple[float, float], int]:
        """Printed (accept length, accept rate) to the number of lines that print them, to two decimals."""
        self._flush()
        self._count_pairs()
        return self._pairs

    @property
    def drafts_per_step(self) -> int | None:
        """Drafts proposed in every verify step, where the counts say so exactly."""
        steps = float(self.table()["steps"].sum())
        if not self.exact_steps or self.weightless or not steps or not self.proposed:
            return None
        drafts = self.proposed / steps
        return round(drafts) if abs(drafts - round(drafts)) < 1e-6 else None

    @property
    def weight(self) -> Weight:
        """What the rows' `steps` are."""
        self._flush()
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


def pooled(series: list[Series]) -> dict[str, Column]:
    """The rows of several series in the order of time where all have one, else one series after the other."""
    import numpy as np

    tables = [s.table() for s in series if s.lines]
    if len(tables) == 1:
        return tables[0]
    joined = {name: np.concatenate([t[name] for t in tables]) if tables else np.zeros(0) for name in COLUMNS}
    if len(tables) > 1 and np.isfinite(joined["time"]).all():
        order = np.argsort(joined["time"], kind="stable")
        return {name: column[order] for name, column in joined.items()}
    return joined
