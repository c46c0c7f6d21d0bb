"""The draft-to-target token map: analysed from arrays, and read from a drafter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3lab.vocabulary.judge import Judgement, ascending_repair, judge
from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.readings import Ids, Reading, read_as, round_through
from eagle3lab.vocabulary.report import Repair, T2dComparison, TokenMapReport

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
