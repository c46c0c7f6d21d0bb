"""Reading a tensor block by block into buffers that stay in a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

from eagle3lab.checkpoint.store import Checkpoint
from eagle3lab.checkpoint.tensors import TensorInfo
from eagle3lab.checkpoint.values import STORED_AS, float8_table
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Elements in a block. Stored bytes, values and scratch of a 16-bit block are 10 bytes an element: a little over a
# MiB. Larger blocks leave a core's second-level cache, smaller ones spend their time between numpy calls.
BLOCK = 131072
_WIDE = frozenset({"I32", "U32", "I64", "U64", "F64"})  # not exact in float32


@dataclass(frozen=True, slots=True)
class WorkBuffers:
    """Scratch space of one thread for blocks of one precision; every array has BLOCK elements.

    Attributes:
        values: The decoded block, float32 or float64.
        scratch: Space of the same dtype for squares and differences.
        ones: All ones, of the same dtype.
        mask: Space for comparisons, bool.
    """

    values: NDArray[Any]
    scratch: NDArray[Any]
    ones: NDArray[Any]
    mask: NDArray[Any]


class BlockReader:
    """Reads the blocks of a checkpoint's tensors; one for each thread."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        import numpy as np

        self._checkpoint = checkpoint
        self._stored = np.empty(BLOCK * 8, np.uint8)
        self._buffers: dict[bool, WorkBuffers] = {}
        self._open: tuple[str, BinaryIO] | None = None

    @staticmethod
    def can_read(info: TensorInfo) -> bool:
        """Whether the dtype has real values of a byte or more."""
        return info.dtype in STORED_AS and info.dtype != "C64"

    def buffers(self, info: TensorInfo) -> WorkBuffers:
        """The scratch space for the precision that `info` needs."""
        import numpy as np

        wide = info.dtype in _WIDE
        if wide not in self._buffers:
            dtype = np.float64 if wide else np.float32
            self._buffers[wide] = WorkBuffers(
                np.empty(BLOCK, dtype), np.empty(BLOCK, dtype), np.ones(BLOCK, dtype), np.empty(BLOCK, bool)
            )
        return self._buffers[wide]

    def blocks(self, info: TensorInfo, start: int, stop: int) -> Iterator[tuple[NDArray[Any], bool]]:
        """Rows `start` to `stop` of a tensor seen as [first dimension, product of the others].

        Yields:
            A block [rows, columns] of float32 or float64 values in a buffer that the next block overwrites,
            and whether it ends a row: either it holds complete rows, or a piece of one row too wide for a
            block.

        Raises:
            InputError: The file is shorter than it was when it was opened.
        """
        # A vector is read as one row.
        if len(info.shape) < 2:
            rows, columns = 1, stop - start
            first = start
        else:
            rows, columns = stop - start, prod(info.shape[1:])
            first = start * columns
        if columns > BLOCK:
            for row in range(rows):
                for at in range(0, columns, BLOCK):
                    width = min(BLOCK, columns - at)
                    yield self._load(info, first + row * columns + at, 1, width), at + width == columns
        else:
            step = max(1, BLOCK // columns)
            for row in range(0, rows, step):
                yield self._load(info, first + row * columns, min(step, rows - row), columns), True

    def row(self, info: TensorInfo, row: int, columns: int) -> NDArray[Any]:
        """The first `columns` (at most BLOCK) values of a row; overwritten by the next read."""
        return self._load(info, row * prod(info.shape[1:]), 1, columns).reshape(-1)

    def _load(self, info: TensorInfo, element: int, rows: int, columns: int) -> NDArray[Any]:
        import numpy as np

        count = rows * columns
        values = self.buffers(info).values[:count]
        dtype = np.dtype(STORED_AS[info.dtype])
        stored = self._stored[: count * dtype.itemsize].view(dtype)
        if self._checkpoint.strides(info) is None:
            self._read(info, element * dtype.itemsize, stored)
        else:
            stored[:] = self._strided(info, element, count)
        if info.dtype == "BF16":
            bits = values.view(np.uint32)
            np.copyto(bits, stored)
            np.left_shift(bits, 16, out=bits)
        elif info.dtype.startswith("F8"):
            np.take(float8_table(info.dtype), stored, out=values)
        else:
            np.copyto(values, stored)
        return values.reshape(rows, columns)

    def _read(self, info: TensorInfo, skip: int, into: NDArray[Any]) -> None:
        import numpy as np

        if self._open is None or self._open[0] != info.file:
            self.close()
            self._open = (info.file, self._checkpoint.file_path(info).open("rb", buffering=0))
        stream = self._open[1]
        stream.seek(info.offset + skip)
        view = into.view(np.uint8).data
        at = 0
        while at < len(view):
            got = stream.readinto(view[at:])  # type: ignore[attr-defined]
            if not got:
                raise InputError(
                    "the file became shorter while it was read",
                    path=self._checkpoint.file_path(info),
                    tensor=info.name,
                )
            at += got

    def _strided(self, info: TensorInfo, element: int, count: int) -> NDArray[Any]:
        """`count` elements in row-major order from a tensor that is stored in another order."""
        import numpy as np

        view = self._checkpoint.read_stored(info.name)
        places = np.unravel_index(np.arange(element, element + count), view.shape)
        return np.asarray(view[places])

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
