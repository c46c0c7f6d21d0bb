"""Means, intervals, comparisons and changes over time of accept length, from rows of a series.

Neighbouring intervals of a log share requests, so they are not independent: every error bar here comes from blocks
of neighbours. Weights are verify steps (see `counts`), because an interval with forty requests says more than one
with a single request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3lab.acceptance.formulas import HALF_CENT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RESAMPLES = 2_000
"""Bootstrap resamples: the ends of a 95 % interval then vary by about a fiftieth of its width."""

SEED = 20260101
"""The same log always gives the same interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A weighted mean with its interval.

    mean: weighted by verify steps.
    low, high: ends of the interval at `level`, equal to infinities when one row cannot tell.
    rows: rows it rests on; effective: how many independent rows they are worth.
    """

    mean: float
    low: float
    high: float
    level: float
    rows: int
    effective: float

    @property
    def known(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Difference:
    """B against A: `change` = mean of B - mean of A, its interval, and the two-sided p of "no difference"."""

    before: Estimate
    after: Estimate
    change: float
    low: float
    high: float
    p: float

    @property
    def different(self) -> bool:
        """Whether the interval of the change leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Change:
    """A step in a series: rows from `row` on have another mean; p after allowing for every place tried."""

    row: int
    time: float
    before: float
    after: float
    p: float


@dataclass(frozen=True, slots=True)
class Trend:
    """A steady rise or fall: rank correlation with the order of the rows, its p, and first and last fitted value."""

    correlation: float
    p: float
    start: float
    end: float


def estimate(
    values: Floats,
    weights: Floats,
    *,
    level: float = 0.95,
    rounding: float = HALF_CENT,
    floor: float = -math.inf,
    independent: bool = False,
) -> Estimate:
    """The weighted mean of `values` and its interval by a block bootstrap.

    Blocks are as long as the correlation of neighbours asks for. With few blocks the bootstrap's spread is too
    small, so it is widened as Student's t widens a standard error. Where the rows hardly differ, the rounding of
    the printed numbers is the larger error and is added.

    Args:
        values: [n] accept lengths (or other row means).
        weights: [n] verify steps, positive.
        level: coverage aimed at.
        rounding: largest error of a printed value.
        floor: smallest possible value (1 for an accept length).
        independent: rows are whole requests: each is a block of its own, whatever stands beside it.
    """
    import numpy as np

    n = len(values)
    if not n:
        raise ValueError("no rows to estimate from")
    mean = float(np.average(values, weights=weights))
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, level, 1, 1.0)
    # The error of a weighted mean is the mean of the weighted residuals: they are what is resampled.
    residuals = _residuals(values, weights, mean)
    inflation = 1.0 if independent else variance_inflation(residuals)
    effective = n / inflation
    means = _block_means(residuals, block_length(n, inflation))
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    t = student_quantile(1 - tail, _degrees(effective, inflation))
    # Resampled blocks lose the correlation across their ends, and residuals the spread of the mean itself.
    theory = float(residuals.std()) * math.sqrt(inflation / n / (1 - min(inflation / n, 0.5)))
    resampled = float(means.std())
    widen = t / _normal_quantile(1 - tail) * (max(1.0, theory / resampled) if resampled > 0 else 1.0)
    # Rounding: independent from row to row where they differ, and the same for all where they hardly do.
    noise = t * rounding / math.sqrt(3 * effective)
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    shared = max(0.0, rounding - spread)
    return Estimate(
        mean,
        max(floor, mean - math.hypot(widen * float(low), noise) - shared),
        max(floor, mean + math.hypot(widen * float(high), noise) + shared),
        level,
        n,
        effective,
    )


def _residuals(values: Floats, weights: Floats, mean: float) -> Floats:
    """Each row's part in the error of the weighted mean: their mean is that error."""
    parts: Floats = (values - mean) * weights / weights.mean()
    return parts


def _degrees(effective: float, inflation: float) -> float:
    """Degrees of freedom of the error: fewer where the correlation had to be estimated from the same rows."""
    return max((effective - 1) / (1 if inflation < UNCORRELATED else 2), 1.0)


UNCORRELATED = 1.2
"""Variance inflation below which rows count as independent: chance alone gives as much."""


def variance_inflation(residuals: Floats) -> float:
    """By how much correlated neighbours enlarge the variance of a mean: 1 for independent rows.

    1 + 2 x the sum of the autocorrelations. Two estimates of the sum are made and the larger is taken: the
    correlations themselves as far as their pairwise sums stay positive (Geyer's initial positive sequence), and
    the sum that the first one implies if they decay geometrically. Both are freed of the bias that taking out the
    mean of few rows gives (each correlation reads too low by about inflation / n).
    """
    import numpy as np

    n = len(residuals)
    centred = residuals - residuals.mean()
    variance = float(centred @ centred)
    if n < 5 or variance <= 0:
        return 1.0
    lags = range(1, min(n // 2, 500) + 1)
    correlations = [float(centred[:-lag] @ centred[lag:]) / variance for lag in lags]
    inflation = 1.0
    for _ in range(3):  # the bias depends on the inflation itself
        inflation = float(np.clip(1 + 2 * _positive_sum(correlations, inflation / n), 1.0, n / 3))
    first = min(max(correlations[0] + (1 + 4 * correlations[0]) / n, 0.0), 0.95)
    return max(inflation, min((1 + first) / (1 - first), n / 3))


def _positive_sum(correlations: list[float], bias: float) -> float:
    total = max(correlations[0] + bias, 0.0)
    for one, two in zip(correlations[1::2], correlations[2::2], strict=False):
        pair = one + two + 2 * bias
        if total == 0 or pair <= 2 * bias:
            break
        total += pair
    return total


def block_length(n: int, inflation: float) -> int:
    """Rows in a block: several correlation lengths, and few enough that blocks remain."""
    if inflation < UNCORRELATED:
        return 1
    return int(min(max(round(inflation * n ** (1 / 3) / 1.5), 1), max(n // 6, 1)))


def _block_means(residuals: Floats, block: int) -> Floats:
    """Means of `RESAMPLES` circular-block resamples of the residuals."""
    import numpy as np

    n = len(residuals)
    # Sums of every circular block, by differences of a running sum.
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([residuals, residuals[:block]]))])
    sums = running[block : block + n] - running[:n]
    count = max(round(n / block), 1)
    means = np.empty(RESAMPLES)
    step = max(1, 4_000_000 // count)
    for start in range(0, RESAMPLES, step):
        stop = min(start + step, RESAMPLES)
        drawn = _drawn(start * count, stop * count, n).reshape(stop - start, count)
        means[start:stop] = sums[drawn].sum(axis=1) / (count * block)
    return means


def _drawn(start: int, stop: int, n: int) -> NDArray[np.int64]:
    """Draws number `start` to `stop` of an endless row of whole numbers below `n`: SplitMix64 on their numbers.

    numpy's own generators are as good and take as long to import as a whole small log takes to read.
    """
    import numpy as np

    z = np.arange(start, stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(SEED)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    high = (z ^ (z >> np.uint64(31))) >> np.uint64(33)
    return ((high * np.uint64(n)) >> np.uint64(31)).astype(np.int64)


def compare(
    before: tuple[Floats, Floats],
    after: tuple[Floats, Floats],
    *,
    level: float = 0.95,
    exact: bool = False,
) -> Difference:
    """Is B different from A? Welch's test on the block-bootstrap errors of two (values, weights) pairs.

    Args:
        before: A's rows.
        after: B's.
        level: coverage aimed at.
        exact: rows are whole requests of both: independent of each other, and not rounded.
    """
    rounding = 0.0 if exact else HALF_CENT
    a, b = (estimate(*rows, level=level, rounding=rounding, independent=exact) for rows in (before, after))
    change = b.mean - a.mean
    if not (a.known and b.known):
        return Difference(a, b, change, -math.inf, math.inf, 1.0)
    freedom = [_degrees(e.effective, e.rows / e.effective) for e in (a, b)]
    errors = [
        (e.high - e.low) / 2 / student_quantile((1 + level) / 2, degrees)
        for e, degrees in zip((a, b), freedom, strict=True)
    ]
    variance = errors[0] ** 2 + errors[1] ** 2
    if variance == 0:
        return Difference(a, b, change, change, change, 0.0 if change else 1.0)
    degrees = variance**2 / sum(error**4 / free for error, free in zip(errors, freedom, strict=True))
    error = math.sqrt(variance)
    reach = student_quantile((1 + level) / 2, degrees) * error
    return Difference(a, b, change, change - reach, change + reach, student_p(change / error, degrees))


def paired(before: tuple[Floats, Floats], after: tuple[Floats, Floats], *, level: float = 0.95) -> Difference:
    """Is B different from A, where row i of both is the same prompt? What makes prompts differ drops out.

    The rows' parts in the two errors are subtracted prompt by prompt, and these differences are resampled.

    Args:
        before: A's (values, weights).
        after: B's, as many.
        level: coverage aimed at.
    """
    import numpy as np

    a, b = (estimate(*rows, level=level, rounding=0.0, independent=True) for rows in (before, after))
    change = b.mean - a.mean
    if not (a.known and b.known):
        return Difference(a, b, change, -math.inf, math.inf, 1.0)
    parts = _residuals(*after, b.mean) - _residuals(*before, a.mean)
    found = estimate(change + parts, np.ones(len(parts)), level=level, rounding=0.0, independent=True)
    if found.high == found.low:
        return Difference(a, b, change, change, change, 0.0 if change else 1.0)
    degrees = _degrees(found.effective, found.rows / found.effective)
    error = (found.high - found.low) / 2 / student_quantile((1 + level) / 2, degrees)
    return Difference(a, b, change, found.low, found.high, student_p(change / error, degrees))


def change_points(
    values: Floats, weights: Floats, times: Floats, *, p: float, size: float, most: int = 8
) -> tuple[Change, ...]:
    """Places where the level of a series steps, by binary segmentation.

    At each place the two sides are compared on blocks; the best place of a segment counts if its p, multiplied by
    the number of independent places that were tried, is below `p` and the step is at least `size`.
    """
    found: list[Change] = []
    segments = [(0, len(values))]
    while segments and len(found) < most:
        start, stop = segments.pop(0)
        change = _best_split(values[start:stop], weights[start:stop], times[start:stop])
        if change is None or change.p > p or abs(change.after - change.before) < size:
            continue
        row = start + change.row
        found.append(Change(row, change.time, change.before, change.after, change.p))
        segments += [(start, row), (row, stop)]
    return tuple(sorted(found, key=lambda change: change.row))


FEWEST_SIDE = 2
"""Rows on each side of a step: a single row is an outlier, not a level."""


def _best_split(values: Floats, weights: Floats, times: Floats) -> Change | None:
    import numpy as np

    n = len(values)
    if n < 2 * FEWEST_SIDE:
        return None
    cuts = np.arange(FEWEST_SIDE, n - FEWEST_SIDE + 1)
    w, wx = np.cumsum(weights), np.cumsum(weights * values)
    left = wx[cuts - 1] / w[cuts - 1]
    right = (wx[-1] - wx[cuts - 1]) / (w[-1] - w[cuts - 1])
    share = w[cuts - 1] / w[-1]
    between = share * (1 - share) * (left - right) ** 2
    best = int(between.argmax())
    cut, before, after = int(cuts[best]), float(left[best]), float(right[best])
    residuals = np.concatenate([values[:cut] - before, values[cut:] - after])
    inflation = max(variance_inflation(residuals[:cut]), variance_inflation(residuals[cut:]))
    effective = n / inflation
    within = float(np.average(residuals**2, weights=weights)) + HALF_CENT**2 / 3
    degrees = effective - 2
    if degrees < 1:
        return None
    f = float(between[best]) / within * degrees
    tried = max(1.0, min(float(len(cuts)), effective))
    return Change(cut, float(times[cut]), before, after, min(1.0, student_p(math.sqrt(f), degrees) * tried))


def trend(values: Floats, weights: Floats) -> Trend | None:
    """A steady drift over the rows: Spearman's correlation with their order, on blocks; None below five blocks."""
    import numpy as np

    n = len(values)
    if n < 5:
        return None
    order = np.arange(n, dtype=float)
    slope, level = np.polyfit(order, values, 1, w=np.sqrt(weights / weights.max()))
    block = block_length(n, variance_inflation(values - (slope * order + level)))
    edges = np.arange(0, n - block + 1, block)
    means = np.add.reduceat(values * weights, edges) / np.add.reduceat(weights, edges)
    if len(means) < 5:
        return None
    correlation = _spearman(means)
    return Trend(
        correlation, _spearman_p(correlation, len(means)), float(level), float(level + slope * (n - 1))
    )


@dataclass(frozen=True, slots=True)
class Dependence:
    """How the accept length goes with something else that rows print.

    correlation: Spearman's, over rows; p: two-sided, for as many rows as the correlated ones are worth.
    low, high: mean accept length in the lower and the upper half of the other quantity.
    """

    correlation: float
    p: float
    low: float
    high: float


def dependence(values: Floats, weights: Floats, other: Floats) -> Dependence | None:
    """Whether the accept length goes with `other` (running requests, context length); None below eight rows.

    Rows whose `other` is NaN are left out, and so is the question when `other` does not vary.
    """
    import numpy as np

    known = np.isfinite(other)
    values, weights, other = values[known], weights[known], other[known]
    if len(values) < 8 or np.ptp(other) == 0 or np.ptp(values) == 0:
        return None
    correlation = float(np.corrcoef(_ranks(values), _ranks(other))[0, 1])
    inflation = min(variance_inflation(values - values.mean()), variance_inflation(other - other.mean()))
    ordered = np.sort(other)
    middle = float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    upper = (
        other > middle if (other > middle).any() else other >= middle
    )  # neither half is empty: `other` varies
    return Dependence(
        correlation,
        _spearman_p(correlation, max(int(len(values) / inflation), 4)),
        float(np.average(values[~upper], weights=weights[~upper])),
        float(np.average(values[upper], weights=weights[upper])),
    )


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, ties sharing their mean."""
    import numpy as np

    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def _spearman(values: Floats) -> float:
    import numpy as np

    ranks = _ranks(values)
    return 0.0 if ranks.std() == 0 else float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _spearman_p(correlation: float, n: int) -> float:
    """Two-sided p; exact for a perfect order, where the t approximation has no meaning."""
    if abs(correlation) >= 1 - 1e-12:
        return 2 / math.factorial(n) if n < 20 else 0.0
    return student_p(correlation * math.sqrt((n - 2) / (1 - correlation**2)), n - 2)


def student_p(t: float, degrees: float) -> float:
    """Two-sided p of Student's t."""
    if not math.isfinite(t):
        return 0.0
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def student_quantile(p: float, degrees: float) -> float:
    """Quantile of Student's t for p > 1/2."""
    target = 2 * (1 - p)
    return _solve(lambda t: student_p(t, degrees) - target, 0.0, 1e3)


def _normal_quantile(p: float) -> float:
    """Quantile of the normal distribution for p > 1/2."""
    return _solve(lambda z: math.erfc(z / math.sqrt(2)) / 2 - (1 - p), 0.0, 40.0)


def _solve(falling: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d if abs(1 + step * d) > tiny else tiny)
            c = 1 + step / c if abs(1 + step / c) > tiny else tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * fraction / a
