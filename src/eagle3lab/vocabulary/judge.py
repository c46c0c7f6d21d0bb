"""The verdict on a token map: which reading is the intended one, by proof where there is one.

An engine can use a map or it cannot, and that is arithmetic. Why a map that cannot be used is wrong is a
proof (t2d), an exclusion with a likelihood, or left open. A map that can be used is accused only against a
proof; a likelihood, however strong, makes it undecided at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.readings import (
    Ids,
    Reading,
    log10_choose,
    looks_subtracted_twice,
    mostly_ascending,
    surprise,
)
from eagle3lab.vocabulary.report import Repair

DOUBT = 6.0
"""log10 of the odds from which a usable map is doubted: fewer than one drawn map in a million is, wrongly."""
CAUSE = 3.0
"""log10 of the odds from which an unusable map's cause is named."""
PADDING = 0.05
"""Share of a vocabulary that may be padding without tokens (0.3 % in models known; generous on purpose)."""

_KIND = (MapKind.ABSOLUTE, MapKind.OFFSETS, MapKind.DOUBLE_OFFSET)
_FORMULA = ("d2t itself", "d2t + arange", "d2t + 2·arange")
_UNDO = (
    "subtracting arange once gives the offsets",
    "nothing needs to be done",
    "adding arange once gives the offsets back",
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its grounds; the fields are those of `TokenMapReport`."""

    kind: MapKind
    confidence: float
    evidence: tuple[str, ...]
    open_questions: tuple[str, ...] = ()
    repair: Repair | None = None


def judge(readings: tuple[Reading, Reading, Reading], vocab_size: int, marked: Ids | None) -> Judgement:
    """Decide between the three readings of a d2t of integers.

    Args:
        readings: d2t read with 0, 1 and 2 times arange.
        vocab_size: V of the target.
        marked: The ascending ids that t2d marks (perhaps none), or None without t2d.
    """
    absolute, offsets, doubled = readings
    if not absolute.ids.any() and absolute.ids.size <= vocab_size:
        return _judge_zeros(absolute.ids.size, vocab_size, marked)
    if marked is not None and marked.size:
        # With a single row the three readings are the same; the engine's is named then.
        proven = next((r for r in (offsets, absolute, doubled) if r.matches_t2d and r.possible), None)
        if proven is not None:
            return _judge_proven(proven, offsets, vocab_size)
        if offsets.possible:
            return _judge_disagreement(readings, vocab_size, marked)
    if offsets.possible:
        return _judge_usable(readings, marked)
    return _judge_unusable(readings, vocab_size, marked)


def offsets_of(ids: Ids) -> Ids:
    """int64 [n]: the offsets that stand for `ids`."""
    return ids - np.arange(ids.size, dtype=np.int64)


def engine_facts(offsets: Reading, vocab_size: int) -> tuple[str, ...]:
    """What is wrong with the ids an engine computes: one sentence for each way, empty if nothing is."""
    facts, n = [], offsets.ids.size
    if offsets.first_outside is not None:
        row = offsets.first_outside
        token = int(offsets.ids[row])
        limit = f"{token:,} < 0" if token < 0 else f"{token:,} ≥ {vocab_size:,}"
        facts.append(
            f"d2t + arange leaves the vocabulary at {offsets.outside:,} of {n:,} rows, "
            f"first at draft id {row:,}: {limit}"
        )
    if offsets.first_repeat is not None:
        row = offsets.first_repeat
        facts.append(
            f"d2t + arange repeats an earlier id at {offsets.repeats:,} of {n:,} rows, "
            f"first at draft id {row:,}: {int(offsets.ids[row]):,}"
        )
    return tuple(facts)


def _judge_zeros(n: int, vocab_size: int, marked: Ids | None) -> Judgement:
    fact = f"d2t is zero at all {n:,} rows, so draft ids are taken for target ids 0 … {n - 1:,}"
    if n == vocab_size:
        return Judgement(
            MapKind.ZERO_BY_RIGHT,
            1.0,
            (fact, f"draft and target vocabulary both have {n:,} tokens: the identity is right"),
        )
    evidence = [fact, f"the target has {vocab_size:,} tokens"]
    first_rows = np.arange(n, dtype=np.int64)
    if marked is not None and not np.array_equal(marked, first_rows):
        if marked.size == 0:
            evidence.append("t2d marks no token: both are as the constructor left them")
            return Judgement(MapKind.ZERO_BY_MISTAKE, 1.0, tuple(evidence))
        elsewhere = int(np.count_nonzero(marked >= n))
        evidence.append(
            f"t2d marks {marked.size:,} tokens, {elsewhere:,} of them beyond the first {n:,}: "
            "another draft vocabulary"
        )
        return Judgement(
            MapKind.ZERO_BY_MISTAKE,
            1.0,
            tuple(evidence),
            repair=ascending_repair(marked) if marked.size == n else None,
        )
    if marked is not None:
        evidence.append(f"t2d marks the first {n:,} tokens too, which is what a constructor fills in")
    sets = log10_choose(vocab_size, n)
    if sets < DOUBT or vocab_size - n <= PADDING * vocab_size:
        return Judgement(
            MapKind.UNDECIDED,
            0.5,
            tuple(evidence),
            (f"whether the first {n:,} tokens are the intended ones (the rest may be padding)",),
        )
    evidence.append(
        f"a draft vocabulary chosen by frequency is one of 10^{sets:,.0f} sets; this is the first one"
    )
    return Judgement(MapKind.ZERO_BY_MISTAKE, 0.95, tuple(evidence))


def _judge_proven(proven: Reading, offsets: Reading, vocab_size: int) -> Judgement:
    n, k = proven.ids.size, proven.multiple
    evidence = [f"{_FORMULA[k]}, read as ids, is exactly the set of {n:,} tokens that t2d marks"]
    if n > 1:
        evidence.append(
            f"the sums of the three readings differ by {n * (n - 1) // 2:,}, so no other one can be that set"
        )
    if k == 1:
        order = (
            ()
            if proven.ascending
            else ("whether each row of the head is the token d2t gives it: t2d fixes the set, not the order",)
        )
        return Judgement(MapKind.OFFSETS, 1.0, tuple(evidence), order)
    repair = Repair(offsets_of(proven.ids), True, f"{_UNDO[k]}, and with them exactly the tokens of t2d")
    return Judgement(_KIND[k], 1.0, (*evidence, *engine_facts(offsets, vocab_size)), repair=repair)


def _judge_disagreement(
    readings: tuple[Reading, Reading, Reading], vocab_size: int, marked: Ids
) -> Judgement:
    absolute, offsets, _ = readings
    n, shared = offsets.ids.size, offsets.marked or 0
    by_chance = n * marked.size / vocab_size
    evidence = [
        f"d2t + arange gives {n:,} distinct tokens and t2d marks {marked.size:,}; {shared:,} are in both",
        f"two unrelated draft vocabularies of these sizes would share about {by_chance:,.0f}",
    ]
    if n > 1 and np.array_equal(absolute.ids, np.arange(n)):
        evidence.append("d2t is 0, 1, 2, …: an identity stored as ids, or a vocabulary of every second token")
    if n != marked.size:
        evidence.append(f"t2d has {marked.size:,} marks for {n:,} rows")
    return Judgement(
        MapKind.DISAGREES_WITH_T2D,
        1.0,
        tuple(evidence),
        ("which of the two the head was trained with: comparing its rows with the target's head can tell",),
    )


def _judge_usable(readings: tuple[Reading, Reading, Reading], marked: Ids | None) -> Judgement:
    absolute, offsets, doubled = readings
    n = offsets.ids.size
    evidence = [f"d2t + arange gives {n:,} distinct ids, all inside the vocabulary"]
    if marked is not None:
        evidence.append("t2d marks no token, so it says nothing about d2t")
    no_proof = "without t2d nothing in the file proves which tokens the rows stand for"
    if absolute.possible and offsets.ascending and (odds := surprise(offsets, 0)) >= DOUBT:
        evidence.append(
            f"but no two of the {n:,} ids are neighbours, as in one drawn vocabulary of 10^{odds:,.0f}; "
            "read as absolute ids, d2t is distinct and inside the vocabulary too"
        )
        repair = Repair(
            offsets_of(absolute.ids), False, "right if d2t holds absolute ids, which is likely, not proven"
        )
        question = (
            "whether d2t holds absolute ids or offsets of a vocabulary made on purpose without neighbours"
        )
        return Judgement(MapKind.UNDECIDED, 0.5, tuple(evidence), (question, no_proof), repair)
    others = [r for r in (absolute, doubled) if r.possible]
    if not others:
        evidence.append("read as absolute ids or doubly offset, it leaves the vocabulary or repeats ids")
        return Judgement(MapKind.OFFSETS, 0.99, tuple(evidence), (no_proof,))
    if others == [doubled] and offsets.ascending and (odds := surprise(doubled, 1)) >= DOUBT:
        evidence.append(
            f"read doubly offset, no two ids are neighbours, as in one drawn vocabulary of 10^{odds:,.0f}"
        )
        return Judgement(MapKind.OFFSETS, 0.97, tuple(evidence), (no_proof,))
    names = " and ".join(r.name for r in others)
    evidence.append("offsets are what every trainer writes")
    return Judgement(
        MapKind.OFFSETS,
        0.8,
        tuple(evidence),
        (f"the numbers fit {names} as well, and the map is too small to tell", no_proof),
    )


def _judge_unusable(
    readings: tuple[Reading, Reading, Reading], vocab_size: int, marked: Ids | None
) -> Judgement:
    absolute, offsets, doubled = readings
    facts = engine_facts(offsets, vocab_size)
    kind = MapKind.OUT_OF_RANGE if offsets.outside else MapKind.REPEATING
    candidates = [r for r in (absolute, doubled) if r.possible]
    notes: list[str] = []
    if marked is not None:
        notes.append(f"t2d marks {marked.size:,} tokens and fits none of the three readings")
    if not candidates:
        notes.append(
            "read as absolute ids or doubly offset, d2t leaves the vocabulary or repeats ids as well"
        )
        return Judgement(kind, 1.0, (*facts, *notes), repair=_mended(offsets, marked))
    if len(candidates) == 1:
        reading = candidates[0]
        confidence = _cause_confidence(reading, offsets) * (1.0 if marked is None else 0.8)
        if confidence:
            n, formula = reading.ids.size, _FORMULA[reading.multiple]
            cause = f"{formula} is distinct and inside the vocabulary at all {n:,} rows"
            repair = Repair(
                offsets_of(reading.ids),
                False,
                f"{_UNDO[reading.multiple]}, if the only usable reading is the intended one",
            )
            return Judgement(_KIND[reading.multiple], confidence, (cause, *facts, *notes), repair=repair)
    names = " and ".join(r.name for r in candidates)
    return Judgement(
        kind,
        1.0,
        (*facts, *notes),
        (f"why: d2t would be usable read as {names}, which may be chance",),
        _mended(offsets, marked),
    )


def _cause_confidence(candidate: Reading, offsets: Reading) -> float:
    """How sure it is that `candidate` is usable for a reason, not by chance from damaged offsets; 0: open."""
    if candidate.multiple == 2 and mostly_ascending(offsets.ids):
        # Adding arange to sorted ids always makes them distinct: that alone says nothing.
        return 0.9 if looks_subtracted_twice(offsets.ids) else 0.0
    odds = surprise(offsets, candidate.multiple)
    return min(0.98, 1 - 10**-odds) if odds >= CAUSE else 0.0


def ascending_repair(marked: Ids) -> Repair:
    """The offsets for `marked`, if rows are in ascending order of target id."""
    return Repair(
        offsets_of(marked),
        False,
        "nonzero(t2d) − arange: right if the head's rows are in ascending order of id, as trainers other "
        "than Model-Optimizer write them",
    )


def _mended(offsets: Reading, marked: Ids | None) -> Repair | None:
    """The ascending repair, where most of a damaged map agrees with it."""
    if marked is None or marked.size != offsets.ids.size:
        return None
    agreeing = int(np.count_nonzero(offsets.ids == marked))
    if agreeing < marked.size / 2:
        return None
    repair = ascending_repair(marked)
    return Repair(
        repair.offsets, False, f"{repair.reason}; d2t agrees with it at {agreeing:,} of {marked.size:,} rows"
    )
