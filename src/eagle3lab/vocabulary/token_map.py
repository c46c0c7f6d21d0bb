"""The draft-to-target token map: what a d2t holds, which reading of it is the intended one, and how sure that is.

An engine can use a map or it cannot, and that is arithmetic. Why a map that cannot be used is wrong is a
proof (t2d), an exclusion with a likelihood, or left open. A map that can be used is accused only against a
proof; a likelihood, however strong, makes it undecided at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.readings import (
    Ids,
    Reading,
    log10_choose,
    looks_subtracted_twice,
    mostly_ascending,
    read_as,
    round_through,
    surprise,
)


@dataclass(frozen=True, slots=True)
class T2dComparison:
    """The ids an engine computes beside the tokens that t2d marks.

    Attributes:
        length: Entries of t2d; the target's vocabulary size if the two belong together.
        marked: How many tokens t2d marks.
        shared: Distinct engine ids that t2d marks.
        only_in_map: Distinct engine ids that t2d does not mark.
        only_in_t2d: Marked tokens that no row of the head stands for.
        same_order: Whether nonzero(t2d) equals d2t + arange entry by entry, as it does for a sorted map.
    """

    length: int
    marked: int
    shared: int
    only_in_map: int
    only_in_t2d: int
    same_order: bool

    @property
    def same_set(self) -> bool:
        """Whether the two describe the same draft vocabulary."""
        return self.only_in_map == 0 and self.only_in_t2d == 0


@dataclass(frozen=True, slots=True)
class Repair:
    """The offsets that d2t should have held.

    Attributes:
        offsets: int64 [D].
        proven: True if t2d leaves no other set of tokens; False if the offsets rest on a likelihood or on the
            assumption that rows are in ascending order of target id.
        reason: Why these, in one sentence.
    """

    offsets: Ids = field(repr=False, compare=False)
    proven: bool
    reason: str


@dataclass(frozen=True, slots=True)
class TokenMapReport:
    """What is known of a drafter's token map, and why.

    Attributes:
        kind: The verdict on the map as stored.
        confidence: 0–1. 1 for arithmetic facts and proofs against t2d; see `analyse_token_map`.
        evidence: Sentences with numbers, the deciding ones first.
        open_questions: What the file cannot tell.
        vocab_size: V, tokens of the target.
        draft_vocab_size: D, rows the drafter's head should have.
        d2t_dtype: Stored dtype of d2t in safetensors' notation, or None without d2t.
        entries: Entries of d2t, or None without d2t.
        hot_token_id: int64 [entries], the ids an engine computes (d2t + arange); None without d2t or where
            the sum is no vector of integers.
        sorted_rows: Whether `hot_token_id` ascends strictly; None without it.
        readings: d2t as absolute ids, offsets, doubly offset; empty where d2t is no vector of numbers.
        t2d: The comparison with t2d, or None if either is missing.
        repair: What d2t should have held, where that can be said.
    """

    kind: MapKind
    confidence: float
    evidence: tuple[str, ...]
    open_questions: tuple[str, ...]
    vocab_size: int
    draft_vocab_size: int
    d2t_dtype: str | None
    entries: int | None
    hot_token_id: Ids | None = field(repr=False, compare=False)
    sorted_rows: bool | None
    readings: tuple[Reading, ...]
    t2d: T2dComparison | None
    repair: Repair | None

    @property
    def engine_reading(self) -> Reading | None:
        """d2t as engines read it: the offsets reading, with how many ids fall outside and how many repeat."""
        return self.readings[1] if self.readings else None

    @property
    def fault(self) -> str | None:
        """The fault slug of `kind`, or None."""
        return self.kind.fault


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


_FLOATS = ("BF16", "F16", "F32", "F64")
_NUMPY_NAMES = {"float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL"}


def analyse_token_map(
    d2t: NDArray[Any] | None,
    t2d: NDArray[Any] | None,
    vocab_size: int,
    draft_vocab_size: int | None = None,
    lm_head_rows: int | None = None,
    d2t_dtype: str | None = None,
) -> TokenMapReport:
    """Say what a drafter's `d2t` holds and whether engines get the intended tokens from it.

    Engines compute `hot_token_id = d2t + arange(len(d2t))` and read nothing else (SGLang 0.4.6 to 0.5.23,
    `models/llama_eagle3.py` load_weights; vLLM and TensorRT-LLM likewise); t2d is a witness for us. The
    mathematics is in `eagle3lab.vocabulary.readings`. How sure a verdict is:

    ==========  =====================================================================================
    confidence  ground
    ==========  =====================================================================================
    1.0         arithmetic (a length, a dtype, ids out of range or repeated), or a proof against t2d
    0.97–0.99   the only usable reading; another would fit fewer than one drawn map in a million
    0.95        an all-zero map of a reduced vocabulary, with nothing to compare it with
    0.9–0.98    the cause of an unusable map, by exclusion; 0.72–0.79 where t2d supports no reading
    0.8         several usable readings, and the convention decides
    0.5         undecided
    ==========  =====================================================================================

    A map that engines can use and that t2d does not contradict is never called absolute, doubly offset, out
    of range or repeating.

    Args:
        d2t: [D] of any dtype, or None. bfloat16 must come widened to float32.
        t2d: [V] bool (any dtype; non-zero marks a token), or None.
        vocab_size: V of the target, ≥ 1.
        draft_vocab_size: D of the config; None takes d2t's length, else lm_head's rows, else V.
        lm_head_rows: Rows of lm_head.weight, for the evidence.
        d2t_dtype: Stored dtype in safetensors' notation ("I64", "BF16", …); None takes the array's own.

    Raises:
        ValueError: `vocab_size` or `draft_vocab_size` is not positive.
    """
    if vocab_size < 1 or (draft_vocab_size is not None and draft_vocab_size < 1):
        raise ValueError("vocabulary sizes must be positive")
    marks = None if t2d is None else np.asarray(t2d).reshape(-1)
    marked = None if marks is None else np.flatnonzero(marks).astype(np.int64)
    if d2t is None:
        rows = next(size for size in (draft_vocab_size, lm_head_rows, vocab_size) if size is not None)
        return _without_map(rows, vocab_size, marked, lm_head_rows)

    d2t = np.asarray(d2t)
    rows = draft_vocab_size if draft_vocab_size is not None else d2t.size
    dtype = d2t_dtype or _NUMPY_NAMES.get(d2t.dtype.name, f"{d2t.dtype.kind.upper()}{8 * d2t.itemsize}")
    if d2t.ndim != 1 or d2t.size == 0:
        shape = list(d2t.shape)
        judgement = Judgement(MapKind.WRONG_LENGTH, 1.0, (f"d2t has shape {shape}, expected [{rows}]",))
        return _report(judgement, vocab_size, rows, dtype, d2t.size, None, (), None)

    integer = dtype[0] in "IU" and d2t.dtype.kind in "iu"
    whole, unusual = _as_integers(d2t)
    readings = (
        read_as(whole, 0, vocab_size, marked),
        read_as(whole, 1, vocab_size, marked),
        read_as(whole, 2, vocab_size, marked),
    )
    judgement = judge(readings, vocab_size, marked)
    if d2t.size != rows:
        judgement = _wrong_length(judgement, d2t.size, rows, lm_head_rows)
    elif not integer:
        judgement = _wrong_dtype(judgement, d2t, dtype, unusual, marked)
    else:
        judgement = _with_notes(judgement, _side_notes(rows, vocab_size, lm_head_rows, marks))
    comparison = None if marks is None else _compare(readings[1], marks)
    hot = readings[1].ids if integer else None
    return _report(judgement, vocab_size, rows, dtype, d2t.size, hot, readings, comparison)


def _report(
    judgement: Judgement,
    vocab_size: int,
    rows: int,
    dtype: str | None,
    entries: int | None,
    hot: Ids | None,
    readings: tuple[Reading, ...],
    comparison: T2dComparison | None,
) -> TokenMapReport:
    return TokenMapReport(
        kind=judgement.kind,
        confidence=judgement.confidence,
        evidence=judgement.evidence,
        open_questions=judgement.open_questions,
        vocab_size=vocab_size,
        draft_vocab_size=rows,
        d2t_dtype=dtype,
        entries=entries,
        hot_token_id=hot,
        sorted_rows=None if hot is None else readings[1].ascending,
        readings=readings,
        t2d=comparison,
        repair=judgement.repair,
    )


def _without_map(rows: int, vocab_size: int, marked: Ids | None, lm_head_rows: int | None) -> TokenMapReport:
    if rows == vocab_size:
        kind, repair = MapKind.NOT_NEEDED, None
        evidence = [f"there is no d2t, and draft and target vocabulary both have {vocab_size:,} tokens"]
    else:
        kind = MapKind.MISSING
        repair = ascending_repair(marked) if marked is not None and marked.size == rows else None
        evidence = [
            f"there is no d2t, and the draft vocabulary has {rows:,} tokens, the target {vocab_size:,}",
            f"without it draft ids are taken for target ids 0 … {rows - 1:,}",
        ]
        if marked is not None:
            evidence.append(f"t2d marks {marked.size:,} tokens: a map existed and was not saved")
    if lm_head_rows is not None and lm_head_rows != rows:
        evidence.append(f"lm_head has {lm_head_rows:,} rows")
    judgement = Judgement(kind, 1.0, tuple(evidence), (), repair)
    return _report(judgement, vocab_size, rows, None, None, None, (), None)


def _as_integers(d2t: NDArray[Any]) -> tuple[NDArray[np.integer[Any]], int]:
    """The entries rounded to integers, and how many were not integers (NaN and infinities included)."""
    if d2t.dtype.kind in "iu":
        return d2t, 0
    values = d2t.astype(np.float64)
    unusual = int(np.count_nonzero(~np.isfinite(values) | (values != np.rint(values))))
    # Beyond 2^62 no vocabulary reaches; a NaN becomes an id that is certainly outside.
    return np.clip(np.nan_to_num(np.rint(values), nan=-(2.0**62)), -(2.0**62), 2.0**62).astype(
        np.int64
    ), unusual


def _wrong_length(judgement: Judgement, entries: int, rows: int, lm_head_rows: int | None) -> Judgement:
    evidence = [f"d2t has {entries:,} entries, the config's draft vocabulary {rows:,}"]
    if lm_head_rows is not None:
        side = {entries: "as many as d2t has entries", rows: "as the config says"}.get(
            lm_head_rows, "like neither"
        )
        evidence.append(f"lm_head has {lm_head_rows:,} rows, {side}")
    evidence.append(f"the {entries:,} entries by themselves: {judgement.kind.meaning}")
    return Judgement(MapKind.WRONG_LENGTH, 1.0, (*evidence, *judgement.evidence), judgement.open_questions)


def _wrong_dtype(
    judgement: Judgement, d2t: NDArray[Any], dtype: str, unusual: int, marked: Ids | None
) -> Judgement:
    evidence = [f"d2t is stored as {dtype}, where engines index with integers"]
    if unusual:
        evidence.append(f"{unusual:,} of {d2t.size:,} entries are not whole numbers")
    exact = {"BF16": 256, "F16": 2048}.get(dtype)
    rounded = 0 if exact is None else int(np.count_nonzero(np.abs(d2t.astype(np.float64)) > exact))
    if rounded:
        evidence.append(
            f"{rounded:,} of {d2t.size:,} entries are beyond ±{exact:,}, where {dtype} skips whole numbers"
        )
    if dtype in _FLOATS and marked is not None and marked.size == d2t.size:
        candidate = ascending_repair(marked)
        if np.array_equal(round_through(candidate.offsets.astype(np.float64), dtype), d2t.astype(np.float64)):
            evidence.append(
                f"nonzero(t2d) − arange, stored as {dtype}, gives every entry exactly as it stands"
            )
            repair = Repair(
                candidate.offsets, True, "nonzero(t2d) − arange: the same numbers before the cast"
            )
            return Judgement(MapKind.WRONG_DTYPE, 1.0, tuple(evidence), repair=repair)
    evidence.append(f"taken as whole numbers: {judgement.kind.meaning}")
    if rounded:
        return Judgement(
            MapKind.WRONG_DTYPE,
            1.0,
            (*evidence, *judgement.evidence),
            ("what the rounded entries were before the cast",),
        )
    return Judgement(
        MapKind.WRONG_DTYPE, 1.0, (*evidence, *judgement.evidence), judgement.open_questions, judgement.repair
    )


def _side_notes(
    rows: int, vocab_size: int, lm_head_rows: int | None, marks: NDArray[Any] | None
) -> tuple[str, ...]:
    notes = []
    if lm_head_rows is not None and lm_head_rows != rows:
        notes.append(f"lm_head has {lm_head_rows:,} rows for {rows:,} entries of d2t")
    if marks is not None and marks.size != vocab_size:
        notes.append(f"t2d has {marks.size:,} entries where the target has {vocab_size:,} tokens")
    return tuple(notes)


def _with_notes(judgement: Judgement, notes: tuple[str, ...]) -> Judgement:
    return Judgement(
        judgement.kind,
        judgement.confidence,
        (*judgement.evidence, *notes),
        judgement.open_questions,
        judgement.repair,
    )


def _compare(offsets: Reading, marks: NDArray[Any]) -> T2dComparison:
    marked = np.flatnonzero(marks)
    distinct = np.unique(offsets.ids)
    shared = int(np.isin(distinct, marked, assume_unique=True).sum())
    return T2dComparison(
        length=int(marks.size),
        marked=int(marked.size),
        shared=shared,
        only_in_map=int(distinct.size) - shared,
        only_in_t2d=int(marked.size) - shared,
        same_order=bool(np.array_equal(marked, offsets.ids)),
    )
