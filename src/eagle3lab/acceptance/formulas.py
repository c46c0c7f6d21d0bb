"""What a printed accept rate means: the formula of each release, and conversions between the numbers.

The same drafter prints 0.25 for "nothing accepted" in one release and for "a quarter of the drafts" in another.
The ranges are data (`formulas.toml`). Where no release is known, a line often decides by itself: with the accept
length L and the rate R both printed to two decimals, few pairs (formula, D) can have produced them.

Symbols: L accept length (bonus included, >= 1), R printed accept rate, D draft tokens of a verify step (the root
included), `steps` draft steps, true rate = accepted drafts / proposed drafts = (L - 1) / (D - 1).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eagle3lab.engines.release import Release, nearest_known, releases, store

NONE = "none"
LEN_STEPS1 = "len/(steps+1)"
LEN_D = "len/D"
DRAFTS = "(len-1)/(D-1)"
LEN_STEPS = "len/steps"
ACCEPTED = "accepted/drafted"

HALF_CENT = 0.005
"""Largest rounding error of a number printed with two decimals."""

LARGEST_D = 64
"""Draft tokens tried when D is unknown: SGLang's largest default tree has 64."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A formula and the draft tokens that reproduce the printed pairs; `share` of the lines they reproduce."""

    formula: str
    draft_tokens: int
    share: float


@dataclass(frozen=True, slots=True)
class Reading:
    """How the printed rate is to be read.

    formula: a key of `formulas.toml`, or None when more than one fits.
    draft_tokens: D, or None when neither given nor decided by the lines.
    basis: "release", "lines" or "none": what decided the formula.
    confidence: 0 to 1 that formula and D are right.
    note: one sentence saying how it was decided, or what remains open.
    """

    formula: str | None
    draft_tokens: int | None
    basis: str
    confidence: float
    note: str


@cache
def _data() -> dict[str, object]:
    return tomllib.loads(Path(__file__).with_name("formulas.toml").read_text("utf-8"))


@cache
def formula_texts() -> dict[str, str]:
    """Formula name to its definition in words."""
    table = _data()["formula"]
    assert isinstance(table, dict)
    return {name: row["text"] for name, row in table.items()}


def formula_of(release: Release) -> str | None:
    """The formula of a release's printed accept rate; None when the release does not decide it.

    SGLang's is read from its sources (the atlas), that of another engine is written in `releases.toml`. A
    release of SGLang that is older than the atlas prints none.
    """
    if not release.simulated:
        rows = store()["other"]
        return next((row.get("formula") for row in rows if row["engine"] == release.kind), None)
    if release.kind == "vllm":  # its facts have the rate of one verify step, (len-1)/(D-1): the same number
        return ACCEPTED
    if release.version is None:
        return None
    from eagle3lab.engines.atlas.data import release_facts

    known = nearest_known(release)
    facts = release_facts(known.number).acceptance if known is not None else None
    return NONE if known is None else facts.rate_key if facts is not None else None


def formula_ranges() -> tuple[tuple[str, str, str], ...]:
    """SGLang's releases by formula, oldest first: the first release, the last, and the formula of all between them."""
    ranges: list[tuple[str, str, str]] = []
    for number in releases():
        formula = formula_of(Release("sglang", number)) or NONE
        if ranges and ranges[-1][2] == formula:
            ranges[-1] = (ranges[-1][0], number, formula)
        else:
            ranges.append((number, number, formula))
    return tuple(ranges)


def printed_rate(formula: str, length: float, draft_tokens: int, steps: int | None = None) -> float:
    """The rate a release with this formula prints for accept length `length`."""
    steps = draft_tokens - 1 if steps is None else steps
    if formula == LEN_D:
        return length / draft_tokens
    if formula == LEN_STEPS1:
        return length / (steps + 1)
    if formula == LEN_STEPS:
        return length / steps
    if formula in (DRAFTS, ACCEPTED):
        return (length - 1) / (draft_tokens - 1)
    raise ValueError(f"no rate is printed under {formula}")


def true_rate(length: float, draft_tokens: int) -> float:
    """Accepted drafts over proposed drafts, from the accept length; D must be at least 2."""
    return (length - 1) / (draft_tokens - 1)


def length_of(formula: str, rate: float, draft_tokens: int, steps: int | None = None) -> float:
    """The accept length that prints `rate`: the inverse of `printed_rate`."""
    steps = draft_tokens - 1 if steps is None else steps
    if formula == LEN_D:
        return rate * draft_tokens
    if formula == LEN_STEPS1:
        return rate * (steps + 1)
    if formula == LEN_STEPS:
        return rate * steps
    if formula in (DRAFTS, ACCEPTED):
        return 1 + rate * (draft_tokens - 1)
    raise ValueError(f"no rate is printed under {formula}")


def consistent(formula: str, length: float, rate: float, draft_tokens: int, steps: int | None = None) -> bool:
    """Whether a pair printed with two decimals can come from `formula` at D, rounding allowed for."""
    low = printed_rate(formula, length - HALF_CENT, draft_tokens, steps)
    high = printed_rate(formula, length + HALF_CENT, draft_tokens, steps)
    slack = 1e-9  # touching at the very edge of both roundings is no agreement
    return low - HALF_CENT + slack < rate < high + HALF_CENT - slack


REQUIRED_SHARE = 0.98
"""Share of the lines a pair (formula, D) must reproduce: a few lines may be damaged, a wrong formula misses most."""


def candidates(
    pairs: Mapping[tuple[float, float], int],
    formulas: Iterable[str],
    draft_tokens: int | None = None,
    steps: int | None = None,
) -> tuple[Candidate, ...]:
    """Every (formula, D) that reproduces at least `REQUIRED_SHARE` of the printed (length, rate) pairs.

    Args:
        pairs: printed (accept length, accept rate) to the number of lines that print them.
        formulas: the formulas to try.
        draft_tokens: D when known; otherwise 2 to `LARGEST_D` are tried.
        steps: draft steps when known and not D - 1 (a tree).
    """
    total = sum(pairs.values())
    if not total:
        return ()
    tried = [draft_tokens] if draft_tokens else range(2, LARGEST_D + 1)
    longest = max(length for length, _ in pairs)
    found = []
    for formula in formulas:
        for d in tried:
            if longest > (d if steps is None else steps + 1) + HALF_CENT:
                continue  # a verify step cannot yield more tokens than that
            missed, allowed = 0, total * (1 - REQUIRED_SHARE)
            for (length, rate), count in pairs.items():
                if not consistent(formula, length, rate, d, steps):
                    missed += count
                    if missed > allowed:
                        break
            else:
                found.append(Candidate(formula, d, 1 - missed / total))
    return tuple(found)


def interpret(
    pairs: Mapping[tuple[float, float], int],
    release: Release | None,
    draft_tokens: int | None = None,
    steps: int | None = None,
) -> Reading:
    """Decide formula and D for lines that print a rate.

    The release decides where it is known, and the lines are held against it; otherwise the lines decide alone.
    Without a release `len/D` stands for both bonus-included formulas: they print the same for a chain.

    Args:
        pairs: printed (accept length, accept rate) to number of lines; empty when no rate is printed.
        release: the engine, when known.
        draft_tokens: D when known.
        steps: draft steps when known.
    """
    if draft_tokens is None and steps is not None:
        draft_tokens = steps + 1
    stated = formula_of(release) if release else None
    if not pairs:
        if stated not in (None, NONE):
            return Reading(
                stated, draft_tokens, "release", 0.95, f"{release} uses {stated}; no line prints a rate"
            )
        return Reading(NONE, draft_tokens, "none", 1.0, "the lines print no rate")
    tree_steps = (
        steps if steps is not None and draft_tokens is not None and steps + 1 != draft_tokens else None
    )
    if stated not in (None, NONE):
        assert stated is not None
        fits = candidates(pairs, [stated], draft_tokens, tree_steps)
        if fits:
            return Reading(
                stated, _one_d(fits), "release", 0.99, f"{release} uses {stated}, and the lines agree"
            )
        if draft_tokens and (fits := candidates(pairs, [stated])):
            found = ", ".join(str(c.draft_tokens) for c in fits)
            return Reading(
                stated, _one_d(fits), "release", 0.8,
                f"{release} uses {stated}; the lines fit draft tokens {found}, not the {draft_tokens} given",
            )  # fmt: skip
    return _from_lines(pairs, release, stated, draft_tokens, tree_steps)


def _from_lines(
    pairs: Mapping[tuple[float, float], int],
    release: Release | None,
    stated: str | None,
    draft_tokens: int | None,
    tree_steps: int | None,
) -> Reading:
    tried = [LEN_D, DRAFTS] if tree_steps is None else [LEN_STEPS1, LEN_D, DRAFTS]
    fits = candidates(pairs, tried, draft_tokens, tree_steps)
    against = (
        f"{release} uses {stated}, but the lines do not follow it; " if stated not in (None, NONE) else ""
    )
    if not fits:
        return Reading(
            None, draft_tokens, "none", 0.0, f"{against}no known formula reproduces the printed rates"
        )
    names = sorted({fit.formula for fit in fits})
    if len(names) > 1:
        readings = "; ".join(f"{fit.formula} with D={fit.draft_tokens}" for fit in fits[:4])
        return Reading(
            None, draft_tokens, "none", 0.0,
            f"{against}the rate can be read in more than one way: {readings}. Give the release or the draft tokens",
        )  # fmt: skip
    d = _one_d(fits)
    certain = 0.97 if sum(pairs.values()) > 1 or len(fits) == 1 else 0.9
    return Reading(
        names[0], d, "lines", 0.7 if against else certain,
        f"{against}only {_also(names[0])} reproduces the printed rates" + (f" (D={d})" if d else ""),
    )  # fmt: skip


def _also(formula: str) -> str:
    return f"{LEN_D} (for a chain the same as {LEN_STEPS1})" if formula == LEN_D else formula


def _one_d(fits: tuple[Candidate, ...]) -> int | None:
    values = {fit.draft_tokens for fit in fits}
    return values.pop() if len(values) == 1 else None
