"""Whether a shadowed torch file holds other weights than the safetensors that hide it, on a sample of values."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.checkpoint import Checkpoint, FileSet
from eagle3lab.checkpoint.files import safe_file
from eagle3lab.checkpoint.store import Contents
from eagle3lab.errors import InputError

_ROWS = 4
_TENSORS = 8


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
    for name in shared[:_TENSORS]:
        ours, theirs = read.tensors[name], other.tensors[name]
        if ours.shape != theirs.shape:
            said.append(f"{name} is {list(theirs.shape)} in {hidden} and {list(ours.shape)} in {ours.file}")
        elif not _close(read, other, name):
            said.append(f"{name} has other values in {hidden} than in {ours.file}")
    return said


def _open(read: Checkpoint, hidden: str) -> Checkpoint | None:
    from eagle3lab.checkpoint.torch_archive import read_archive

    root = Path(read.path).resolve()
    try:
        archive = read_archive(safe_file(root, hidden), hidden)
    except InputError:
        return None
    strides = {(hidden, name): value for name, value in archive.strides.items()}
    contents = Contents(archive.tensors, strides, {}, archive.others)
    return Checkpoint(read.path, root, FileSet((hidden,), "torch"), contents)


def _close(one: Checkpoint, other: Checkpoint, name: str) -> bool:
    """Whether the first rows agree up to a cast to bf16."""
    import numpy as np

    try:
        left = np.asarray(one.read_rows(name, 0, _ROWS), np.float32)
        right = np.asarray(other.read_rows(name, 0, _ROWS), np.float32)
    except InputError:
        return True
    return bool(np.allclose(left, right, rtol=2**-6, atol=1e-6))
