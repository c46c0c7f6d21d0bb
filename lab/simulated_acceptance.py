"""Acceptance with a known truth: requests of different ease, one by one or in slots over the intervals of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.acceptance.statistics import estimate, paired

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from eagle3lab.runs.folder import Request

FORWARDS = 40
"""Forwards behind a log line: SGLang's default `decode_log_interval`."""

EASE = (6.0, 4.0)
"""Parameters of the Beta distribution, mean 0.6, from which a request's chance per draft is drawn."""


def simulate(
    random: np.random.Generator, *, intervals: int, slots: int = 8, mean_steps: float = 120.0, drafts: int = 3
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Printed accept lengths, running requests, and the true mean accept length.

    Every slot decodes one request after another; a request has its own chance per draft (`EASE`),
    a geometric number of verify steps, and a slot is idle now and then, so that the batch varies. Successive
    intervals share requests, hence are correlated.

    Args:
        random: numpy's generator.
        intervals: log lines to make.
        slots: requests that can run at once.
        mean_steps: mean verify steps of a request.
        drafts: drafts proposed in a verify step.
    """
    import numpy as np

    chance = random.beta(*EASE, slots)
    busy = random.random(slots) < 0.8
    lengths, running = [], []
    for _ in range(intervals):
        ends = random.random(slots) < 1 - (1 - 1 / mean_steps) ** FORWARDS
        chance = np.where(ends, random.beta(*EASE, slots), chance)
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
    alpha, beta = EASE
    moments = [1.0]
    for j in range(drafts):  # E[p^j] of the Beta distribution
        moments.append(moments[-1] * (alpha + j) / (alpha + beta + j))
    return np.array(lengths), np.array(running), sum(moments)


def simulate_requests(
    random: np.random.Generator,
    *,
    requests: int,
    tokens: int = 64,
    drafts: int = 3,
    gain: float = 0.0,
    ease: NDArray[np.float64] | None = None,
) -> tuple[Request, ...]:
    """Requests as a run keeps them, in the words of SGLang 0.5.23's `meta_info`.

    Args:
        random: numpy's generator.
        requests: How many.
        tokens: Tokens of each answer, about.
        drafts: Drafts proposed in a verify step.
        gain: Added to every request's chance per draft: the drafter is better by that much.
        ease: [requests] chance per draft of each prompt, between 0 and 1; drawn from `EASE` if None.
            Two runs with the same answered the same prompts.
    """
    from eagle3lab.runs.folder import Request

    chances = random.beta(*EASE, requests) if ease is None else ease
    made, clock = [], float(2**30)
    for index, chance in enumerate(chances.tolist()):
        p, histogram, length = min(max(chance + gain, 0.0), 1.0), [0] * (drafts + 1), 1
        while length < tokens:
            accepted = 0
            while accepted < drafts and random.random() < p:
                accepted += 1
            histogram[accepted] += 1
            length += accepted + 1
        steps = sum(histogram)
        correct = sum(count * number for number, count in enumerate(histogram))
        meta = {
            "spec_verify_ct": steps,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": steps * drafts,
            "spec_accept_rate": correct / (steps * drafts),
            "spec_correct_drafts_histogram": histogram,
        }
        clock += 1.0
        made.append(Request(index, 10 + index % 7, length, [], meta, clock - 1, clock))
    return tuple(made)


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


TRUTH_REQUESTS = 20_000
"""Requests from which the true accept length of simulated requests is taken: its error is then below 0.01."""


def rows_of(requests: Sequence[Request]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accept lengths and verify steps of simulated requests."""
    import numpy as np

    steps = np.array([one.meta_info["spec_verify_ct"] for one in requests], dtype=float)
    accepted = np.array([one.meta_info["spec_num_correct_drafts"] for one in requests], dtype=float)
    return 1 + accepted / steps, steps


def request_coverage(*, trials: int, requests: int, seed: int = 1, level: float = 0.95) -> float:
    """Share of simulated runs whose interval, from whole requests, holds the true accept length."""
    import numpy as np

    random = np.random.default_rng(seed)
    truth = _truth(random, 0.0)
    held = 0
    for _ in range(trials):
        rows = rows_of(simulate_requests(random, requests=requests))
        found = estimate(*rows, level=level, rounding=0.0, floor=1.0, independent=True)
        held += found.low <= truth <= found.high
    return held / trials


def change_coverage(
    *, trials: int, requests: int, seed: int = 1, gain: float = 0.05, level: float = 0.95
) -> float:
    """Share of simulated pairs of runs whose interval, prompt by prompt, holds the true change."""
    import numpy as np

    random = np.random.default_rng(seed)
    truth = _truth(random, gain) - _truth(random, 0.0)
    held = 0
    for _ in range(trials):
        ease = random.beta(*EASE, requests)
        before, after = (
            rows_of(simulate_requests(random, requests=requests, ease=ease, gain=more))
            for more in (0.0, gain)
        )
        found = paired(before, after, level=level)
        held += found.low <= truth <= found.high
    return held / trials


def _truth(random: np.random.Generator, gain: float) -> float:
    import numpy as np

    lengths, steps = rows_of(simulate_requests(random, requests=TRUTH_REQUESTS, gain=gain))
    return float(np.average(lengths, weights=steps))
