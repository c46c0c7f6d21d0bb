"""A copy of a checkpoint with one thing changed: the faults that the chapters show are made with it.

The source is only read. Values that are not replaced are copied byte for byte, so a variant differs from its
original in exactly what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint import Checkpoint
from eagle3lab.checkpoint.config import flat_config
from eagle3lab.checkpoint.safetensors import Part, TensorToWrite, stored_parts, write_safetensors
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WEIGHTS = "model.safetensors"

# numpy dtype -> the safetensors spelling, for tensors that a variant replaces or adds; numpy has no bfloat16.
_SPELLING = {
    "<i8": "I64",
    "<i4": "I32",
    "<f4": "F32",
    "<f2": "F16",
    "|b1": "BOOL",
    "|i1": "I8",
    "<u2": "BF16",
}


def write_variant(
    source: Checkpoint,
    out: Path,
    *,
    rename: Callable[[str], str] | None = None,
    drop: Iterable[str] = (),
    replace: Mapping[str, NDArray[Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    without_config: Iterable[str] = (),
) -> Path:
    """Write a changed copy of `source` into the folder `out`.

    Args:
        source: The checkpoint to copy; never modified.
        out: A folder that does not exist yet or is empty.
        rename: Old tensor name → new one.
        drop: Shell patterns of (old) names to leave out.
        replace: New name → values, for tensors to replace or add (int64, int32, float32, float16, bool, or
            uint16 for the bit patterns of bfloat16).
        config: Top-level keys of config.json to set.
        without_config: Top-level keys of config.json to remove.

    Returns:
        `out`.

    Raises:
        InputError: `out` holds something already, two tensors end with one name, or a pattern drops nothing.
    """
    if out.exists() and any(out.iterdir()):
        raise InputError("is not empty", path=out, advice="Give a new folder for the copy.")
    replace = dict(replace or {})
    kept: list[TensorToWrite] = []
    patterns = dict.fromkeys(drop, 0)
    for name, tensor in source.tensors.items():
        hits = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        for pattern in hits:
            patterns[pattern] += 1
        new = rename(name) if rename else name
        if not hits and new not in replace:
            kept.append(TensorToWrite(new, tensor.dtype, tensor.shape, partial(stored_parts, source, tensor)))
    for pattern, count in patterns.items():
        if not count:
            raise InputError(f"has no tensor that matches {pattern!r}", path=source.path)
    kept += [
        TensorToWrite(name, _SPELLING[v.dtype.str], v.shape, partial(_bytes_of, v))
        for name, v in replace.items()
    ]
    kept.sort(key=lambda tensor: tensor.name)  # the same content gives the same bytes
    settings = {k: v for k, v in source.raw_config.items() if k not in set(without_config)} | dict(
        config or {}
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    write_safetensors(out / _WEIGHTS, kept, {"format": "pt"})
    return out


def _bytes_of(values: NDArray[Any]) -> tuple[Part]:
    return (values.tobytes(),)


def write_flat(source: Checkpoint, out: Path, rename: Callable[[str], str] | None = None) -> Path:
    """A copy of `source` whose config.json is flat, so that an SGLang server reads it; names as `rename` says."""
    flat = flat_config(source.config)
    return write_variant(source, out, rename=rename, config=flat, without_config=source.raw_config)
