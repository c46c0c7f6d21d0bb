"""What one stored tensor is: name, dtype, shape and where its bytes lie. Nothing here reads data."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

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
