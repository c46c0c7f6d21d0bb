"""A checkpoint folder, opened lazily and read-only, and which of its files an engine reads, in which order.

The rules are those of SGLang's `DefaultModelLoader._prepare_weights` with `--load-format auto` (0.5.9 and
0.5.23 agree): `*.safetensors`, else `*.bin`, else `*.pt`, first pattern with a file wins; safetensors that
`model.safetensors.index.json` does not name are left out silently; of torch files, a trainer's optimizer and
argument files are left out. 0.5.9 takes the rest in the order the file system lists them, 0.5.23 sorts them;
sorted is the order used here.
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from eagle3lab.checkpoint.config import DrafterConfig, parse_config
from eagle3lab.checkpoint.json_input import json_type, line_of_key, read_json_object
from eagle3lab.checkpoint.safetensors import read_header
from eagle3lab.checkpoint.tensors import TensorInfo
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    path = safe_file(root, INDEX_FILE, follow=True)
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


def safe_file(root: Path, name: str, *, follow: bool = False) -> Path:
    """The path of `name` in `root`, checked to be a regular file; a pipe or device is refused before it is opened.

    Args:
        root: The folder.
        name: A file in it.
        follow: Whether a link to a file outside the folder is followed, as engines do where they read weights and
            config: link farms, DVC, and `--local-dir` of older huggingface_hub make such links. What is copied or
            written is never followed out, but for the Hugging Face cache, whose snapshots link into the `blobs` folder
            of the same model.

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
    if not follow and not any(real.is_relative_to(place) for place in _allowed(root)):
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


@dataclass(frozen=True, slots=True)
class Contents:
    """What the weight files of a folder hold.

    Attributes:
        offered: Every tensor in the order an engine is offered them, a name that stands in two files twice.
        strides: Strides in elements of tensors that are not stored contiguously (only `.bin` and `.pt`), by
            (file, name).
        metadata: The `__metadata__` of the safetensors files, merged; the first file that sets a key wins.
        not_tensors: "file: name (type)" of entries of a torch file that are no tensors.
    """

    offered: tuple[TensorInfo, ...]
    strides: Mapping[tuple[str, str], tuple[int, ...]]
    metadata: Mapping[str, str]
    not_tensors: tuple[str, ...]


class Checkpoint:
    """A folder with a config.json, weights, or both: a drafter's or a target's.

    Made by `open_checkpoint`. Nothing is ever written, and tensor data is only read when asked for.

    Attributes:
        path: The folder as it was given.
        files: Which weight files an engine reads, and which it passes over.
        contents: Everything the weight files hold, repeated names included.
    """

    def __init__(self, path: Path, root: Path, files: FileSet, contents: Contents) -> None:
        self.path = path
        self.files = files
        self.contents = contents
        self._root = root
        self._maps: dict[str, mmap.mmap] = {}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {len(self.tensors)} tensors)"

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name, in the order an engine is offered them.

        That order is file by file, and inside a safetensors file sorted by name (as `safe_open(...).keys()`
        is), inside a torch file as the state dict has them. A name that stands in two files keeps the later
        tensor, which is what an engine is left with; `contents.offered` has both.
        """
        return MappingProxyType({tensor.name: tensor for tensor in self.contents.offered})

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free-form `__metadata__` of the safetensors files."""
        return self.contents.metadata

    @cached_property
    def has_config(self) -> bool:
        """Whether the folder has a config.json."""
        return (self._root / CONFIG_FILE).exists()

    @cached_property
    def _config_json(self) -> tuple[dict[str, Any], str]:
        if not self.has_config:
            raise InputError(
                "has no config.json", path=self.path, advice="Copy it from where the model was saved."
            )
        return read_json_object(safe_file(self._root, CONFIG_FILE, follow=True))

    @property
    def raw_config(self) -> Mapping[str, Any]:
        """The parsed config.json of a drafter or a target.

        Raises:
            InputError: It is absent or not a JSON object.
        """
        return MappingProxyType(self._config_json[0])

    @cached_property
    def config(self) -> DrafterConfig:
        """The config.json read as a drafter's.

        Raises:
            InputError: It is absent, not JSON, or not a drafter's.
        """
        raw, text = self._config_json
        return parse_config(raw, text, self.path / CONFIG_FILE)

    def info(self, name: str) -> TensorInfo:
        """The tensor called `name`.

        Raises:
            InputError: There is none.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise InputError("is not in the checkpoint", path=self.path, tensor=name) from None

    def file_path(self, tensor: TensorInfo) -> Path:
        """The path of the file that holds `tensor`."""
        return safe_file(self._root, tensor.file, follow=True)

    def strides(self, tensor: TensorInfo) -> tuple[int, ...] | None:
        """Strides in elements of a tensor that is not stored contiguously, else None."""
        return self.contents.strides.get((tensor.file, tensor.name))

    def read(self, name: str) -> NDArray[Any]:
        """All values of a tensor.

        Returns:
            A read-only array of the tensor's shape. Dtypes that numpy has are a view of the memory-mapped
            file; BF16 and the 8-bit floats are decoded to float32, which is a copy in memory: use `read_rows`
            for large ones.

        Raises:
            InputError: The tensor does not exist or has a dtype that cannot be decoded (F4, F6).
        """
        from eagle3lab.checkpoint.tensors import decode

        return decode(self.read_stored(name), self.info(name), self.path)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows `start` to `stop` (exclusive) of the first dimension, decoded like `read`."""
        from eagle3lab.checkpoint.tensors import decode

        return decode(self._rows(name)[start:stop], self.info(name), self.path)

    def read_selected(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows numbered in `rows` (integers within the first dimension), decoded like `read`; a copy."""
        from eagle3lab.checkpoint.tensors import decode

        return decode(self._rows(name)[rows], self.info(name), self.path)

    def _rows(self, name: str) -> NDArray[Any]:
        stored = self.read_stored(name)
        return stored if stored.ndim else stored.reshape(1)  # a scalar counts as one row

    def read_stored(self, name: str) -> NDArray[Any]:
        """The stored values as a read-only view of the memory-mapped file, without decoding.

        BF16 appears as uint16 and the 8-bit floats as uint8, holding their bit patterns.
        """
        from eagle3lab.checkpoint.tensors import stored_view

        tensor = self.info(name)
        return stored_view(self._map(tensor.file), tensor, self.strides(tensor), self.path)

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = safe_file(self._root, file, follow=True)
            try:
                with path.open("rb") as stream:
                    self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise InputError(f"cannot be mapped: {error}", path=path) from None
        return self._maps[file]


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open a drafter's or a target's folder: list its files, read its headers, touch no data.

    A folder with only a config.json is fine (a target whose weights are elsewhere); `tensors` is empty then.

    Args:
        path: The folder.

    Raises:
        InputError: The folder is missing, a file, or empty; an index or a weight file is damaged, unsafe or
            incomplete. The config.json is only read when asked for.
    """
    path = Path(path)
    root = _folder(path)
    files = find_files(root)
    checkpoint = Checkpoint(path, root, files, _read_contents(root, files))
    if not files.read and not checkpoint.has_config:
        raise InputError(
            "holds neither weights (*.safetensors, *.bin, *.pt) nor a config.json",
            path=path,
            advice="Give the folder that the trainer exported.",
        )
    return checkpoint


def _folder(path: Path) -> Path:
    try:
        root = path.resolve(strict=True)
    except FileNotFoundError:
        raise InputError("does not exist", path=path) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot be opened: {error}", path=path) from None
    if not root.is_dir():
        raise InputError("is a file, not a folder", path=path, advice="Give the folder that holds it.")
    return root


def _read_contents(root: Path, files: FileSet) -> Contents:
    offered: list[TensorInfo] = []
    strides: dict[tuple[str, str], tuple[int, ...]] = {}
    metadata: dict[str, str] = {}
    not_tensors: list[str] = []
    for file in files.read:
        path = safe_file(root, file, follow=True)
        if files.format == "safetensors":
            header = read_header(path, file)
            offered += header.tensors
            metadata = {**header.metadata, **metadata}
        else:
            # Imported here: reading headers of safetensors needs neither zipfile nor the pickle reader.
            from eagle3lab.checkpoint.torch_archive import read_archive

            archive = read_archive(path, file)
            offered += archive.tensors
            strides |= {(file, name): value for name, value in archive.strides.items()}
            not_tensors += (f"{file}: {entry}" for entry in archive.others)
    return Contents(tuple(offered), strides, MappingProxyType(metadata), tuple(not_tensors))


def repeated(tensors: Iterable[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Those tensors that a later one of the same name replaces."""
    last = {tensor.name: tensor for tensor in tensors}
    return tuple(tensor for tensor in tensors if last[tensor.name] is not tensor)
