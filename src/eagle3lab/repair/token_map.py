"""d2t back to offsets of integers, where t2d, the only usable reading or the target's rows prove what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.repair.copy import Held
from eagle3lab.repair.model import Mend

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.repair.copy import WorkingCopy
    from eagle3lab.vocabulary.readings import Ids
    from eagle3lab.vocabulary.source import TokenMap
    from eagle3lab.vocabulary.token_map import TokenMapReport

# Largest whole number up to which each float dtype holds every whole number.
_EXACT = {"BF16": 2**8, "F16": 2**11, "F32": 2**24, "F64": 2**53}
# Share of sampled head rows whose most similar target row must be their own for a map to count as proven.
_OWN = 0.95
_SAMPLED = 32


def token_map(copy: WorkingCopy) -> Mend | None:
    """The token map as int64 offsets; see `eagle3lab.vocabulary` for how a map is judged.

    Raises:
        InputError: The map cannot be read.
    """
    from eagle3lab.vocabulary.source import read_token_map

    found = replace(read_token_map(copy.checkpoint), draft_vocab_size=copy.config.draft_vocab_size)
    report = found.report
    if (report.kind.sound or report.fault is None) and not _unsigned(report.d2t_dtype):
        return None
    offsets, proof = _offsets(found, report)
    if offsets is None and report.repair is not None and copy.target is not None:
        offsets, proof = _by_target(copy.checkpoint, copy.target, report.repair.offsets)
    if offsets is None:
        return None
    name = "d2t" if found.d2t is None else found.d2t.name
    edit = copy.put(name, "I64", (len(offsets),), Held(offsets.astype("<i8").tobytes()))
    return Mend(
        f"{'d2t is added' if edit.before is None else 'd2t is written'} as {len(offsets)} int64 offsets",
        proof,
        (edit,),
    )


def _unsigned(dtype: str | None) -> bool:
    """Whether torch cannot add arange to integers of this dtype."""
    return dtype in ("U16", "U32", "U64")


def _offsets(token_map: TokenMap, report: TokenMapReport) -> tuple[Ids | None, str]:
    """The proven offsets and the proof; None and nothing where there is no proof."""
    from eagle3lab.vocabulary.kinds import MapKind

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

    from eagle3lab.vocabulary.kinds import MapKind
    from eagle3lab.vocabulary.token_map import analyse_token_map

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
