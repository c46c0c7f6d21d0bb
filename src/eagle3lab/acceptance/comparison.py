"""Is run B better than run A, by how much, and how sure is that.

Where both runs answered the same prompts, request by request, their differences are judged prompt by prompt: what
makes one prompt easier than another drops out, so that far fewer requests show the same difference. Otherwise the
two are judged as independent runs. Either way whole requests (or blocks of a log's intervals) are resampled, since
the verify steps of one request are alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.acceptance.fetch import is_url
from eagle3lab.acceptance.observations import Observation
from eagle3lab.acceptance.render import rounded
from eagle3lab.acceptance.report import REQUESTS, Given, ServerReport, count
from eagle3lab.acceptance.run import observed
from eagle3lab.acceptance.sources import account_sources, is_folder, shown
from eagle3lab.acceptance.statistics import Difference, compare, paired
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.acceptance.counts import Column
    from eagle3lab.runs.folder import Request

_NOTHING = {"dead", "near-dead", "random-head"}
BETTER, WORSE, NO_DIFFERENCE, UNKNOWN = "better", "worse", "no difference shown", "cannot be told"


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A draft position in both runs: shares of the verify steps that accept it.

    difference: None where requests do not say it one by one.
    """

    position: int
    before: float
    after: float
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A.

    a, b: their accounts. length: the difference of the accept lengths. rate: that of the true rates, None where D is
    not known. pairs: prompts that both answered, 0 where the runs are judged independently.
    same_answers: how many of the pairs have the same tokens, None where tokens are not known.
    speed: tokens a second in A and in B, over all requests at once; None where times are not known.
    """

    a: ServerReport
    b: ServerReport
    length: Difference
    rate: float | None
    pairs: int
    per_position: tuple[PositionChange, ...]
    same_answers: int | None
    speed: tuple[float, float] | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`BETTER`, `WORSE`, `NO_DIFFERENCE`, or `UNKNOWN` where there is no interval."""
        if not math.isfinite(self.length.low):
            return UNKNOWN
        if not self.length.different:
            return NO_DIFFERENCE
        return BETTER if self.length.change > 0 else WORSE

    @property
    def sure(self) -> float | None:
        """Confidence that B differs from A in the direction seen; None where it cannot be told."""
        return 1 - self.length.p / 2 if math.isfinite(self.length.low) else None

    @property
    def resolution(self) -> float | None:
        """The change of the accept length that these runs could have shown: half the interval's width."""
        return (self.length.high - self.length.low) / 2 if math.isfinite(self.length.low) else None


def compare_runs(before: str, after: str, given: Given | None = None) -> Comparison:
    """Compare two runs: folders, logs, requests or addresses.

    Args:
        before: A.
        after: B.
        given: What is known of both.

    Raises:
        InputError: One of them cannot be read, or measured nothing.
    """
    given = given or Given()
    a, b = (_measured(source, given) for source in (before, after))
    first, second = (_requests(source) for source in (before, after))
    notes = _notes(a, b)
    rows = _pairs(first, second)
    left, right = rows if rows is not None else (_Rows.of(first), _Rows.of(second))
    if rows is None and first and second:
        notes.append("the runs did not answer the same prompts one by one: they are judged independently")
    if rows is not None:
        length = paired(_lengths(rows[0]), _lengths(rows[1]))
    else:
        length = _difference(a, b)
        if not math.isfinite(length.low):
            notes.append("of a single figure there is no spread: the difference is given without an interval")
    rate = b.accept_rate - a.accept_rate if a.accept_rate is not None and b.accept_rate is not None else None
    return Comparison(
        a,
        b,
        length,
        rate,
        len(rows[0].steps) if rows is not None else 0,
        _positions(a, b, left, right, matched=rows is not None),
        _same_answers(first, second) if rows is not None else None,
        _speed(first, second),
        tuple(notes),
    )


def _difference(a: ServerReport, b: ServerReport) -> Difference:
    """Row against row; where one side is a single figure, the figures without an interval."""
    if all(len(side.rows()[0]) > 1 for side in (a, b)):
        return compare(a.rows(), b.rows(), exact=a.source in REQUESTS and b.source in REQUESTS)
    assert a.accept_length is not None
    assert b.accept_length is not None
    change = b.accept_length.mean - a.accept_length.mean
    return Difference(a.accept_length, b.accept_length, change, -math.inf, math.inf, 1.0)


def _measured(source: str, given: Given) -> ServerReport:
    report = account_sources([source], given)
    if report.main is None or report.main.accept_length is None:
        says = "; ".join(report.notes) or "nothing in it reports acceptance"
        raise InputError(f"nothing to compare: {says}", path=shown(source))
    main = report.main
    measured = sum(server.accept_length is not None for server in report.servers)
    if measured > 1:
        note = (
            f"{shown(source)} holds {measured} servers that measured something: the last of them is compared"
        )
        main = replace(main, notes=(*main.notes, note))
    return main


def _notes(a: ServerReport, b: ServerReport) -> list[str]:
    notes = [note for side in (a, b) for note in side.notes if "is compared" in note]
    if a.draft_tokens is not None and b.draft_tokens is not None and a.draft_tokens != b.draft_tokens:
        notes.append(
            f"A drafts for {a.draft_tokens} tokens a verify step and B for {b.draft_tokens}: a longer chain can be "
            "accepted for longer, and costs more draft steps"
        )
    if {a.signature.name, b.signature.name} <= _NOTHING:
        notes.append(
            f"both are next to nothing ({a.signature.name}, {b.signature.name}): neither drafter works"
        )
    if a.engine != b.engine:
        notes.append(f"A ran on {a.engine or 'an unknown engine'}, B on {b.engine or 'an unknown engine'}")
    return notes


def _requests(source: str) -> tuple[Request, ...]:
    """The measured requests of a run folder or of its `requests.jsonl`; none of anything else."""
    from eagle3lab.runs.folder import REQUESTS, RunFolder, read_requests

    if is_folder(source):
        found = RunFolder.open(source).requests()
    elif not is_url(source) and Path(source).name == REQUESTS:
        found = read_requests(Path(source))
    else:
        return ()
    return tuple(one for one in found if one.phase == "measured")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Requests as columns: verify steps, accepted drafts, and per position how often it was accepted (or none)."""

    steps: Column
    accepted: Column
    positions: tuple[Column, ...]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> _Rows | None:
        seen = [_observation(one) for one in requests]
        return cls.made([one for one in seen if one is not None])

    @classmethod
    def made(cls, seen: Sequence[Observation]) -> _Rows | None:
        import numpy as np

        if not seen:
            return None
        steps = np.array([one.verify_steps for one in seen], dtype=float)
        accepted = np.array([one.accepted for one in seen], dtype=float)
        known = all(one.per_position for one in seen)
        width = max(len(one.per_position) for one in seen) if known else 0
        # A position that a request does not name was never accepted in it.
        shares = [(*one.per_position, *[0.0] * width)[:width] for one in seen]
        return cls(steps, accepted, tuple(np.array(column) * steps for column in zip(*shares, strict=True)))


def _observation(one: Request) -> Observation | None:
    """A request that verified something and says how much was accepted."""
    seen = observed(one)
    if not isinstance(seen, Observation) or seen.idle or not seen.verify_steps or seen.accepted is None:
        return None
    return seen


def _pairs(first: Sequence[Request], second: Sequence[Request]) -> tuple[_Rows, _Rows] | None:
    """The rows of the prompts that both runs answered; None unless they sent the same prompts in the same order.

    Prompts are not kept: as many of them, each of the same length, stand for the same.
    """
    if not first or [r.prompt_tokens for r in first] != [r.prompt_tokens for r in second]:
        return None
    both = [
        (a, b)
        for a, b in zip(map(_observation, first), map(_observation, second), strict=True)
        if a is not None and b is not None
    ]
    left, right = _Rows.made([a for a, _ in both]), _Rows.made([b for _, b in both])
    return None if left is None or right is None else (left, right)


def _lengths(rows: _Rows) -> tuple[Column, Column]:
    return 1 + rows.accepted / rows.steps, rows.steps


def _positions(
    a: ServerReport, b: ServerReport, left: _Rows | None, right: _Rows | None, *, matched: bool
) -> tuple[PositionChange, ...]:
    if a.per_position is None or b.per_position is None:
        return ()
    found = []
    for j, (before, after) in enumerate(
        zip(a.per_position.unconditional, b.per_position.unconditional, strict=False)
    ):
        difference = None
        if left is not None and right is not None and j < min(len(left.positions), len(right.positions)):
            one, other = ((rows.positions[j] / rows.steps, rows.steps) for rows in (left, right))
            difference = paired(one, other) if matched else compare(one, other, exact=True)
        found.append(PositionChange(j + 1, before, after, difference))
    return tuple(found)


def _same_answers(first: Sequence[Request], second: Sequence[Request]) -> int | None:
    if not all(one.output_ids for one in (*first, *second)):
        return None
    return sum(a.output_ids == b.output_ids for a, b in zip(first, second, strict=True))


def _speed(first: Sequence[Request], second: Sequence[Request]) -> tuple[float, float] | None:
    speeds = []
    for side in (first, second):
        if not side or any(one.ended_s <= 0 or one.started_s <= 0 for one in side):
            return None
        took = max(one.ended_s for one in side) - min(one.started_s for one in side)
        if took <= 0:
            return None
        speeds.append(sum(one.completion_tokens for one in side) / took)
    return speeds[0], speeds[1]


SCHEMA_VERSION = 1


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON-ready data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": found.verdict,
        "sure": rounded(found.sure),
        "change": rounded(found.length.change),
        "change_ci": _interval(found.length),
        "p": found.length.p if math.isfinite(found.length.low) else None,
        "could_have_shown": rounded(found.resolution),
        "accept_rate_change": rounded(found.rate),
        "pairs": found.pairs,
        "same_answers": found.same_answers,
        "a": _side_json(found.a, found.length.before.mean, found.speed[0] if found.speed else None),
        "b": _side_json(found.b, found.length.after.mean, found.speed[1] if found.speed else None),
        "per_position": [
            {
                "position": one.position,
                "a": rounded(one.before),
                "b": rounded(one.after),
                "change_ci": _interval(one.difference) if one.difference else None,
                "p": one.difference.p if one.difference else None,
            }
            for one in found.per_position
        ],
        "notes": list(found.notes),
    }


def _side_json(report: ServerReport, length: float, speed: float | None) -> dict[str, Any]:
    return {
        "path": report.path,
        "engine": str(report.engine) if report.engine else None,
        "accept_length": rounded(length),
        "accept_rate": rounded(report.accept_rate),
        "draft_tokens": report.draft_tokens,
        "signature": report.signature.name,
        "rows": len(report.table["lines"]),
        "tokens_per_second": rounded(speed),
    }


def _interval(difference: Difference) -> list[float | None] | None:
    if not math.isfinite(difference.low):
        return None
    return [rounded(difference.low), rounded(difference.high)]


_SAYS = {
    BETTER: "B is better than A",
    WORSE: "B is worse than A",
    NO_DIFFERENCE: "no difference between A and B is shown",
    UNKNOWN: "whether B differs from A cannot be told",
}


def says(found: Comparison) -> str:
    """The verdict in one sentence, with the change, its interval and how sure it is."""
    change = found.length
    text = _SAYS[found.verdict]
    if found.verdict == UNKNOWN:
        return f"{text}: one measurement has no spread ({change.change:+.2f} tokens a verify step)"
    text += (
        f": {change.change:+.3f} tokens a verify step, 95 % interval {change.low:+.3f} to {change.high:+.3f}"
    )
    if found.verdict == NO_DIFFERENCE:
        return f"{text}; a change of {found.resolution or 0:.2f} would have shown"
    return f"{text}, {_percent(found.sure or 0)} sure"


def _percent(sure: float) -> str:
    return "more than 99.9 %" if sure > 0.999 else f"{sure:.1%}"


def comparison_text(found: Comparison) -> str:
    """The comparison in full."""
    out = [says(found)]
    for name, side, length in (
        ("A", found.a, found.length.before.mean),
        ("B", found.b, found.length.after.mean),
    ):
        out.append(f"  {name}            {_side(side, length)}")
    if found.pairs:
        out.append(f"  judged       prompt by prompt, {count(found.pairs, 'prompt')} that both answered")
    else:
        rows = f"{len(found.a.table['lines'])} and {len(found.b.table['lines'])} rows"
        out.append(f"  judged       as independent runs, {rows}")
    if found.rate is not None:
        out.append(f"  true rate    {found.rate * 100:+.1f} percentage points of the drafts")
    for one in found.per_position:
        text = f"{one.before:.1%} to {one.after:.1%} of the steps"
        if one.difference is not None and math.isfinite(one.difference.low):
            low, high = one.difference.low * 100, one.difference.high * 100
            text += f" ({low:+.1f} to {high:+.1f} points)"
        out.append(f"  position {one.position:<3} {text}")
    if found.same_answers is not None:
        out.append(f"  answers      the same tokens in {found.same_answers} of {found.pairs}")
    if found.speed is not None:
        before, after = found.speed
        out.append(f"  speed        {before:.1f} to {after:.1f} tokens a second, all requests together")
    out += [f"  note         {printable(note)}" for note in found.notes]
    return "\n".join(out) + "\n"


def _side(report: ServerReport, length: float) -> str:
    rate = f", {report.accept_rate:.1%} of the drafts" if report.accept_rate is not None else ""
    return f"{length:.3f} tokens a verify step{rate}, {report.signature.name}: {printable(report.path)}"
