"""Means, intervals, comparisons and changes over time of accept length, from rows of a series.

Neighbouring intervals of a log share requests, so they are not independent: every error bar here comes from blocks
of neighbours. Weights are verify steps (see `counts`), because an interval with forty requests says more than one
with a single request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import mul

from eagle3lab.acceptance.formulas import HALF_CENT

Rows = tuple[Iterable[float], Iterable[float]]
"""Values and weights of some rows, as lists or as arrays."""


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
    values: Iterable[float],
    weights: Iterable[float],
    *,
    level: float = 0.95,
    rounding: float = HALF_CENT,
    floor: float = -math.inf,
    independent: bool = False,
) -> Estimate:
    """The weighted mean of `values` and its interval, that of a block bootstrap.

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
    values, weights = _listed(values), _listed(weights)
    n = len(values)
    if not n:
        raise ValueError("no rows to estimate from")
    mean = _average(values, weights)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, level, 1, 1.0)
    # The error of a weighted mean is the mean of the weighted residuals: they are what is resampled.
    residuals = _residuals(values, weights, mean)
    inflation = 1.0 if independent else variance_inflation(residuals)
    effective = n / inflation
    tail = (1 - level) / 2
    z = normal_quantile(1 - tail)
    resampled, low, high = _resampled(residuals, block_length(n, inflation), z)
    t = student_quantile(1 - tail, _degrees(effective, inflation))
    # Resampled blocks lose the correlation across their ends, and residuals the spread of the mean itself.
    theory = math.sqrt(_square(residuals) / n * inflation / n / (1 - min(inflation / n, 0.5)))
    widen = t / z * (max(1.0, theory / resampled) if resampled > 0 else 1.0)
    # Rounding: independent from row to row where they differ, and the same for all where they hardly do.
    noise = t * rounding / math.sqrt(3 * effective)
    spread = math.sqrt(_average([(value - mean) ** 2 for value in values], weights))
    shared = max(0.0, rounding - spread)
    return Estimate(
        mean,
        max(floor, mean - math.hypot(widen * low, noise) - shared),
        max(floor, mean + math.hypot(widen * high, noise) + shared),
        level,
        n,
        effective,
    )


def _listed(values: Iterable[float]) -> list[float]:
    """As a list of Python's floats, from an array as well."""
    return [float(value) for value in values]


def _average(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(map(mul, values, weights)) / math.fsum(weights)


def _square(values: Sequence[float]) -> float:
    """The sum of the squares of the distances from the mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _residuals(values: Sequence[float], weights: Sequence[float], mean: float) -> list[float]:
    """Each row's part in the error of the weighted mean: their mean is that error."""
    usual = math.fsum(weights) / len(weights)
    return [(value - mean) * weight / usual for value, weight in zip(values, weights, strict=True)]


def _degrees(effective: float, inflation: float) -> float:
    """Degrees of freedom of the error: fewer where the correlation had to be estimated from the same rows."""
    return max((effective - 1) / (1 if inflation < UNCORRELATED else 2), 1.0)


UNCORRELATED = 1.2
"""Variance inflation below which rows count as independent: chance alone gives as much."""


def variance_inflation(residuals: Iterable[float]) -> float:
    """By how much correlated neighbours enlarge the variance of a mean: 1 for independent rows.

    1 + 2 x the sum of the autocorrelations. Two estimates of the sum are made and the larger is taken: the
    correlations themselves as far as their pairwise sums stay positive (Geyer's initial positive sequence), and
    the sum that the first one implies if they decay geometrically. Both are freed of the bias that taking out the
    mean of few rows gives (each correlation reads too low by about inflation / n).
    """
    residuals = _listed(residuals)
    n = len(residuals)
    if n < 5:
        return 1.0
    mean = math.fsum(residuals) / n
    centred = [value - mean for value in residuals]
    variance = sum(map(mul, centred, centred))
    if variance <= 0:
        return 1.0
    known: list[float] = []

    def correlation(lag: int) -> float:
        while len(known) < lag:  # most sums end after a few lags, and the others cost nothing
            known.append(sum(map(mul, centred, centred[len(known) + 1 :])) / variance)
        return known[lag - 1]

    furthest = min(n // 2, 500)
    inflation = 1.0
    for _ in range(3):  # the bias depends on the inflation itself
        total = _positive_sum(correlation, furthest, inflation / n)
        inflation = min(max(1 + 2 * total, 1.0), n / 3)
    first = min(max(correlation(1) + (1 + 4 * correlation(1)) / n, 0.0), 0.95)
    return max(inflation, min((1 + first) / (1 - first), n / 3))


def _positive_sum(correlation: Callable[[int], float], furthest: int, bias: float) -> float:
    total = max(correlation(1) + bias, 0.0)
    for lag in range(2, furthest, 2):
        if total == 0:
            break
        pair = correlation(lag) + correlation(lag + 1) + 2 * bias
        if pair <= 2 * bias:
            break
        total += pair
    return total


def block_length(n: int, inflation: float) -> int:
    """Rows in a block: several correlation lengths, and few enough that blocks remain."""
    if inflation < UNCORRELATED:
        return 1
    return int(min(max(round(inflation * n ** (1 / 3) / 1.5), 1), max(n // 6, 1)))


def _resampled(residuals: Sequence[float], block: int, z: float) -> tuple[float, float, float]:
    """Spread and quantiles of the mean of a circular-block resample of the residuals.

    A resample is a sum of blocks drawn independently, so its cumulants are known: nothing need be drawn. They give
    the quantiles by Cornish and Fisher's expansion to the fourth. Neither skewness nor excess of such a mean exceeds
    one by much, whatever the residuals, so the expansion stays in its range.

    Args:
        residuals: [n] with mean zero.
        block: Rows in a block.
        z: The normal quantile of the upper end; the lower end lies at -z.
    """
    n = len(residuals)
    running = [0.0, *accumulate([*residuals, *residuals[:block]])]
    sums = [end - start for start, end in zip(running[:n], running[block:], strict=False)]
    count = max(round(n / block), 1)
    squares = list(map(mul, sums, sums))
    second = math.fsum(squares) / n
    if second <= 0:
        return 0.0, 0.0, 0.0
    skewness = math.fsum(map(mul, squares, sums)) / n / second**1.5 / math.sqrt(count)
    excess = (math.fsum(map(mul, squares, squares)) / n / second**2 - 3) / count
    spread = math.sqrt(second / count) / block
    even = (z * z - 1) * skewness / 6
    odd = z + (z**3 - 3 * z) * excess / 24 - (2 * z**3 - 5 * z) * skewness**2 / 36
    return spread, spread * (even - odd), spread * (even + odd)


def compare(
    before: Rows,
    after: Rows,
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


def paired(before: Rows, after: Rows, *, level: float = 0.95) -> Difference:
    """Is B different from A, where row i of both is the same prompt? What makes prompts differ drops out.

    The rows' parts in the two errors are subtracted prompt by prompt, and these differences are resampled.

    Args:
        before: A's (values, weights).
        after: B's, as many.
        level: coverage aimed at.
    """
    one, other = ((_listed(values), _listed(weights)) for values, weights in (before, after))
    a, b = (estimate(*rows, level=level, rounding=0.0, independent=True) for rows in (one, other))
    change = b.mean - a.mean
    if not (a.known and b.known):
        return Difference(a, b, change, -math.inf, math.inf, 1.0)
    parts = zip(_residuals(*other, b.mean), _residuals(*one, a.mean), strict=True)
    changes = [change + (late - early) for late, early in parts]
    found = estimate(changes, [1.0] * len(changes), level=level, rounding=0.0, independent=True)
    if found.high == found.low:
        return Difference(a, b, change, change, change, 0.0 if change else 1.0)
    degrees = _degrees(found.effective, found.rows / found.effective)
    error = (found.high - found.low) / 2 / student_quantile((1 + level) / 2, degrees)
    return Difference(a, b, change, found.low, found.high, student_p(change / error, degrees))


def change_points(
    values: Iterable[float],
    weights: Iterable[float],
    times: Iterable[float],
    *,
    p: float,
    size: float,
    most: int = 8,
) -> tuple[Change, ...]:
    """Places where the level of a series steps, by binary segmentation.

    At each place the two sides are compared on blocks; the best place of a segment counts if its p, multiplied by
    the number of independent places that were tried, is below `p` and the step is at least `size`.
    """
    values, weights, times = _listed(values), _listed(weights), _listed(times)
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


def _best_split(values: Sequence[float], weights: Sequence[float], times: Sequence[float]) -> Change | None:
    n = len(values)
    if n < 2 * FEWEST_SIDE:
        return None
    w = list(accumulate(weights))
    wx = list(accumulate(map(mul, weights, values)))
    cut, between, before, after = 0, -1.0, 0.0, 0.0
    for place in range(FEWEST_SIDE, n - FEWEST_SIDE + 1):
        weight, total = w[place - 1], wx[place - 1]
        left, right = total / weight, (wx[-1] - total) / (w[-1] - weight)
        share = weight / w[-1]
        apart = share * (1 - share) * (left - right) ** 2
        if apart > between:
            cut, between, before, after = place, apart, left, right
    residuals = [value - (before if row < cut else after) for row, value in enumerate(values)]
    inflation = max(variance_inflation(residuals[:cut]), variance_inflation(residuals[cut:]))
    effective = n / inflation
    within = _average([residual**2 for residual in residuals], weights) + HALF_CENT**2 / 3
    degrees = effective - 2
    if degrees < 1:
        return None
    tried = max(1.0, min(float(n - 2 * FEWEST_SIDE + 1), effective))
    p = student_p(math.sqrt(between / within * degrees), degrees)
    return Change(cut, times[cut], before, after, min(1.0, p * tried))


def trend(values: Iterable[float], weights: Iterable[float]) -> Trend | None:
    """A steady drift over the rows: Spearman's correlation with their order, on blocks; None below five blocks."""
    values, weights = _listed(values), _listed(weights)
    n = len(values)
    if n < 5:
        return None
    start, slope = _line(values, weights)
    block = block_length(
        n, variance_inflation(value - start - slope * row for row, value in enumerate(values))
    )
    edges = [*range(0, n - block + 1, block)][1:]
    means = [
        _average(values[first:last], weights[first:last])
        for first, last in zip([0, *edges], [*edges, n], strict=True)
    ]
    if len(means) < 5:
        return None
    correlation = _correlation(_ranks(means), range(len(means)))
    return Trend(correlation, _spearman_p(correlation, len(means)), start, start + slope * (n - 1))


def _line(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """The straight line through the rows by least squares: its value at the first row, and its slope a row."""
    middle, mean = _average(range(len(values)), weights), _average(values, weights)
    across = [weight * (row - middle) for row, weight in enumerate(weights)]
    slope = math.fsum(part * (value - mean) for part, value in zip(across, values, strict=True)) / math.fsum(
        part * (row - middle) for row, part in enumerate(across)
    )
    return mean - slope * middle, slope


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


def dependence(
    values: Iterable[float], weights: Iterable[float], other: Iterable[float]
) -> Dependence | None:
    """Whether the accept length goes with `other` (running requests, context length); None below eight rows.

    Rows whose `other` is NaN are left out, and so is the question when `other` does not vary.
    """
    other = _listed(other)
    known = [math.isfinite(value) for value in other]
    values, weights, other = (_listed(compress(column, known)) for column in (values, weights, other))
    if len(values) < 8 or min(other) == max(other) or min(values) == max(values):
        return None
    correlation = _correlation(_ranks(values), _ranks(other))
    inflation = min(variance_inflation(values), variance_inflation(other))
    ordered = sorted(other)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    upper = [value > middle for value in other]
    if not any(upper):  # neither half is empty: `other` varies
        upper = [value >= middle for value in other]
    lower = [not above for above in upper]
    low, high = (
        _average(list(compress(values, half)), list(compress(weights, half))) for half in (lower, upper)
    )
    p = _spearman_p(correlation, max(int(len(values) / inflation), 4))
    return Dependence(correlation, p, low, high)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties sharing their mean."""
    ordered = sorted(values)
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for rank, value in enumerate(ordered, 1):
        first.setdefault(value, rank)
        last[value] = rank
    return [(first[value] + last[value]) / 2 for value in values]


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's correlation; 0 where either does not vary."""
    means = (math.fsum(one) / len(one), math.fsum(other) / len(other))
    a, b = [value - means[0] for value in one], [value - means[1] for value in other]
    scale = math.sqrt(math.fsum(map(mul, a, a)) * math.fsum(map(mul, b, b)))
    return math.fsum(map(mul, a, b)) / scale if scale else 0.0


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


def normal_quantile(p: float) -> float:
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
