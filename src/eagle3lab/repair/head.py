"""A missing lm_head: the target's, where the target is given and there is only one way to take it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from eagle3lab.errors import InputError
from eagle3lab.repair.model import Change, Refusal, TensorValue
from eagle3lab.repair.working_copy import LARGEST_INLINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.repair.working_copy import WorkingCopy
    from eagle3lab.vocabulary.readings import Ids

_HEAD = "lm_head.weight"
_ROWS = 1024  # copied at a time: 15 MB of a target of width 7,168 in bfloat16


def repair_head(copy: WorkingCopy, target: Checkpoint | None) -> tuple[Change | None, Refusal | None]:
    """Give a head to a copy that has none: null for draft_vocab_size, or the target's rows.

    Args:
        copy: The copy, changed in place.
        target: The target's folder; None without.

    Raises:
        InputError: The target's config cannot be read.
    """
    plan = copy.simulate()
    config = copy.config
    if not any(p.name == _HEAD and p.status == "left as initialised" for p in plan.parameters):
        return None, None
    if copy.find(_HEAD) is not None:  # it is there and was refused or not reached: another fault
        return None, None
    seen = (
        f"the checkpoint has no {_HEAD}",
        f"draft_vocab_size is {config.draft_vocab_size}, so {copy.engine.spec} makes a head of its own and leaves it "
        "as memory was",
    )
    retrain = "Export the head again together with its lm_head."
    if target is None:
        again = "Give the target with --target: a head trained with the target's rows can take them."
        return None, Refusal(
            "head.lm-head-missing",
            "There is no lm_head, and no target to take it from",
            seen,
            (again, retrain),
        )
    if (change := _null(copy, target, seen)) is not None:
        return change, None
    try:
        return _rows(copy, target, seen), None
    except InputError as error:
        reason = f"There is no lm_head, and the target's cannot be taken: {error}"
        return None, Refusal("head.lm-head-missing", reason, seen, (retrain,))


def _null(copy: WorkingCopy, target: Checkpoint, seen: tuple[str, ...]) -> Change | None:
    """The whole vocabulary: the release takes the target's head itself when draft_vocab_size is null."""
    config, stated = copy.config, copy.raw.get("draft_vocab_size")
    sources = [
        r.source for r in copy.engine.from_target if (r.parameter, r.when_null) == (_HEAD, "draft_vocab_size")
    ]
    if not sources or config.draft_vocab_size != config.vocab_size:
        return None
    raw = target.raw_config
    nested = raw.get("text_config")
    shape = nested if isinstance(nested, dict) else raw
    if (shape.get("vocab_size"), shape.get("hidden_size")) != (config.vocab_size, config.hidden_size):
        return None
    edit = copy.set("draft_vocab_size", None)
    if copy.simulate().construction_error is not None:
        copy.set("draft_vocab_size", stated)
        return None
    return Change(
        "head.lm-head-missing",
        "draft_vocab_size becomes null",
        seen,
        f"the draft vocabulary is the whole one and the target has the same sizes; with null {copy.engine.spec} "
        f"takes the target's own head ({sources[0]}). It is the head the drafter was trained with unless one was "
        "trained and lost",
        (edit,),
    )


def _rows(copy: WorkingCopy, target: Checkpoint, seen: tuple[str, ...]) -> Change:
    import numpy as np

    from eagle3lab.vocabulary import read_token_map
    from eagle3lab.vocabulary.target_rows import target_tensor

    config = copy.config
    name = target_tensor(target, "lm_head")
    source = target.info(name)
    ids = _served_ids(copy, read_token_map(copy.checkpoint).served_ids)
    count = config.draft_vocab_size or config.vocab_size
    if (
        source.shape != (config.vocab_size, config.hidden_size)
        or not source.is_float
        or source.dtype[:2] == "F8"
    ):
        raise InputError(f"is {source.dtype} {list(source.shape)}", path=target.path, tensor=name)
    if (
        len(ids) != count
        or np.unique(ids).size != count
        or not 0 <= ids.min() <= ids.max() < config.vocab_size
    ):
        raise InputError(
            "the token map does not name one target row for each row of the head", path=copy.checkpoint.path
        )
    value = TensorValue(source.dtype, (count, config.hidden_size), None)
    if count * config.hidden_size * 4 <= LARGEST_INLINE:
        value = TensorValue(value.dtype, value.shape, b"".join(_stream(target, name, ids)))
    edit = copy.put(_HEAD, value, partial(_stream, target, name, ids))
    return Change(
        "head.lm-head-missing",
        f"{_HEAD} is added: {count} rows of the target's {name}",
        seen,
        "row j is the target's row for draft id j, as the token map says; speculators trains with exactly these rows "
        "and keeps them frozen. Right unless a head of its own was trained and lost",
        (edit,),
    )


def _served_ids(copy: WorkingCopy, stored: Ids) -> Ids:
    """The ids that the copy's token map stands for: of the corrected d2t where there is one."""
    import numpy as np

    for tensor in copy.tensors:
        if tensor.info.name.rpartition(".")[2] == "d2t" and tensor.parts is not None:
            data = b"".join(bytes(part) for part in tensor.parts() if not hasattr(part, "path"))
            ids: Ids = np.frombuffer(data, "<i8") + np.arange(tensor.info.shape[0], dtype=np.int64)
            return ids
    return stored


def _stream(target: Checkpoint, name: str, ids: Ids) -> Iterator[bytes]:
    stored = target.read_stored(name)
    for start in range(0, len(ids), _ROWS):
        yield stored[ids[start : start + _ROWS]].tobytes()
