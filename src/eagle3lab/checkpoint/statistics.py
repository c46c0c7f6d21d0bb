"""What a tensor's values look like, in one streaming pass with bounded memory.

Each file is read in blocks that stay in a processor's cache, decoded into a reused buffer and reduced there several
times: main memory is read once, whatever the number of statistics, and nothing grows with the tensor. Sums run in the
block's own precision (float32; float64 for 32- and 64-bit integers and doubles) over a few thousand elements at a time
and are added up in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import nan, prod, sqrt
from typing import TYPE_CHECKING, Any, BinaryIO

from eagle3lab.checkpoint.store import Checkpoint
from eagle3lab.checkpoint.tensors import STORED_AS, TensorInfo, float8_table
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


# A unit of work for one thread: large enough to make its start cheap, small enough to share one tensor.
SEGMENT_BYTES = 16 * 2**20
THREADS = 2
# Elements that are added up in float32 before the sum goes on in float64.
PIECE = 4096
# A row whose root mean square is smaller than this is reduced in float64: fourth powers leave float32's range.
FAINT = 1e-8
INFINITY = float("inf")

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Statistics of one tensor; all but the counts are over its finite values, and NaN where there are none.

    Attributes:
        name: The tensor.
        count: Number of elements.
        nan: Number of NaNs.
        inf: Number of infinities.
        zeros: Number of zeros, of either sign.
        mean: Arithmetic mean.
        std: Standard deviation, dividing by the number of values.
        abs_mean: Mean of the absolute values.
        min: Smallest value.
        max: Largest value.
        kurtosis: n·Σx⁴ / (Σx²)², about zero: 3 for a centred gaussian, 1.8 for a centred uniform
            distribution.
        rows: Number of rows, the first dimension of a tensor of two or more; 0 for others.
        zero_rows: Number of rows that hold only zeros (padding); the row norms below leave them out.
        row_norm_mean: Mean of the rows' L2 norms.
        row_norm_std: Standard deviation of the rows' L2 norms.
        row_norm_min: Smallest of them.
        row_norm_max: Largest of them.
        effective_rank: exp(entropy) of the normalised singular values of a bounded sample (see
            `eagle3lab.checkpoint.training_state`), between 1 and `rank_limit`; None unless asked for.
        rank_limit: The smaller side of that sample; None unless asked for.
    """

    name: str
    count: int
    nan: int
    inf: int
    zeros: int
    mean: float
    std: float
    abs_mean: float
    min: float
    max: float
    kurtosis: float
    rows: int
    zero_rows: int
    row_norm_mean: float
    row_norm_std: float
    row_norm_min: float
    row_norm_max: float
    effective_rank: float | None = None
    rank_limit: int | None = None

    @property
    def finite(self) -> int:
        """Number of values that are neither NaN nor infinite."""
        return self.count - self.nan - self.inf

    @property
    def row_norm_spread(self) -> float:
        """Standard deviation of the row norms over their mean; NaN where there is no such row."""
        return self.row_norm_std / self.row_norm_mean if self.row_norm_mean > 0 else nan


def tensor_statistics(
    checkpoint: Checkpoint,
    names: str | Iterable[str] | None = None,
    *,
    effective_rank: bool = False,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> dict[str, TensorStatistics]:
    """Statistics of some or all tensors of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        names: One name, several, or None for all.
        effective_rank: Also compute the effective rank of tensors with two or more dimensions.
        progress: Called as `progress(done, total, name)`, in bytes, after each piece of work; from the
            calling thread.
        threads: Worker threads.

    Returns:
        Name → statistics, in the order asked for. Complex tensors and dtypes smaller than a byte (F4, F6)
        have no statistics and are left out.

    Raises:
        InputError: A name is not in the checkpoint, or a file shrank since it was opened.
    """
    asked = list(checkpoint.tensors) if names is None else [names] if isinstance(names, str) else list(names)
    tensors = [info for info in map(checkpoint.info, asked) if BlockReader.can_read(info)]
    work = [(info, start, stop) for info in tensors for start, stop in _segments(info)]
    total = sum(info.nbytes for info in tensors)
    sums: dict[str, _Sums] = {info.name: _Sums() for info in tensors}
    idle: list[BlockReader] = []

    def run(item: tuple[TensorInfo, int, int]) -> _Sums:
        reader = idle.pop() if idle else BlockReader(checkpoint)
        try:
            return _reduce(reader, *item)
        finally:
            idle.append(reader)

    done = 0
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for (info, start, stop), part in zip(work, pool.map(run, work), strict=True):
            sums[info.name].add(part)
            done += (stop - start) * (info.nbytes // info.shape[0] if info.shape else info.nbytes)
            if progress is not None:
                progress(done, total, info.name)
    for reader in idle:
        reader.close()
    results = {info.name: sums[info.name].finish(info) for info in tensors}
    if effective_rank:
        results = {name: _with_rank(checkpoint, result) for name, result in results.items()}
    return results


def _segments(info: TensorInfo) -> Iterator[tuple[int, int]]:
    """Ranges of the first dimension of about SEGMENT_BYTES each; a scalar is one row."""
    rows = info.shape[0] if info.shape else 1
    if not info.numel:
        return
    step = max(1, SEGMENT_BYTES * rows // max(1, info.nbytes))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


@dataclass(slots=True)
class _Sums:
    """What adds up: counts, power sums over finite values, extremes, and the same of the row norms."""

    nan: int = 0
    inf: int = 0
    zeros: int = 0
    finite: int = 0
    mean: float = 0.0
    squared_deviations: float = 0.0
    absolute: float = 0.0
    squares: float = 0.0
    fourths: float = 0.0
    min: float = INFINITY
    max: float = -INFINITY
    rows: int = 0
    zero_rows: int = 0
    norms: float = 0.0
    norm_squares: float = 0.0
    norm_min: float = INFINITY
    norm_max: float = -INFINITY

    def add(self, other: _Sums) -> None:
        """Merge another part; means and squared deviations by Chan, Golub and LeVeque's pairwise update."""
        both = self.finite + other.finite
        if other.finite:
            delta = other.mean - self.mean
            self.squared_deviations += (
                other.squared_deviations + delta * delta * self.finite * other.finite / both
            )
            self.mean += delta * other.finite / both
        self.finite = both
        for name in (
            "nan",
            "inf",
            "zeros",
            "absolute",
            "squares",
            "fourths",
            "rows",
            "zero_rows",
            "norms",
            "norm_squares",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.norm_min = min(self.norm_min, other.norm_min)
        self.norm_max = max(self.norm_max, other.norm_max)

    def add_norms(self, norms: NDArray[Any]) -> None:
        """Count the L2 norms (float64) of complete rows."""
        self.rows += len(norms)
        self.zero_rows += int((norms == 0).sum())
        norms = norms[norms > 0]
        if not len(norms):
            return
        self.norms += float(norms.sum())
        self.norm_squares += float(norms @ norms)
        self.norm_min = min(self.norm_min, float(norms.min()))
        self.norm_max = max(self.norm_max, float(norms.max()))

    def finish(self, info: TensorInfo) -> TensorStatistics:
        n, some = self.finite, self.finite > 0
        rows = self.rows - self.zero_rows
        norm_mean = self.norms / rows if rows else nan
        norm_variance = self.norm_squares / rows - norm_mean * norm_mean if rows else nan
        return TensorStatistics(
            name=info.name,
            count=info.numel,
            nan=self.nan,
            inf=self.inf,
            zeros=self.zeros,
            mean=self.mean if some else nan,
            std=sqrt(self.squared_deviations / n) if some else nan,
            abs_mean=self.absolute / n if some else nan,
            min=self.min if some else nan,
            max=self.max if some else nan,
            kurtosis=n * (self.fourths / self.squares) / self.squares if self.squares > 0 else nan,
            rows=self.rows,
            zero_rows=self.zero_rows,
            row_norm_mean=norm_mean,
            row_norm_std=sqrt(max(0.0, norm_variance)) if rows else nan,
            row_norm_min=self.norm_min if rows else nan,
            row_norm_max=self.norm_max if rows else nan,
        )


def _reduce(reader: BlockReader, info: TensorInfo, start: int, stop: int) -> _Sums:
    """The sums of rows `start` to `stop`."""
    import numpy as np

    sums = _Sums()
    buffers = reader.buffers(info)
    unfinished = 0.0  # squares of the part of a wide row that was seen so far
    with np.errstate(all="ignore"):
        for block, ends_row in reader.blocks(info, start, stop):
            part, row_squares = _reduce_block(block, buffers)
            sums.add(part)
            if len(info.shape) < 2:
                continue
            row_squares[0] += unfinished
            unfinished = 0.0 if ends_row else float(row_squares[0])
            if ends_row:
                sums.add_norms(np.sqrt(row_squares))
    return sums


def _reduce_block(block: NDArray[Any], buffers: WorkBuffers) -> tuple[_Sums, NDArray[Any]]:
    """Sums of one block [rows, columns], which is overwritten, and each row's sum of squares (float64)."""
    import numpy as np

    n = block.size
    low, high = float(np.minimum.reduce(block, axis=None)), float(np.maximum.reduce(block, axis=None))
    if low == high == 0.0:
        return _Sums(zeros=n, finite=n, min=0.0, max=0.0), np.zeros(len(block))
    squares = np.multiply(block, block, out=buffers.scratch[:n].reshape(block.shape))
    row_squares = _row_sums(squares, buffers)
    fourths = float(_row_products(squares, squares).sum())
    if not np.isfinite(fourths):
        return _reduce_unusual(block)
    faint = row_squares < FAINT**2 * block.shape[1]
    if faint.any() and block[faint].any():
        return _reduce_unusual(block)
    total_squares = float(row_squares.sum())
    mean = float(_row_sums(block, buffers).sum()) / n
    deviations = total_squares - n * mean * mean
    if deviations < 1e-3 * total_squares:
        # Nearly constant: the difference of two large sums has lost its digits, so take both about the mean.
        shift = block.dtype.type(mean)
        np.subtract(block, shift, out=squares)
        moved = float(_row_sums(squares, buffers).sum()) / n
        mean = float(shift) + moved
        deviations = float(_row_products(squares, squares).sum()) - n * moved * moved
    zeros = 0
    if low <= 0.0 <= high:
        zeros = int(np.count_nonzero(np.equal(block, 0, out=buffers.mask[:n].reshape(block.shape))))
    np.absolute(block, out=block)
    part = _Sums(
        zeros=zeros,
        finite=n,
        mean=mean,
        squared_deviations=max(0.0, deviations),
        absolute=float(_row_sums(block, buffers).sum()),
        squares=total_squares,
        fourths=fourths,
        min=low,
        max=high,
    )
    return part, row_squares


def _row_sums(block: NDArray[Any], buffers: WorkBuffers) -> NDArray[Any]:
    """Each row's sum, float64: as a product with a vector of ones it runs at the speed of the cache."""
    return _row_products(block, buffers.ones[: block.shape[1]])


def _row_products(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Each row's dot product, float64; pieces short enough for the block's own precision are added up in it."""
    import numpy as np

    total = np.zeros(len(left))
    for at in range(0, left.shape[1], PIECE):
        total += np.vecdot(left[:, at : at + PIECE], right[..., at : at + PIECE])
    return total


def _reduce_unusual(block: NDArray[Any]) -> tuple[_Sums, NDArray[Any]]:
    """`_reduce_block` for NaNs, infinities or overflowing powers: in float64, over finite values."""
    import numpy as np

    wide = block.astype(np.float64)
    nans, infinite = np.isnan(wide), np.isinf(wide)
    finite = ~(nans | infinite)
    values = wide[finite]
    part = _Sums(nan=int(nans.sum()), inf=int(infinite.sum()), finite=values.size)
    if values.size:
        squares = values * values
        part = replace(
            part,
            zeros=int(np.count_nonzero(values == 0)),
            mean=float(values.mean()),
            squared_deviations=float(((values - values.mean()) ** 2).sum()),
            absolute=float(np.abs(values).sum()),
            squares=float(squares.sum()),
            fourths=float((squares * squares).sum()),
            min=float(values.min()),
            max=float(values.max()),
        )
    wide[~finite] = 0.0
    return part, np.vecdot(wide, wide)


def _with_rank(checkpoint: Checkpoint, result: TensorStatistics) -> TensorStatistics:
    from eagle3lab.checkpoint.training_state import sample_spectrum

    spectrum = sample_spectrum(checkpoint, result.name)
    if spectrum is None:
        return result
    return replace(result, effective_rank=spectrum.effective_rank, rank_limit=min(spectrum.shape))
