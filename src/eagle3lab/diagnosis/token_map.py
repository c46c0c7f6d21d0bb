"""A token map that is proven sound by t2d, read without numpy.

Importing numpy takes longer than everything else that a diagnosis without a log does. Most maps are sound, and with
t2d beside d2t that is a proof of a few lines; every other map goes to `eagle3lab.vocabulary`.
"""

from __future__ import annotations

import sys
from array import array
from operator import add
from typing import TYPE_CHECKING

from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, TensorInfo

_LARGEST = 2**21  # entries; no vocabulary comes near
_CODES = {"I64": "q", "I32": "i"}


def proven_ids(drafter: Checkpoint, vocab_size: int) -> list[int] | None:
    """The target ids that d2t stands for, where d2t + arange is exactly the set of tokens that t2d marks.

    Args:
        drafter: The checkpoint.
        vocab_size: V of the target.

    Returns:
        Ids in the order of the head's rows; None where there is no such proof.
    """
    d2t, t2d = drafter.tensors.get("d2t"), drafter.tensors.get("t2d")
    if d2t is None or t2d is None or d2t.dtype not in _CODES or t2d.dtype not in ("BOOL", "U8"):
        return None
    if len(d2t.shape) != 1 or t2d.shape != (vocab_size,) or max(d2t.numel, t2d.numel) > _LARGEST:
        return None
    if any(drafter.strides(tensor) is not None for tensor in (d2t, t2d)):
        return None
    offsets = array(_CODES[d2t.dtype])
    try:
        offsets.frombytes(_bytes(drafter, d2t))
        marks = _bytes(drafter, t2d)
    except (InputError, OSError, ValueError):
        return None
    if sys.byteorder != "little":
        offsets.byteswap()
    ids = list(map(add, offsets, range(len(offsets))))
    marked = len(marks) - marks.count(0)
    if not ids or not any(offsets) or marked != len(ids) or len(set(ids)) != len(ids):
        return None
    if min(ids) < 0 or max(ids) >= vocab_size or not all(map(marks.__getitem__, ids)):
        return None
    return ids


def _bytes(drafter: Checkpoint, tensor: TensorInfo) -> bytes:
    with drafter.file_path(tensor).open("rb") as stream:
        stream.seek(tensor.offset)
        return stream.read(tensor.nbytes)
