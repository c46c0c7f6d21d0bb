"""How a tensor of some shape gets into a parameter, or why it does not: the weight loaders, on shapes.

The rules are those of SGLang's `layers/linear.py` and `layers/vocab_parallel_embedding.py` as a GPU server runs
them; what torch itself refuses (a slice out of range, shapes that do not broadcast) is refused in its words.
Values and dtypes never matter: everything is copied with a cast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3lab.engines.loading.drafter import LocalParameter, Shard
from eagle3lab.engines.loading.plan import Range, Slice

if TYPE_CHECKING:
    from eagle3lab.checkpoint import TensorInfo

Shape = tuple[int, ...]


class Rejection(Exception):
    """The engine's loader raises, and loading stops.

    Attributes:
        exception: Type of what it raises.
        message: Its text.
        written: Rows of the parameter that were written before.
    """

    def __init__(self, exception: str, message: str, written: tuple[Range, ...] = ()) -> None:
        super().__init__(message)
        self.exception = exception
        self.message = message
        self.written = written


@dataclass(frozen=True, slots=True)
class Placement:
    """What one tensor does to one parameter.

    Attributes:
        slices: Which part goes where; empty where ranges cannot say it.
        written: Rows of the parameter that are no longer as initialised.
    """

    slices: tuple[Slice, ...]
    written: tuple[Range, ...]


def place(
    parameter: LocalParameter, shard_key: str | int | None, shape: Shape, zero_filled: tuple[str, ...]
) -> Placement:
    """Put a tensor of `shape` into `parameter`.

    Args:
        parameter: The local part of the parameter.
        shard_key: Which of its shards the tensor is; None for all of it.
        shape: The tensor's shape.
        zero_filled: Kinds of parameters for which the release fills up tensors that are too short.

    Raises:
        Rejection: The engine's loader would raise.
    """
    fills = parameter.kind in zero_filled
    if parameter.kind in ("qkv", "merged column"):
        shard = None if shard_key is None else parameter.shard(shard_key)
        if shard is None:
            return _fused(parameter, shape, fills)
        return _placement(_shard(parameter, shard, shape, fills))
    if parameter.kind == "vocabulary":
        return _vocabulary(parameter, shape)
    if parameter.kind == "column parallel":
        (stretch,) = (shard for _, shard in parameter.shards)
        return _placement(_column_parallel(parameter, stretch, shape))
    if parameter.kind == "replicated linear":
        _assert_equal(parameter.shape, shape or (1,))
        return _placement(_whole(parameter))
    if parameter.kind == "row parallel":
        return _placement(_row_parallel(parameter, shape, fills))
    return _placement(_replicated(parameter, shape))


def _placement(part: Slice) -> Placement:
    rows = part.parameter_rows if part.zero_rows is None else (part.parameter_rows[0], part.zero_rows[1])
    return Placement((part,), (rows,))


def _replicated(parameter: LocalParameter, shape: Shape) -> Slice:
    single = all(dimension == 1 for dimension in (*shape, *parameter.shape))
    if shape != parameter.shape and not single:
        raise Rejection(
            "AssertionError",
            f"Attempted to load weight ({_size(shape)}) into parameter ({_size(parameter.shape)})",
        )
    return _whole(parameter)


def _whole(parameter: LocalParameter) -> Slice:
    rows = (0, parameter.shape[0])
    return Slice(rows, rows)


def _shard(parameter: LocalParameter, shard: Shard, shape: Shape, fills: bool) -> Slice:
    """A tensor of its own for one shard: this rank's rows, cut out or filled up."""
    taken = shard.size
    if fills:
        if not shape:
            raise Rejection("IndexError", "tuple index out of range")
        taken = min(shard.size, max(shape[0] - shard.start, 0))
        cut = (shard.size, *shape[1:])
    if taken == shard.size:
        cut = narrow(shape, shard.start, shard.size)
    wanted = (shard.size, *parameter.shape[1:])
    if cut != wanted:
        # One of the two loaders says what it found, the other asserts without a word.
        found = f"param_data.shape={_size(wanted)} loaded_weight.shape={_size(cut)}"
        raise Rejection("AssertionError", "" if fills else found)
    return _rows(shard.at, shard.size, shard.start, taken)


def _rows(at: int, size: int, start: int, taken: int) -> Slice:
    """`taken` rows from `start` on into `size` rows from `at` on, the rest zero."""
    return Slice(
        (at, at + taken),
        (start, start + taken) if taken else (0, 0),
        zero_rows=None if taken == size else (at + taken, at + size),
    )


def _fused(parameter: LocalParameter, shape: Shape, fills: bool) -> Placement:
    """One tensor that holds all shards, one below the other: each is cut out and loaded like one of its own."""
    slices: list[Slice] = []
    offset = 0
    for _, shard in parameter.shards:
        written = tuple(part.parameter_rows for part in slices)
        try:
            part = _shard(parameter, shard, narrow(shape, offset, shard.whole), fills)
        except Rejection as rejection:
            raise Rejection(rejection.exception, rejection.message, written) from None
        slices.append(
            Slice(part.parameter_rows, (part.tensor_rows[0] + offset, part.tensor_rows[1] + offset))
        )
        offset += shard.whole
    return Placement(_joined(slices), tuple(part.parameter_rows for part in slices))


def _joined(slices: list[Slice]) -> tuple[Slice, ...]:
    """Neighbouring stretches that are neighbours in the tensor too, as one."""
    joined: list[Slice] = []
    for part in slices:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.parameter_rows[1] == part.parameter_rows[0]
            and last.tensor_rows[1] == part.tensor_rows[0]
        ):
            joined[-1] = Slice(
                (last.parameter_rows[0], part.parameter_rows[1]), (last.tensor_rows[0], part.tensor_rows[1])
            )
        else:
            joined.append(part)
    return tuple(joined)


def _row_parallel(parameter: LocalParameter, shape: Shape, fills: bool) -> Slice:
    """Every rank takes all rows and its own columns; a bias is taken whole by each."""
    if len(parameter.shape) == 1:
        _assert_equal(parameter.shape, shape or (1,))
        return _whole(parameter)
    height, width = parameter.shape
    if len(shape) < 2:
        raise Rejection("IndexError", "tuple index out of range")
    start, stop = parameter.start, parameter.start + width
    taken = min(width, max(shape[1] - start, 0)) if fills else width
    cut = narrow(shape, start, width, 1) if taken == width else (shape[0], width, *shape[2:])
    _assert_equal(parameter.shape, cut)
    if taken == 0 and width:
        return Slice((0, 0), (0, 0), zero_rows=(0, height))
    if start == 0 and taken == width == shape[1]:
        return _whole(parameter)
    return Slice(
        (0, height),
        (0, height),
        (0, taken),
        (start, start + taken),
        zero_columns=None if taken == width else (taken, stop - start),
    )


def _column_parallel(parameter: LocalParameter, stretch: Shard, shape: Shape) -> Slice:
    """Every rank takes its own rows and all columns; rows beyond the last rank's are never looked at."""
    cut = narrow(shape, stretch.start, stretch.size)
    _assert_equal(parameter.shape, cut or (1,))
    return _rows(0, stretch.size, stretch.start, stretch.size)


def _assert_equal(wanted: Shape, found: Shape) -> None:
    if wanted != found:
        raise Rejection(
            "AssertionError", f"param_data.shape={_size(wanted)} loaded_weight.shape={_size(found)}"
        )


def _vocabulary(parameter: LocalParameter, shape: Shape) -> Placement:
    """The row count must be exact; what is left is a copy, which broadcasts; padding rows become zero."""
    if not shape:
        raise Rejection("IndexError", "tuple index out of range")
    if shape[0] != parameter.vocabulary:
        raise Rejection(
            "AssertionError",
            f"self.org_vocab_size={parameter.vocabulary} self.use_presharded_weights=False "
            f"loaded_weight.shape[output_dim]={shape[0]}",
        )
    height, width = parameter.shape
    held = parameter.rows_held
    cut = narrow(shape, parameter.start, held)
    result = broadcast((held, width), cut)
    if result != (held, width):
        raise Rejection(
            "RuntimeError",
            f"output with shape [{held}, {width}] doesn't match the broadcast shape {list(result)}",
        )
    written = ((0, height),)
    if len(cut) == 1 and held > 1:
        return Placement((), written)
    part = _rows(0, height, parameter.start, held)
    if cut[-1] != width and held:
        part = Slice(
            part.parameter_rows, part.tensor_rows, (0, width), (0, cut[-1]), zero_rows=part.zero_rows
        )
    return Placement((part,), written)


def promotes(dtype: str) -> bool:
    """Whether torch computes with this dtype of a safetensors header and another: not with the narrow ones."""
    return not dtype.startswith("F8") and dtype not in ("U16", "U32", "U64")


def joined_shape(first: TensorInfo, second: TensorInfo) -> Shape:
    """The shape of `torch.cat((first, second))`.

    Raises:
        Rejection: torch refuses.
    """
    one, other = first.shape, second.shape
    for position, shape in enumerate((one, other)):
        if not shape:
            message = f"zero-dimensional tensor (at position {position}) cannot be concatenated"
            raise Rejection("RuntimeError", message)
    if first.dtype != second.dtype and not (promotes(first.dtype) and promotes(second.dtype)):
        raise Rejection("RuntimeError", f"Promotion for {first.dtype} and {second.dtype} is not supported")
    # Of old, torch takes an empty vector for nothing at all.
    if (0,) in (one, other):
        return other if one == (0,) else one
    if len(one) != len(other):
        message = f"Tensors must have same number of dimensions: got {len(one)} and {len(other)}"
        raise Rejection("RuntimeError", message)
    for ours, theirs in zip(one[1:], other[1:], strict=True):
        if ours != theirs:
            message = (
                "Sizes of tensors must match except in dimension 0. "
                f"Expected size {ours} but got size {theirs} for tensor number 1 in the list."
            )
            raise Rejection("RuntimeError", message)
    return (one[0] + other[0], *one[1:])


def narrow(shape: Shape, start: int, length: int, dimension: int = 0) -> Shape:
    """The shape of `torch.narrow`.

    Raises:
        Rejection: torch refuses.
    """
    if not shape:
        raise Rejection("RuntimeError", "narrow() cannot be applied to a 0-dim tensor.")
    size = shape[dimension]
    if start > size:
        raise Rejection(
            "IndexError",
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})",
        )
    if start + length > size:
        raise Rejection(
            "RuntimeError", f"start ({start}) + length ({length}) exceeds dimension size ({size})."
        )
    return (*shape[:dimension], length, *shape[dimension + 1 :])


def broadcast(one: Shape, other: Shape) -> Shape:
    """The shape of an elementwise operation in torch.

    Raises:
        Rejection: The shapes do not go together.
    """
    rank = max(len(one), len(other))
    left = (1,) * (rank - len(one)) + one
    right = (1,) * (rank - len(other)) + other
    result = []
    for at in range(rank - 1, -1, -1):
        a, b = left[at], right[at]
        if a != b and 1 not in (a, b):
            raise Rejection(
                "RuntimeError",
                f"The size of tensor a ({a}) must match the size of tensor b ({b}) "
                f"at non-singleton dimension {at}",
            )
        result.append(b if a == 1 else a)
    return tuple(reversed(result))


def _size(shape: Shape) -> str:
    return f"torch.Size({list(shape)})"
