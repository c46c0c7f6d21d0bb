"""What the numbers look like: the signature of a run, how sure that is, and why.

A signature describes acceptance, it does not name the cause: a dead drafter may have unloaded layers, no captured
states or a wrong token map, and the log alone cannot tell which. Thresholds are data with reasons
(`thresholds.toml`).
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.acceptance.counts import PerPosition
from eagle3lab.acceptance.statistics import Change, Estimate, Trend

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MEANINGS = {
    "no-data": "nothing was measured, which is no failure",
    "not-speculating": "the server decodes without drafting",
    "dead": "nothing the drafter proposes is accepted",
    "near-dead": "drafts are accepted about as often as by chance",
    "random-head": "the first draft is right now and then and no later one is: a head stuck on one token, or untrained",
    "partial": "drafts are accepted, and far fewer than a working head gets",
    "recurrence-cliff": "the first draft is good and the later ones are not: the drafter fails on its own states",
    "weak-training": "acceptance starts low and decays smoothly: wired right, predicts badly",
    "switched-off": "acceptance is 1.00 whenever many requests run, and good otherwise: drafting stops under load",
    "collapse": "acceptance was good and fell to nothing at one moment",
    "drift": "acceptance falls steadily or in steps while the server runs",
    "dead-positions": "the first drafts are accepted at a useful rate, and later positions never are",
    "too-little": "drafts are accepted, and too little was measured to say how many",
    "below-expectation": "it works, and well below what the training accuracies promise",
    "healthy": "drafts are accepted at a useful rate throughout",
}
"""Signature to what it says, in one line."""


DEAD, WEAK, PARTIAL, HEALTHY, UNKNOWN = "dead", "weak", "partial", "healthy", "unknown"
LEVELS = {
    **dict.fromkeys(("dead", "near-dead", "random-head", "collapse"), DEAD),
    **dict.fromkeys(("partial", "weak-training"), WEAK),
    **dict.fromkeys(
        ("recurrence-cliff", "dead-positions", "below-expectation", "drift", "switched-off"), PARTIAL
    ),
    "healthy": HEALTHY,
}
"""Signature to how well the drafter is accepted, in the words that every command and chapter uses.

dead: no more than chance accepts (below the border `near_dead`). weak: accepted, and too rarely to be of use, or from a
low first position on. partial: useful, and a part of it is lost: later positions, a moment, a load. healthy: useful
throughout. Any other signature is unknown: nothing, or too little, was measured."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A name out of `MEANINGS`, the confidence in it (0 to 1), and the figures it rests on."""

    name: str
    confidence: float
    reason: str

    @property
    def meaning(self) -> str:
        """The name in words."""
        return MEANINGS[self.name]

    @property
    def level(self) -> str:
        """`DEAD`, `WEAK`, `PARTIAL`, `HEALTHY` or `UNKNOWN`."""
        return LEVELS.get(self.name, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A border between signatures and the reason for where it lies."""

    value: float
    reason: str


@cache
def thresholds() -> dict[str, Threshold]:
    """The borders by name."""
    table = tomllib.loads(Path(__file__).with_name("thresholds.toml").read_text("utf-8"))
    return {name: Threshold(float(row["value"]), row["reason"]) for name, row in table.items()}


def limit(name: str) -> float:
    """The value of a threshold."""
    return thresholds()[name].value


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a signature is read from.

    length: the accept length with its interval, None when nothing was measured.
    table: rows (see `counts.COLUMNS`), None for a single figure.
    per_position, draft_tokens, expected: None when not known (expected: accept length promised by training).
    changes, trend: over time.
    idle, plain_decode: lines without data, decode lines without accept fields.
    steps: verify steps behind it all, None where they are not counted.
    """

    length: Estimate | None
    table: Mapping[str, Iterable[float]] | None = None
    per_position: PerPosition | None = None
    draft_tokens: int | None = None
    expected: float | None = None
    changes: tuple[Change, ...] = ()
    trend: Trend | None = None
    idle: int = 0
    plain_decode: int = 0
    steps: float | None = None


def judge_counts(
    steps: float, accepted: float, positions: Sequence[float] = (), draft_tokens: int | None = None
) -> Signature:
    """The signature of exact counts.

    Args:
        steps: Verify steps, at least one.
        accepted: Drafts accepted in them, bonus tokens not counted.
        positions: How often the draft at position 1, 2, … was accepted; empty where not known.
        draft_tokens: D.
    """
    single = Estimate(1 + accepted / steps, -math.inf, math.inf, 0.95, 1, 1.0)
    shares = PerPosition.from_unconditional(tuple(count / steps for count in positions), steps)
    return signature(
        Evidence(single, per_position=shares if positions else None, draft_tokens=draft_tokens, steps=steps)
    )


def dead_positions(positions: PerPosition) -> tuple[int, ...]:
    """Draft positions (1-based) after the first that are never accepted, though the ones before them are.

    A position counts as dead where its absence is no chance: at the rate of the position before, at least ten drafts
    would have been accepted there, or a third of all positions share its fate.
    """
    shares = positions.unconditional
    last = max((place for place, share in enumerate(shares, 1) if share >= NEVER), default=0)
    found = tuple(range(last + 1, len(shares) + 1))
    if not last or not found:
        return ()
    due = positions.steps * shares[last - 1] * (positions.conditional[last - 1] or 0.0)
    many = 3 * len(found) >= len(shares) and len(found) >= 2
    return found if many or due >= limit("dead_due") else ()


NEVER = 0.0005
"""A share below which a printed one, with three decimals, is zero."""


def signature(seen: Evidence) -> Signature:
    """The signature that fits the evidence best."""
    if seen.length is None:
        return _without_measurement(seen)
    over_time = _over_time(seen, seen.length) if seen.table is not None else None
    if over_time is not None:
        return over_time
    level = _level(seen, seen.length)
    if level is not None:
        return level
    shape = _shape(seen, seen.length)
    if shape is not None:
        return shape
    return _useful(seen, seen.length)


def _without_measurement(seen: Evidence) -> Signature:
    if seen.plain_decode and not seen.idle:
        sure = 0.95 if seen.plain_decode > 1 else 0.8
        return Signature(
            "not-speculating", sure, f"{seen.plain_decode} decode line(s), none with an accept length"
        )
    if seen.idle:
        return Signature("no-data", 0.95, f"{seen.idle} idle interval(s): no draft was proposed")
    return Signature("no-data", 0.95, "no line reports acceptance")


def _sure(length: Estimate, *, clear: bool) -> float:
    """Confidence from the amount of data and from whether the interval stays on one side of the border."""
    if not length.known:
        return 0.6
    return 0.95 if clear and length.rows >= 3 else 0.85 if clear else 0.65


def _figures(length: Estimate) -> str:
    interval = (
        f" (95 % interval {length.low:.2f} to {length.high:.2f})" if length.known else " (one measurement)"
    )
    return f"accept length {length.mean:.2f}{interval}"


def _level(seen: Evidence, length: Estimate) -> Signature | None:
    first = (
        seen.per_position.unconditional[0] if seen.per_position and seen.per_position.unconditional else None
    )
    if length.mean < limit("dead"):
        return Signature("dead", _sure(length, clear=length.high < limit("near_dead")), _figures(length))
    if length.mean < limit("near_dead"):
        if first is not None and seen.per_position is not None and 0 < first <= limit("stuck_first"):
            later = seen.per_position.conditional[1] if len(seen.per_position.conditional) > 1 else None
            if later is not None and later <= limit("stuck_later"):
                return Signature(
                    "random-head", 0.85,
                    f"{_figures(length)}; {_first_two(first, later)}",
                )  # fmt: skip
        return Signature("near-dead", _sure(length, clear=length.high < limit("partial")), _figures(length))
    return None


def _first_two(first: float, later: float) -> str:
    return f"position 1 accepted in {first:.1%} of the steps, position 2 in {later:.1%} of those"


def _shape(seen: Evidence, length: Estimate) -> Signature | None:
    """Signatures read off the per-position shares."""
    positions = seen.per_position
    if positions is None or len(positions.unconditional) < 2:
        return None
    first, later = positions.unconditional[0], positions.conditional[1]
    if later is None:
        return None
    shares = _first_two(first, later)
    if first >= limit("cliff_first") and later < limit("cliff_ratio") * first:
        return Signature("recurrence-cliff", 0.85, f"{shares}; {_figures(length)}")
    if first < limit("weak_first"):
        return Signature(
            "weak-training", 0.75, f"{shares}, a smooth decay from a low start; {_figures(length)}"
        )
    return None


def _range(places: tuple[int, ...]) -> str:
    return f"position {places[0]}" if len(places) == 1 else f"positions {places[0]} to {places[-1]}"


def _useful(seen: Evidence, length: Estimate) -> Signature:
    rate = (
        (length.mean - 1) / (seen.draft_tokens - 1) if seen.draft_tokens and seen.draft_tokens > 1 else None
    )
    low = length.mean < limit("partial") and (rate is None or rate < limit("partial_rate"))
    if low:
        return Signature("partial", _sure(length, clear=length.high < limit("partial")), _figures(length))
    few = seen.steps is not None and seen.steps < limit("fewest_steps")
    if few or (length.known and length.low <= 1.0 + 1e-9):
        behind = f", {seen.steps:.0f} verify steps" if seen.steps is not None else ""
        return Signature("too-little", 0.8, f"{_figures(length)}{behind}")
    if seen.per_position is not None and (dead := dead_positions(seen.per_position)):
        return Signature(
            "dead-positions", 0.8, f"{_range(dead)} of {len(seen.per_position.unconditional)} never accepted; "
            f"{_figures(length)}",
        )  # fmt: skip
    if seen.expected is not None and seen.expected > 1:
        share = (length.mean - 1) / (seen.expected - 1)
        text = f"{_figures(length)}; training promises {seen.expected:.2f}, {share:.0%} of those drafts are accepted"
        if share < limit("below_expectation"):
            clear = length.known and length.high - 1 < limit("below_expectation") * (seen.expected - 1)
            return Signature("below-expectation", 0.85 if clear else 0.6, text)
        return Signature("healthy", 0.9, text)
    sure = 0.8 if length.known and length.low >= limit("partial") else 0.65
    return Signature(
        "healthy", sure, f"{_figures(length)}; the figures alone cannot say whether training promised more"
    )


def _over_time(seen: Evidence, length: Estimate) -> Signature | None:
    assert seen.table is not None
    if length.rows < limit("fewest_lines") * 2:
        return None
    return _switched_off(seen) or _collapse(seen) or _drift(seen)


def _switched_off(seen: Evidence) -> Signature | None:
    assert seen.table is not None
    columns = (seen.table[name] for name in ("running", "lines", "tokens", "steps"))
    known = [
        (running / lines, tokens / steps)
        for running, lines, tokens, steps in zip(*columns, strict=True)
        if math.isfinite(running)
    ]
    dead = [running for running, length in known if length < limit("dead")]
    alive = [(running, length) for running, length in known if length >= limit("near_dead")]
    if len(dead) < 2 or len(alive) < 2 or len(dead) + len(alive) < 0.9 * len(known):
        return None
    lowest, highest = min(dead), max(running for running, _ in alive)
    if lowest < limit("off_running") * highest:
        return None
    mean = math.fsum(length for _, length in alive) / len(alive)
    return Signature(
        "switched-off", 0.9 if len(dead) + len(alive) >= 6 else 0.75,
        f"1.00 in all {len(dead)} intervals with {lowest:.0f} or more running requests, "
        f"{mean:.2f} in the {len(alive)} with {highest:.0f} or fewer",
    )  # fmt: skip


def _collapse(seen: Evidence) -> Signature | None:
    if not seen.changes:
        return None
    last = seen.changes[-1]
    if last.after < limit("dead") and last.before >= limit("near_dead"):
        return Signature(
            "collapse", 0.9, f"{last.before:.2f} until interval {last.row}, {last.after:.2f} from there on"
        )
    return None


def _drift(seen: Evidence) -> Signature | None:
    assert seen.table is not None
    times = [time for time in seen.table["time"] if math.isfinite(time)]
    if len(times) > 1 and max(times) - min(times) < limit("drift_span"):
        return None
    trend, changes = seen.trend, seen.changes
    size = limit("change_size")
    if (
        trend is not None
        and trend.p < limit("change_p") * 2
        and trend.correlation < 0
        and trend.start - trend.end > size
    ):
        return Signature(
            "drift", 0.85 if trend.p < limit("change_p") else 0.75,
            f"falls from {trend.start:.2f} to {trend.end:.2f} over the log (rank correlation {trend.correlation:.2f})",
        )  # fmt: skip
    falls = [change for change in changes if change.after < change.before - size]
    if falls and falls[-1] is changes[-1] and falls[-1].after < 0.9 * falls[-1].before:
        last = falls[-1]
        return Signature(
            "drift", 0.8, f"{last.before:.2f} until interval {last.row}, {last.after:.2f} from there on"
        )
    return None
