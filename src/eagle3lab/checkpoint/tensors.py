"""One stored tensor: name, dtype, shape and place, and its stored bytes as numbers, also in dtypes numpy lacks."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cache
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any

from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bits per element of every dtype that the safetensors format knows (its own spelling).
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

FLOAT_DTYPES = frozenset(name for name in DTYPE_BITS if name.startswith(("F", "BF")))

# A dimension or a byte count beyond this cannot be addressed by any reader.
LARGEST_SIZE = 2**63 - 1

# torch and numpy both stop at 64 dimensions.
LARGEST_RANK = 64


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint, as its file's header describes it.

    Attributes:
        name: The name in the file (untrusted; show it through `eagle3lab.text.printable`).
        dtype: The dtype in the spelling of safetensors: "BF16", "F32", "I64", "BOOL", "F8_E4M3", …
        shape: The dimensions, outermost first; () for a scalar.
        nbytes: Size of the values in bytes (elements × bits / 8).
        file: The file that holds it, relative to the checkpoint's folder.
        offset: Where its first element lies, in bytes from the beginning of that file. For a `.bin` this is
            inside the zip member of its storage.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the dtype is a real floating-point one (complex is not)."""
        return self.dtype in FLOAT_DTYPES


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
