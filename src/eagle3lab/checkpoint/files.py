"""Which files of a folder an engine reads, in which order, and which it passes over.

The rules are those of SGLang's `DefaultModelLoader._prepare_weights` with `--load-format auto` (0.5.9 and
0.5.23 agree): `*.safetensors`, else `*.bin`, else `*.pt`, first pattern with a file wins; safetensors that
`model.safetensors.index.json` does not name are left out silently; of torch files, a trainer's optimizer and
argument files are left out. 0.5.9 takes the rest in the order the file system lists them, 0.5.23 sorts them;
sorted is the order used here.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eagle3lab.checkpoint.json_input import json_type, line_of_key, read_json_object
from eagle3lab.errors import InputError

INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
_PATTERNS: tuple[tuple[str, Literal["safetensors", "torch"]], ...] = (
    (".safetensors", "safetensors"),
    (".bin", "torch"),
    (".pt", "torch"),
)
# Endings of torch files that a trainer leaves beside the weights.
_NOT_FOR_INFERENCE = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")


@dataclass(frozen=True, slots=True)
class IgnoredFile:
    """A weight file that the engine does not read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileSet:
    """The weight files of a folder, from the engine's point of view.

    Attributes:
        read: Names of the files an engine reads, in reading order.
        format: "safetensors", "torch" (`.bin`, `.pt`), or None when the folder holds no weights.
        index: The name of the index file that was obeyed, if any.
        ignored: Weight files that are passed over, each with the reason.
        indexed: Tensor name → file, as the index states it; empty without an index.
    """

    read: tuple[str, ...] = ()
    format: Literal["safetensors", "torch"] | None = None
    index: str | None = None
    ignored: tuple[IgnoredFile, ...] = ()
    indexed: dict[str, str] = field(default_factory=dict, repr=False)


def find_files(root: Path) -> FileSet:
    """Decide which weight files of the folder `root` an engine reads.

    Args:
        root: The folder, resolved.

    Raises:
        InputError: The index is damaged, names a file that is not there or lies outside the folder, or no
            file is left to read.
    """
    try:
        names = sorted(entry.name for entry in root.iterdir())
    except OSError as error:
        raise InputError(f"cannot be listed: {error.strerror or error}", path=root) from None
    weights = {suffix: [name for name in names if name.endswith(suffix)] for suffix, _ in _PATTERNS}
    ignored = [
        IgnoredFile(name, "hidden file") for group in weights.values() for name in group if name[0] == "."
    ]
    weights = {suffix: [name for name in group if name[0] != "."] for suffix, group in weights.items()}
    if not any(weights.values()):
        if INDEX_FILE in names:
            _read_index(root)
        return FileSet(ignored=tuple(ignored))
    chosen, format_ = next((suffix, format_) for suffix, format_ in _PATTERNS if weights[suffix])
    for suffix, _ in _PATTERNS:
        if suffix != chosen:
            ignored += (
                IgnoredFile(name, f"shadowed: the folder holds {chosen} files") for name in weights[suffix]
            )
    read = weights[chosen]
    indexed: dict[str, str] = {}
    if format_ == "torch":
        kept = [name for name in read if not name.endswith(_NOT_FOR_INFERENCE)]
        ignored += (IgnoredFile(name, "a trainer's state, not weights") for name in read if name not in kept)
    elif INDEX_FILE in names:
        indexed = _read_index(root)
        named = set(indexed.values())
        kept = [name for name in read if name in named]
        ignored += (IgnoredFile(name, f"not in {INDEX_FILE}") for name in read if name not in named)
    elif (
        len(read) == 2
        and read[0].endswith("consolidated.safetensors")
        and read[1].endswith("model.safetensors")
    ):
        kept = read[1:]
        ignored.append(IgnoredFile(read[0], "a consolidated copy of model.safetensors"))
    else:
        kept = read
    if not kept:
        raise InputError(
            f"holds {chosen} files, but none that an engine reads ({ignored[-1].reason})",
            path=root,
            advice="The engine stops with 'Cannot find any model weights'; export the drafter again.",
        )
    return FileSet(
        tuple(kept), format_, INDEX_FILE if indexed else None, tuple(sorted(ignored, key=_by_name)), indexed
    )


def _by_name(file: IgnoredFile) -> str:
    return file.name


def _read_index(root: Path) -> dict[str, str]:
    path = safe_file(root, INDEX_FILE)
    raw, text = read_json_object(path)
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict):
        problem = (
            f"weight_map is {json_type(weight_map)}, not an object"
            if "weight_map" in raw
            else "has no weight_map"
        )
        raise InputError(problem, path=path, line=line_of_key(text, "weight_map"))
    if not weight_map:
        raise InputError("its weight_map names no tensor", path=path)
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file:
            raise InputError(
                f"the file of the tensor is {json_type(file) if file != '' else 'empty'}, not a name",
                path=path,
                tensor=tensor,
                line=line_of_key(text, tensor),
            )
    _check_shards(root, path, text, weight_map)
    return weight_map


def _check_shards(root: Path, index: Path, text: str, weight_map: dict[str, str]) -> None:
    first_of = {file: tensor for tensor, file in reversed(weight_map.items())}
    for file, tensor in first_of.items():
        parts = Path(file.replace("\\", "/")).parts
        if "\0" in file or len(parts) != 1 or parts[0] in ("..", "/"):
            raise InputError(
                f"its tensors are said to be in '{file}', which is not a file directly in the folder",
                path=index,
                tensor=tensor,
                line=line_of_key(text, tensor),
                advice="An engine only reads files that lie in the folder itself.",
            )
        try:
            present = (root / file).exists()
        except OSError:  # a name too long for the file system
            present = False
        if not present:
            count = sum(shard == file for shard in weight_map.values())
            raise InputError(
                f"names the shard '{file}' for {count} tensors, but the folder does not hold it",
                path=index,
                tensor=tensor,
                advice="Copy or download that shard; without it those parameters stay uninitialised.",
            )


def safe_file(root: Path, name: str) -> Path:
    """The path of `name` in `root`, checked to be a regular file that does not leave the folder.

    The Hugging Face cache keeps a snapshot as links into the `blobs` folder of the same model; those are
    followed, other links out of the folder are not. A pipe or device is refused before it is opened.

    Raises:
        InputError: With the reason.
    """
    path = root / name
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except FileNotFoundError:
        problem = "is a link to a file that does not exist" if path.is_symlink() else "does not exist"
        raise InputError(problem, path=path, advice="Copy or download the file again.") from None
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links
        raise InputError(f"cannot be opened: {error}", path=path) from None
    if not any(real.is_relative_to(place) for place in _allowed(root)):
        raise InputError(
            "is a link to a file outside the folder, which is not followed",
            path=path,
            advice="Copy the file into the folder.",
        )
    if not stat.S_ISREG(mode):
        raise InputError("is not a regular file", path=path)
    return path


def _allowed(root: Path) -> Iterable[Path]:
    yield root
    model = root.parent.parent
    if root.parent.name == "snapshots" and model.name.startswith("models--"):
        yield model / "blobs"
