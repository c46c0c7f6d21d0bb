"""Safetensors files written in a stream: values are copied from file to file and never held in memory.

The format is in `eagle3lab.checkpoint.safetensors_header`.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.tensors import DTYPE_BITS
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint.store import Checkpoint
    from eagle3lab.checkpoint.tensors import TensorInfo

_BLOCK = 2**20
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class FileRange:
    """`length` bytes of the file `path` from byte `offset` on."""

    path: Path
    offset: int
    length: int


Part = bytes | memoryview | FileRange
Parts = Callable[[], Iterable[Part]]


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """A tensor to be written.

    Attributes:
        name: Its name in the file.
        dtype: In the spelling of safetensors.
        shape: The dimensions, outermost first.
        parts: Makes the parts of its little-endian values, in order; called when they are written.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: Parts

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def write_safetensors(
    path: Path, tensors: Sequence[TensorToWrite], metadata: Mapping[str, str] | None = None
) -> tuple[int, ...]:
    """Write a safetensors file, its values in the order given.

    Args:
        path: A file that does not exist yet.
        tensors: What it will hold.
        metadata: Its `__metadata__`; None writes none.

    Returns:
        Where each tensor's values begin, in bytes from the beginning of the file.

    Raises:
        InputError: Two tensors have one name, a source is too short, or the file cannot be written.
    """
    header: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    offsets, end = [], 0
    for tensor in tensors:
        if tensor.name in header or tensor.name == _METADATA:
            raise InputError("would stand in the file twice", path=path, tensor=tensor.name)
        offsets.append(end)
        end += tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offsets[-1], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    parts = (part for tensor in tensors for part in tensor.parts())
    written = write_parts(path, [struct.pack("<Q", len(text)) + text], parts)
    if written != start + end:
        raise ValueError(f"{path}: {written} bytes were written where the header says {start + end}")
    return tuple(start + offset for offset in offsets)


def stored_parts(source: Checkpoint, tensor: TensorInfo) -> tuple[Part]:
    """The stored values of a tensor, as a stretch of its file where they are contiguous."""
    if source.strides(tensor) is None:
        return (FileRange(source.file_path(tensor), tensor.offset, tensor.nbytes),)
    return (source.read_stored(tensor.name).tobytes(),)


def write_parts(path: Path, head: Iterable[Part], tail: Iterable[Part] = ()) -> int:
    """Write the parts one after the other into a new file.

    Returns:
        Its size in bytes.

    Raises:
        InputError: A source is too short or cannot be read, or the file cannot be written (the disk is full).
    """
    size = 0
    try:
        with path.open("xb", buffering=0) as stream:
            for part in _joined(head, tail):
                if isinstance(part, FileRange):
                    _copy(part, stream.fileno())
                    size += part.length
                else:
                    _write(stream.fileno(), part)
                    size += memoryview(part).nbytes
    except OSError as error:
        raise write_error(path, error) from None
    return size


def write_error(path: Path, error: OSError) -> InputError:
    """The error for a file that could not be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return InputError(
        f"cannot be written: {error.strerror or error}",
        path=path,
        advice="Make room, or give a folder on another disk." if full else None,
    )


def _joined(*groups: Iterable[Part]) -> Iterator[Part]:
    """The parts in order, stretches of a file that follow each other as one."""
    last: FileRange | None = None
    for group in groups:
        for part in group:
            if not isinstance(part, FileRange):
                if last is not None:
                    yield last
                last = None
                yield part
            elif last is not None and last.path == part.path and last.offset + last.length == part.offset:
                last = FileRange(last.path, last.offset, last.length + part.length)
            else:
                if last is not None:
                    yield last
                last = part
    if last is not None:
        yield last


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _copy(part: FileRange, to: int) -> None:
    try:
        source = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=part.path) from None
    try:
        # os.copy_file_range is no faster, and slower by half where the two offsets differ within a page.
        block = memoryview(bytearray(_BLOCK))
        at, end = part.offset, part.offset + part.length
        while at < end:
            try:
                count = os.preadv(source, [block[: end - at]], at)
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror or error}", path=part.path) from None
            if not count:
                raise InputError(f"ends at byte {at}, where {end} bytes were read before", path=part.path)
            _write(to, block[:count])
            at += count
    finally:
        os.close(source)
