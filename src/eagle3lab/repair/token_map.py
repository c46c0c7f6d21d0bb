"""d2t back to offsets of integers, where t2d, the only usable reading or the target's rows prove what it was."""

from __future__ import annotations

import sys
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.repair.model import Change, Refusal, TensorValue

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, TensorInfo
    from eagle3lab.repair.working_copy import WorkingCopy
    from eagle3lab.vocabulary import TokenMap, TokenMapReport
    from eagle3lab.vocabulary.readings import Ids

# Largest whole number up to which each float dtype holds every whole number.
_EXACT = {"BF16": 2**8, "F16": 2**11, "F32": 2**24, "F64": 2**53}
# Share of sampled head rows whose most similar target row must be their own for a map to count as proven.
_OWN = 0.95
_SAMPLED = 32
# Tokens of a vocabulary beyond which nothing is decided without numpy.
_LARGEST = 2**20


def repair_token_map(copy: WorkingCopy, target: Checkpoint | None) -> tuple[Change | None, Refusal | None]:
    """Correct the token map of the copy; see `eagle3lab.vocabulary` for how a map is judged.

    Args:
        copy: The copy, changed in place.
        target: The target's folder, whose head can prove which tokens the rows stand for; None without.

    Raises:
        InputError: The map cannot be read.
    """
    if proven_by_t2d(copy):
        return None, None
    from eagle3lab.vocabulary import read_token_map

    found = read_token_map(copy.checkpoint)
    token_map = replace(found, draft_vocab_size=copy.config.draft_vocab_size)
    report = token_map.report
    if report.kind.sound and not _unsigned(report.d2t_dtype):
        return None, None
    fault = report.fault
    if fault is None and not _unsigned(report.d2t_dtype):
        return None, None
    offsets, proof = _offsets(token_map, report)
    if offsets is None and report.repair is not None and target is not None:
        offsets, proof = _by_target(copy.checkpoint, target, report.repair.offsets)
    if offsets is None:
        return None, _refusal(report)
    stored = None if token_map.d2t is None else token_map.d2t.name
    name = next((t.info.name for t in copy.tensors if t.origin and t.origin.name == stored), "d2t")
    edit = copy.replace_values(name, TensorValue("I64", (len(offsets),), offsets.astype("<i8").tobytes()))
    change = Change(
        fault or "vocab.dtype",
        f"{'d2t is added' if edit.before is None else 'd2t is written'} as {len(offsets)} int64 offsets",
        (report.kind.meaning, *report.evidence),
        proof,
        (edit,),
    )
    return change, None


def proven_by_t2d(copy: WorkingCopy) -> bool:
    """Whether d2t + arange is exactly the set of tokens that t2d marks, which leaves nothing to judge.

    Most heads are like that, and seeing it takes no numpy, whose import alone takes as long as copying 400 MB.
    """
    d2t, t2d, config = copy.find("d2t"), copy.find("t2d"), copy.config
    if d2t is None or t2d is None or (d2t.dtype, t2d.dtype) != ("I64", "BOOL") or sys.byteorder != "little":
        return False
    if d2t.shape != (config.draft_vocab_size,) or t2d.shape != (config.vocab_size,) or t2d.numel > _LARGEST:
        return False
    offsets, marks = _raw(copy, d2t), _raw(copy, t2d)
    if offsets is None or marks is None or not any(offsets):  # all zeros: perhaps never filled in
        return False
    served = {offset + row for row, offset in enumerate(array("q", offsets))}
    return len(served) == d2t.numel and served == {token for token, mark in enumerate(marks) if mark}


def _raw(copy: WorkingCopy, tensor: TensorInfo) -> bytes | None:
    """The stored bytes of a contiguous tensor of the drafter; None where they lie in another way."""
    origin = next((t.origin for t in copy.tensors if t.info is tensor), None)
    if origin is None or copy.checkpoint.strides(origin) is not None:
        return None
    with copy.checkpoint.file_path(origin).open("rb") as stream:
        stream.seek(origin.offset)
        data = stream.read(origin.nbytes)
    return data if len(data) == origin.nbytes else None


def _unsigned(dtype: str | None) -> bool:
    """Whether torch cannot add arange to integers of this dtype."""
    return dtype in ("U16", "U32", "U64")


def _offsets(token_map: TokenMap, report: TokenMapReport) -> tuple[Ids | None, str]:
    """The proven offsets and the proof; None and nothing where there is no proof."""
    from eagle3lab.vocabulary import MapKind

    if report.repair is not None and (
        report.repair.proven or report.kind in (MapKind.ABSOLUTE, MapKind.DOUBLE_OFFSET)
    ):
        if report.repair.proven:
            return report.repair.offsets, report.repair.reason
        return report.repair.offsets, f"the only usable reading of the numbers; {report.repair.reason}"
    if report.kind is MapKind.WRONG_DTYPE or _unsigned(report.d2t_dtype):
        return _recast(token_map, report)
    return None, ""


def _recast(token_map: TokenMap, report: TokenMapReport) -> tuple[Ids | None, str]:
    """The same whole numbers as int64, where the dtype rounded none of them, judged once more as offsets."""
    import numpy as np

    from eagle3lab.vocabulary import MapKind, analyse_token_map

    values = token_map.d2t_values
    if values is None or values.ndim != 1:
        return None, ""
    dtype = report.d2t_dtype or ""
    if dtype in _EXACT:
        whole = np.isfinite(values).all() and (values == np.rint(values)).all()
        if not whole or np.abs(values).max(initial=0) > _EXACT[dtype]:
            return None, ""
    elif not _unsigned(dtype):
        return None, ""
    numbers = values.astype(np.int64)
    judged = analyse_token_map(
        numbers, token_map.t2d_values, report.vocab_size, report.draft_vocab_size, token_map.lm_head_rows
    )
    same = f"every entry is a whole number that {dtype} holds exactly; only the dtype changes"
    if judged.kind.sound:
        return numbers, same
    repair = judged.repair
    if repair is None or not (repair.proven or judged.kind in (MapKind.ABSOLUTE, MapKind.DOUBLE_OFFSET)):
        return None, ""
    return repair.offsets, f"{same}, and then: {repair.reason}"


def _by_target(drafter: Checkpoint, target: Checkpoint, offsets: Ids) -> tuple[Ids | None, str]:
    """The offsets, if the drafter's head rows resemble the very target rows that they name."""
    import numpy as np

    from eagle3lab.errors import InputError
    from eagle3lab.vocabulary.target_rows import compare_head

    try:
        rows = compare_head(drafter, target, offsets + np.arange(len(offsets)))
    except InputError:
        return None, ""
    if rows.sampled < _SAMPLED or rows.nearest_is_own < _OWN:
        return None, ""
    return offsets, (
        f"with these offsets, {rows.nearest_is_own:.0%} of {rows.sampled} sampled rows of lm_head resemble their own "
        f"row of the target's {rows.target_tensor} more than any other ({rows.identical} of {rows.rows} are equal)"
    )


def _refusal(report: TokenMapReport) -> Refusal:
    likely = () if report.repair is None else (f"likely, not proven: {report.repair.reason}",)
    return Refusal(
        report.fault,
        f"{report.kind.meaning} Nothing in the files proves what it should hold",
        (*report.evidence, *likely, *(f"open: {question}" for question in report.open_questions)),
        (
            "Export d2t again from the training run that made lm_head.",
            "Give the target's weights with --target: its head can prove which tokens the rows stand for.",
        ),
    )
