"""Whether rows of the drafter's head stand for the tokens that the map assigns them, on a sample of rows.

Equality of bytes comes first: it proves, where a likeness only suggests. speculators freezes the head as rows of the
target, and converters prune by copying rows, so equal rows are common in real heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint

_SAMPLE = 32
# Bytes compared of each row: enough to tell rows apart. They are read, not mapped: a map of a few rows of a large
# file can keep megabytes for each.
_BYTES = 512
_MOST = 0.9
# A smaller head, or fewer pairs, may be equal by chance or by construction.
_FEWEST, _FEWEST_PAIRS = 8, 4
# Rows at another token's place that prove a head without order; chance makes none, near-duplicates a few.
_FEWEST_ELSEWHERE = 8
# Cosines: rows that went on training stay close to where they began, and rows of two tokens are far apart.
_ALIKE, _UNLIKE, _COMPARED, _CANDIDATES = 0.8, 0.5, 128, 4096


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Rows that speak for other tokens than the map says.

    Attributes:
        title: One line.
        tensor: The head's tensor.
        evidence: What was compared, with numbers.
        confidence: 0 to 1.
    """

    title: str
    tensor: str
    evidence: tuple[str, ...]
    confidence: float


def misplaced(drafter: Checkpoint, target: Checkpoint | None, ids: list[int]) -> Iterator[Misplaced]:
    """What is wrong with the order of the head's rows; nothing where nothing can be proven.

    Args:
        drafter: Has an lm_head, [D, H].
        target: The target's folder, with or without weights.
        ids: The target id of each row, [D].
    """
    head = next((name for name in drafter.tensors if name.endswith("lm_head.weight")), None)
    if head is None or len(drafter.info(head).shape) != 2 or len(ids) < _FEWEST:
        return
    if drafter.info(head).shape[0] != len(ids):
        return
    found = _by_offset(drafter, head, ids)
    if found is not None:
        yield found
        return
    for owner, name, whose in _references(drafter, target, head):
        found = _against(drafter, head, owner, name, whose, ids)
        if found is not None:
            yield found
            return


def _spread(count: int) -> list[int]:
    """At most `_SAMPLE` numbers below `count`, evenly spaced."""
    taken = min(count, _SAMPLE)
    return sorted({index * (count - 1) // max(1, taken - 1) for index in range(taken)})


def _by_offset(drafter: Checkpoint, head: str, ids: list[int]) -> Misplaced | None:
    """Whether rows with the same offset are the same row: the head was indexed with d2t itself.

    Sorted offsets repeat in runs (neighbouring tokens), so pairs are plenty in any sorted map.
    """
    pairs = [row for row, step in enumerate(map(sub, ids[1:], ids)) if step == 1]
    if len(pairs) < _FEWEST_PAIRS:
        return None
    picked = [pairs[index] for index in _spread(len(pairs))]
    first = _read(drafter, head, picked)
    equal = _share(first, _read(drafter, head, [row + 1 for row in picked]))
    if len(set(first)) < 2 or equal < _MOST:
        return None  # a head of one value says nothing about its order
    return Misplaced(
        "lm_head was indexed with d2t instead of d2t + arange",
        head,
        (
            f"{len(pairs)} neighbouring rows have equal entries of d2t; of {len(picked)} such pairs compared, "
            f"{equal:.0%} are equal byte for byte",
            "two tokens of a trained head never have the same row",
        ),
        0.98,
    )


def _references(
    drafter: Checkpoint, target: Checkpoint | None, head: str
) -> Iterator[tuple[Checkpoint, str, str]]:
    """Matrices with a row for every token of the target that the head may have been cut from."""
    width = drafter.info(head).shape[1]
    own = next((name for name in drafter.tensors if name.endswith("embed_tokens.weight")), None)
    if own is not None and drafter.info(own).shape[1:] == (width,):
        yield drafter, own, "the drafter's embeddings"
    if target is None or not target.tensors:
        return
    from eagle3lab.vocabulary.target_rows import target_tensor

    try:
        name = target_tensor(target, "lm_head")
    except InputError:
        return
    if target.info(name).shape[1:] == (width,):
        yield target, name, "the target's head"


def _against(
    drafter: Checkpoint, head: str, owner: Checkpoint, name: str, whose: str, ids: list[int]
) -> Misplaced | None:
    """Whether the head's rows are rows of another matrix in another order than the map says."""
    if owner.info(name).shape[0] <= max(ids) or min(ids) < 0:
        return None
    if owner.info(name).dtype != drafter.info(head).dtype:
        return _by_likeness(drafter, head, owner, name, whose, ids)
    sample = _spread(len(ids))
    rows = _read(drafter, head, sample)
    if len(set(rows)) < 2:
        return None
    orders = {
        "in ascending order of token id": sorted(ids),
        "shifted by one row": ids[-1:] + ids[:-1],
        "shifted back by one row": ids[1:] + ids[:1],
        "in reverse": ids[::-1],
        "those of tokens 0, 1, 2, …": list(range(len(ids))),
    }

    def share(order: list[int]) -> float:
        return _share(rows, _read(owner, name, [order[row] for row in sample]))

    right = share(ids)
    if right >= _MOST:
        return None
    for words, order in orders.items():
        if order != ids and (found := share(order)) >= _MOST:
            return Misplaced(
                f"lm_head holds rows of {whose} {words}, not in the order of d2t",
                head,
                (
                    f"of {len(sample)} rows, {found:.0%} are byte-equal to rows of {whose} taken {words}",
                    f"in the order of d2t + arange it is {right:.0%}",
                ),
                0.98,
            )
    return _in_no_order(drafter, head, owner, name, whose, ids, sample, right)


def _in_no_order(
    drafter: Checkpoint, head: str, owner: Checkpoint, name: str, whose: str, ids: list[int],
    sample: list[int], right: float,
) -> Misplaced | None:  # fmt: skip
    """Whether the head's rows are the other matrix's rows of the draft vocabulary, in an order that has no name."""
    rows = _read(drafter, head, sample)
    place: dict[bytes, int | None] = {}
    for token, row in zip(ids, _read(owner, name, ids), strict=True):
        place[row] = None if row in place else token  # padding rows are alike and stand for no token
    elsewhere = sum(
        found is not None and found != ids[at]
        for at, found in ((at, place.get(row)) for at, row in zip(sample, rows, strict=True))
    )
    if elsewhere < _FEWEST_ELSEWHERE:
        return None if right > 0 else _by_likeness(drafter, head, owner, name, whose, ids)
    return Misplaced(
        f"lm_head holds rows of {whose}, not in the order of d2t",
        head,
        (
            f"{elsewhere} of {len(sample)} rows are byte-equal to rows of {whose} for other tokens",
            f"in the order of d2t + arange {right:.0%} are equal",
        ),
        0.97,
    )


def _by_likeness(
    drafter: Checkpoint, head: str, owner: Checkpoint, name: str, whose: str, ids: list[int]
) -> Misplaced | None:
    """The same for rows that are not equal in bytes: stored in another dtype, or trained further.

    A head is trained from the target's head, not from the embeddings: likeness to those would mean nothing.
    """
    if owner is drafter:
        return None
    try:
        likelier, compared = _likelier_elsewhere(drafter, head, owner, name, ids)
    except InputError:
        return None
    if likelier < _FEWEST_ELSEWHERE:
        return None
    return Misplaced(
        f"lm_head holds rows of {whose}, not in the order of d2t",
        head,
        (
            f"{likelier} of {compared} rows are far more like rows of {whose} for other tokens than for their own",
        ),
        0.9,
    )


def _likelier_elsewhere(
    drafter: Checkpoint, head: str, owner: Checkpoint, name: str, ids: list[int]
) -> tuple[int, int]:
    """Of a sample of rows, how many resemble another token's row closely and their own token's not at all.

    For heads that went on training after they were cut from the target. A head trained from random rows resembles none.
    """
    import numpy as np

    every = np.asarray(ids)
    taken = np.unique(np.linspace(0, len(ids) - 1, min(_CANDIDATES, len(ids))).astype(np.int64))
    picked = taken[:: max(1, len(taken) // _COMPARED)]
    with np.errstate(all="ignore"):
        mine = np.asarray(drafter.read_selected(head, picked), np.float32)
        theirs = np.asarray(owner.read_selected(name, every[taken]), np.float32)
        own = np.asarray(owner.read_selected(name, every[picked]), np.float32)
        mine, theirs, own = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (mine, theirs, own))
        best = np.nan_to_num(mine @ theirs.T).max(axis=1)
        right = np.nan_to_num((mine * own).sum(axis=1))
    return int(((best > _ALIKE) & (right < _UNLIKE)).sum()), len(picked)


def _share(left: list[bytes], right: list[bytes]) -> float:
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(left)


def likeness(drafter: Checkpoint, name: str, target: Checkpoint) -> tuple[float, float] | None:
    """How like the drafter's embeddings are to the target's, on a sample of rows.

    Args:
        drafter: Has `name`, [V, H].
        name: Its embeddings.
        target: The target's folder.

    Returns:
        The share of equal rows and the median cosine; None where the two cannot be compared.
    """
    import numpy as np

    from eagle3lab.vocabulary.target_rows import target_tensor

    try:
        other = target_tensor(target, "embed_tokens")
    except InputError:
        return None
    ours, theirs = drafter.info(name), target.info(other)
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype) or len(ours.shape) != 2 or not ours.shape[0]:
        return None
    picked = _spread(ours.shape[0])
    equal = _share(_read(drafter, name, picked), _read(target, other, picked))
    if equal == 1:
        return 1.0, 1.0
    try:
        one = np.asarray(drafter.read_selected(name, np.array(picked)), np.float64)
        two = np.asarray(target.read_selected(other, np.array(picked)), np.float64)
    except InputError:
        return None
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        cosine = float(np.nanmedian((one * two).sum(axis=1) / lengths))
    return equal, cosine if cosine == cosine else 0.0


def _read(checkpoint: Checkpoint, name: str, rows: list[int]) -> list[bytes]:
    """The first bytes of some rows of a matrix, as they are stored."""
    info = checkpoint.info(name)
    if checkpoint.strides(info) is not None:
        stored = checkpoint.read_stored(name)
        return [stored[row].tobytes()[:_BYTES] for row in rows]
    width = info.nbytes // info.shape[0]
    with checkpoint.file_path(info).open("rb", buffering=0) as stream:
        found = []
        for row in rows:
            stream.seek(info.offset + row * width)
            found.append(stream.read(min(width, _BYTES)))
    return found


# ---- a torch file that safetensors hide ----------------------------------------------------------------------------

_FILE_ROWS = 4
_FILE_TENSORS = 8


def differences(read: Checkpoint, hidden: str) -> list[str]:
    """How the tensors of the torch file `hidden` in the same folder differ from those that engines read.

    Returns:
        Sentences; empty where names and sampled values agree, or the file cannot be read.
    """
    other = _open(read, hidden)
    if other is None:
        return []
    absent = [name for name in other.tensors if name not in read.tensors]
    said = [f"{hidden} holds {len(absent)} tensors that are not read, such as {absent[0]}"] if absent else []
    shared = [name for name, info in other.tensors.items() if name in read.tensors and info.is_float]
    for name in shared[:_FILE_TENSORS]:
        ours, theirs = read.tensors[name], other.tensors[name]
        if ours.shape != theirs.shape:
            said.append(f"{name} is {list(theirs.shape)} in {hidden} and {list(ours.shape)} in {ours.file}")
        elif not _close(read, other, name):
            said.append(f"{name} has other values in {hidden} than in {ours.file}")
    return said


def _open(read: Checkpoint, hidden: str) -> Checkpoint | None:
    from eagle3lab.checkpoint import Checkpoint, FileSet
    from eagle3lab.checkpoint.store import Contents, safe_file
    from eagle3lab.checkpoint.torch_archive import read_archive

    root = Path(read.path).resolve()
    try:
        archive = read_archive(safe_file(root, hidden, follow=True), hidden)
    except InputError:
        return None
    strides = {(hidden, name): value for name, value in archive.strides.items()}
    contents = Contents(archive.tensors, strides, {}, archive.others)
    return Checkpoint(read.path, root, FileSet((hidden,), "torch"), contents)


def _close(one: Checkpoint, other: Checkpoint, name: str) -> bool:
    """Whether the first rows agree up to a cast to bf16."""
    import numpy as np

    try:
        left = np.asarray(one.read_rows(name, 0, _FILE_ROWS), np.float32)
        right = np.asarray(other.read_rows(name, 0, _FILE_ROWS), np.float32)
    except InputError:
        return True
    return bool(np.allclose(left, right, rtol=2**-6, atol=1e-6))
