"""A checkpoint folder, opened lazily and read-only."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint.config import DrafterConfig, parse_config
from eagle3lab.checkpoint.files import CONFIG_FILE, FileSet, find_files, safe_file
from eagle3lab.checkpoint.json_input import read_json_object
from eagle3lab.checkpoint.safetensors_header import read_header
from eagle3lab.checkpoint.tensors import TensorInfo
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        return read_json_object(safe_file(self._root, CONFIG_FILE))

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
        return safe_file(self._root, tensor.file)

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
        from eagle3lab.checkpoint.values import decode

        return decode(self.read_stored(name), self.info(name), self.path)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows `start` to `stop` (exclusive) of the first dimension, decoded like `read`."""
        from eagle3lab.checkpoint.values import decode

        return decode(self._rows(name)[start:stop], self.info(name), self.path)

    def read_selected(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows numbered in `rows` (integers within the first dimension), decoded like `read`; a copy."""
        from eagle3lab.checkpoint.values import decode

        return decode(self._rows(name)[rows], self.info(name), self.path)

    def _rows(self, name: str) -> NDArray[Any]:
        stored = self.read_stored(name)
        return stored if stored.ndim else stored.reshape(1)  # a scalar counts as one row

    def read_stored(self, name: str) -> NDArray[Any]:
        """The stored values as a read-only view of the memory-mapped file, without decoding.

        BF16 appears as uint16 and the 8-bit floats as uint8, holding their bit patterns.
        """
        from eagle3lab.checkpoint.values import stored_view

        tensor = self.info(name)
        return stored_view(self._map(tensor.file), tensor, self.strides(tensor), self.path)

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = safe_file(self._root, file)
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
        path = safe_file(root, file)
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
