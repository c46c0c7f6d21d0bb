"""Acceptance with a known truth: requests of different ease, decoded in slots over the intervals of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.acceptance.statistics import estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORWARDS = 40
"""Forwards behind a log line: SGLang's default `decode_log_interval`."""


def simulate(
    random: np.random.Generator, *, intervals: int, slots: int = 8, mean_steps: float = 120.0, drafts: int = 3
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Printed accept lengths, running requests, and the true mean accept length.

    Every slot decodes one request after another; a request has its own chance per draft (Beta distributed, mean
    0.6), a geometric number of verify steps, and a slot is idle now and then, so that the batch varies. Successive
    intervals share requests, hence are correlated.

    Args:
        random: numpy's generator.
        intervals: log lines to make.
        slots: requests that can run at once.
        mean_steps: mean verify steps of a request.
        drafts: drafts proposed in a verify step.
    """
    import numpy as np

    alpha, beta = 6.0, 4.0
    chance = random.beta(alpha, beta, slots)
    busy = random.random(slots) < 0.8
    lengths, running = [], []
    for _ in range(intervals):
        ends = random.random(slots) < 1 - (1 - 1 / mean_steps) ** FORWARDS
        chance = np.where(ends, random.beta(alpha, beta, slots), chance)
        busy = np.where(ends, random.random(slots) < 0.8, busy)
        if not busy.any():
            busy[0] = True
        p = chance[busy]
        accepted = np.zeros(len(p))
        alive = np.full((len(p), FORWARDS), True)
        for _ in range(drafts):
            alive &= random.random((len(p), FORWARDS)) < p[:, None]
            accepted += alive.sum(axis=1)
        lengths.append(round(1 + accepted.sum() / (len(p) * FORWARDS), 2))
        running.append(float(len(p)))
    moments = [1.0]
    for j in range(drafts):  # E[p^j] of the Beta distribution
        moments.append(moments[-1] * (alpha + j) / (alpha + beta + j))
    return np.array(lengths), np.array(running), sum(moments)


def coverage(*, trials: int, intervals: int, seed: int = 1, level: float = 0.95, slots: int = 8) -> float:
    """Share of simulated logs whose interval holds the true accept length."""
    import numpy as np

    random = np.random.default_rng(seed)
    held = 0
    for _ in range(trials):
        values, weights, truth = simulate(random, intervals=intervals, slots=slots)
        found = estimate(values, weights, level=level, floor=1.0)
        held += found.low <= truth <= found.high
    return held / trials
