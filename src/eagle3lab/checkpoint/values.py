"""Stored bytes to numbers: views of a memory-mapped file, and the dtypes that numpy does not have."""

from __future__ import annotations

import mmap
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint.tensors import TensorInfo
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The little-endian numpy dtype that holds one stored element, bit for bit.
STORED_AS: dict[str, str] = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "F8_E5M2": "|u1",
    "F8_E4M3": "|u1",
    "F8_E8M0": "|u1",
    "F8_E4M3FNUZ": "|u1",
    "F8_E5M2FNUZ": "|u1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "C64": "<c8",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}

# (exponent bits, mantissa bits, exponent bias, whether it has infinities): OCP 8-bit floating point, and the
# "FNUZ" variants without infinities or negative zero.
_FLOAT8 = {
    "F8_E4M3": (4, 3, 7, False),
    "F8_E5M2": (5, 2, 15, True),
    "F8_E4M3FNUZ": (4, 3, 8, False),
    "F8_E5M2FNUZ": (5, 2, 16, False),
}


def stored_dtype(tensor: TensorInfo, path: str | PathLike[str]) -> str:
    """The numpy dtype string of one stored element.

    Raises:
        InputError: Elements smaller than a byte (F4, F6).
    """
    try:
        return STORED_AS[tensor.dtype]
    except KeyError:
        raise InputError(f"{tensor.dtype} values cannot be decoded", path=path, tensor=tensor.name) from None


def stored_view(
    mapped: mmap.mmap, tensor: TensorInfo, strides: tuple[int, ...] | None, path: str | PathLike[str]
) -> NDArray[Any]:
    """A read-only array over the mapped file; `strides` count elements, None for a contiguous tensor."""
    import numpy as np

    dtype = np.dtype(stored_dtype(tensor, path))
    step = None if strides is None else tuple(stride * dtype.itemsize for stride in strides)
    array: NDArray[Any] = (
        np.ndarray(tensor.shape, dtype, buffer=mapped, offset=tensor.offset, strides=step)
        if tensor.numel
        else np.empty(tensor.shape, dtype)
    )
    array.flags.writeable = False
    return array


def decode(stored: NDArray[Any], tensor: TensorInfo, path: str | PathLike[str]) -> NDArray[Any]:
    """Numbers out of stored elements: BF16 and 8-bit floats become float32, the rest is returned as it is."""
    import numpy as np

    if tensor.dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        wide = stored.astype("<u4")
        np.left_shift(wide, 16, out=wide)
        values: NDArray[Any] = wide.view("<f4")
    elif tensor.dtype.startswith("F8"):
        values = np.asarray(float8_table(tensor.dtype)[stored])
    else:
        return stored
    values.flags.writeable = False
    return values


@cache
def float8_table(dtype: str) -> NDArray[Any]:
    """The float32 value of each of the 256 codes of an 8-bit floating-point dtype, shape [256]."""
    import numpy as np

    codes = np.arange(256)
    if dtype == "F8_E8M0":  # a power of two; 255 is NaN
        table = np.ldexp(1.0, codes - 127)
        table[255] = np.nan
        return np.asarray(table, np.float32)
    exponent_bits, mantissa_bits, bias, infinities = _FLOAT8[dtype]
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = np.where(exponent > 0, 1.0, 0.0) + mantissa / (1 << mantissa_bits)
    table = sign * np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    if dtype.endswith("FNUZ"):
        table[0x80] = np.nan
    elif infinities:
        top = exponent == (1 << exponent_bits) - 1
        table[top & (mantissa > 0)] = np.nan
        table[top & (mantissa == 0)] = (sign * np.inf)[top & (mantissa == 0)]
    else:
        table[(codes & 0x7F) == 0x7F] = np.nan
    return np.asarray(table, np.float32)
