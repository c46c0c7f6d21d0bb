"""The safetensors format: headers read and checked without touching the data, files written in a stream.

The format (https://github.com/huggingface/safetensors): 8 bytes little-endian header length N, N bytes of
JSON `{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}`, then the data.
Offsets count from the first byte after the header, and together they must cover the rest of the file without
gap or overlap. The checks are those of the format's own reader (safetensors 0.8), plus one: duplicate names
are refused, where a lenient JSON reader would silently keep the last.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint.json_input import json_type, parse_json_object
from eagle3lab.checkpoint.tensors import DTYPE_BITS, LARGEST_RANK, LARGEST_SIZE, TensorInfo
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint.store import Checkpoint
    from eagle3lab.checkpoint.tensors import TensorInfo

LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
_AGAIN = "The file is damaged or was only partly copied; copy or download it again."


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: its tensors in the order of `safe_open(...).keys()`, and the free-form metadata."""

    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]


def read_header(path: Path, file: str) -> Header:
    """Read and check the header of one safetensors file.

    Args:
        path: The file.
        file: How the resulting tensors name it.

    Returns:
        The tensors, sorted by name: the order in which `safe_open(...).keys()` lists them and in which an
        engine is offered them (the header's own order is only used for the layout of the data).

    Raises:
        InputError: Anything that the format's own reader refuses, and duplicate names.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            text, start = _header_text(stream.read(8), stream, size, path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
    raw = parse_json_object(text, path, _unique_pairs(path), what="the safetensors header", constants=False)
    metadata = _metadata(raw.pop("__metadata__", None), path)
    spans = [_tensor(name, entry, path, file, start) for name, entry in raw.items()]
    _check_layout(spans, start, size, path)
    return Header(tuple(sorted(spans, key=lambda tensor: tensor.name)), metadata)


def _header_text(prefix: bytes, stream: Any, size: int, path: Path) -> tuple[str, int]:
    if size == 0:
        raise InputError("is empty", path=path, advice=_AGAIN)
    if len(prefix) < 8:
        raise InputError(f"is {size} bytes, too short for a safetensors file", path=path, advice=_AGAIN)
    if prefix == b"version ":
        raise InputError(
            "is a Git LFS pointer, not the weights themselves",
            path=path,
            advice="Run `git lfs pull` in its repository, or download the file itself.",
        )
    if prefix.startswith(b"PK\x03\x04"):
        raise InputError(
            "is a zip archive (perhaps a torch checkpoint), not safetensors",
            path=path,
            advice="Rename it to .bin.",
        )
    (length,) = struct.unpack("<Q", prefix)
    if length > LARGEST_HEADER:
        raise InputError(
            f"claims a header of {length} bytes, above the format's limit of {LARGEST_HEADER}",
            path=path,
            advice=_AGAIN,
        )
    if 8 + length > size:
        raise InputError(
            f"claims a header of {length} bytes but ends after {size} bytes in all", path=path, advice=_AGAIN
        )
    data = stream.read(length)
    if len(data) != length:
        raise InputError("ends inside its header", path=path, advice=_AGAIN)
    try:
        return data.decode("utf-8"), 8 + length
    except UnicodeDecodeError as error:
        raise InputError(f"has a header that is not UTF-8 at byte {8 + error.start}", path=path) from None


def _unique_pairs(path: Path) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise InputError(f"the safetensors header holds '{twice}' twice", path=path)
        return result

    return build


def _metadata(raw: object, path: Path) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise InputError("__metadata__ of the safetensors header must map strings to strings", path=path)
    return raw


def _tensor(name: str, entry: object, path: Path, file: str, start: int) -> TensorInfo:
    def bad(problem: str) -> InputError:
        return InputError(problem, path=path, tensor=name, advice=_AGAIN)

    if not isinstance(entry, dict):
        raise bad(f"its header entry is {json_type(entry)}, not an object")
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    except KeyError as error:
        raise bad(f"its header entry has no {error.args[0]}") from None
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(
            f"unknown dtype {dtype!r}" if isinstance(dtype, str) else f"its dtype is {json_type(dtype)}"
        )
    if not _sizes(shape):
        raise bad("its shape is not an array of non-negative 64-bit integers")
    if len(shape) > LARGEST_RANK:
        raise bad(f"its shape has {len(shape)} dimensions, more than any reader takes ({LARGEST_RANK})")
    if not _sizes(offsets) or len(offsets) != 2:
        raise bad("its data_offsets are not two non-negative 64-bit integers")
    begin, end = offsets
    if end < begin:
        raise bad(f"its data ends at byte {end}, before it begins at {begin}")
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits > LARGEST_SIZE:
        raise bad(f"its shape {_shape(shape)} overflows any file")
    if bits % 8:
        raise bad(f"{prod(shape)} elements of {dtype} do not end at a byte")
    if bits // 8 != end - begin:
        raise bad(f"{dtype} {_shape(shape)} needs {bits // 8} bytes, but its offsets span {end - begin}")
    return TensorInfo(name, dtype, tuple(shape), end - begin, file, start + begin)


def _sizes(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= LARGEST_SIZE for value in values
    )


def _shape(shape: list[int]) -> str:
    shown = ", ".join(map(str, shape[:8]))
    return f"[{shown}, …]" if len(shape) > 8 else f"[{shown}]"


def _check_layout(tensors: list[TensorInfo], start: int, size: int, path: Path) -> None:
    at = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != at:
            how = "leaves a gap before it" if tensor.offset > at else "overlaps the tensor before it"
            raise InputError(
                f"its data begins at byte {tensor.offset} of the file where {at} is due: it {how}",
                path=path,
                tensor=tensor.name,
                advice=_AGAIN,
            )
        at += tensor.nbytes
        if at > size:
            raise InputError(
                f"its data runs to byte {at}, but the file ends after {size} bytes",
                path=path,
                tensor=tensor.name,
                advice=_AGAIN,
            )
    if at != size:
        raise InputError(f"holds {size - at} bytes after its last tensor", path=path, advice=_AGAIN)


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
