"""The copy while it is planned: a config and tensors that can be changed, loaded in simulation and diagnosed.

Nothing is written. `WorkingCopy.checkpoint` is the copy as it stands, to whoever reads a checkpoint: names, shapes,
config and values are the copy's own, read from the drafter's files, from memory or from the target's rows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint import Checkpoint, FileSet, TensorInfo
from eagle3lab.checkpoint.config import ABSENT, look_up
from eagle3lab.checkpoint.store import Contents
from eagle3lab.checkpoint.tensors import DTYPE_BITS
from eagle3lab.engines.capture import Launch, capture_plan
from eagle3lab.engines.loading import simulate
from eagle3lab.repair.model import ConfigEdit, IndexEdit, RenameEdit, TensorValue, ValuesEdit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.capture import CapturePlan
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.engines.loading import LoadPlan
    from eagle3lab.vocabulary.readings import Ids

# Tensors up to this size (a token map of a million entries) are kept in the journal, before and after.
LARGEST_INLINE = 8 * 2**20
_ROWS = 1024  # copied at a time: 15 MB of a target of width 7,168 in bfloat16


@dataclass(frozen=True, slots=True)
class Held:
    """Values that are held in memory, little-endian."""

    data: bytes

    def parts(self) -> Iterator[bytes]:
        """For a file."""
        yield self.data

    def stored(self, info: TensorInfo) -> Any:
        """As `Checkpoint.read_stored` gives them."""
        import numpy as np

        from eagle3lab.checkpoint.tensors import STORED_AS

        return np.frombuffer(self.data, STORED_AS[info.dtype]).reshape(info.shape)


@dataclass(frozen=True, slots=True, eq=False)
class TargetRows:
    """Rows of a matrix of the target, read where they lie.

    Attributes:
        target: The target's folder.
        name: The matrix.
        ids: int64 [rows]: the row of the matrix that each row is.
    """

    target: Checkpoint
    name: str
    ids: Ids

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return len(self.ids), *self.target.info(self.name).shape[1:]

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Rows, or the elements at (rows, columns), in the storage type: a copy."""
        rows, *columns = key if isinstance(key, tuple) else (key,)
        picked: NDArray[Any] = self.target.read_stored(self.name)[(self.ids[rows], *columns)]
        return picked

    def parts(self) -> Iterator[bytes]:
        """For a file."""
        for start in range(0, len(self.ids), _ROWS):
            yield self[start : start + _ROWS].tobytes()

    def stored(self, info: TensorInfo) -> Any:
        """Itself where it is large: whoever samples rows does not bring all of them into memory."""
        return self if info.nbytes > LARGEST_INLINE else self[:]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the copy.

    Attributes:
        info: Its name, dtype and shape in the copy, and the file it will be in.
        origin: The tensor of the drafter whose place it takes; None for one that is added.
        values: Its own values; None for those of `origin`.
    """

    info: TensorInfo
    origin: TensorInfo | None
    values: Held | TargetRows | None = None

    @property
    def changed(self) -> bool:
        """Whether its file has to be written anew for it."""
        return self.origin is None or self.values is not None or self.origin.name != self.info.name


class _View(Checkpoint):
    """A working copy as it stands, read like any checkpoint."""

    def __init__(self, made: WorkingCopy) -> None:
        source, tensors = made.source, made.ordered()
        strides = {}
        for tensor in tensors:
            if (
                tensor.values is not None
            ):  # not where the file has them: whoever reads files directly asks for strides
                shape = tensor.info.shape
                strides[tensor.info.file, tensor.info.name] = tuple(
                    prod(shape[axis + 1 :]) for axis in range(len(shape))
                )
            elif tensor.origin is not None and (kept := source.strides(tensor.origin)) is not None:
                strides[tensor.info.file, tensor.info.name] = kept
        contents = Contents(
            tuple(tensor.info for tensor in tensors), strides, source.metadata, source.contents.not_tensors
        )
        super().__init__(source.path, source.path.resolve(), made.files, contents)
        self._raw = copy.deepcopy(made.raw)
        self._own = {tensor.info.name: tensor for tensor in tensors if tensor.values is not None}

    @property
    def _config_json(self) -> tuple[dict[str, Any], str]:
        return self._raw, json.dumps(self._raw, indent=2)

    def read_stored(self, name: str) -> NDArray[Any]:
        own = self._own.get(name)
        if own is None or own.values is None:
            return super().read_stored(name)
        stored: NDArray[Any] = own.values.stored(own.info)
        return stored


class WorkingCopy:
    """A drafter's config and tensors, changed step by step for one release.

    Args:
        source: The drafter.
        release: The release that is to load it.
        label: What to call the release.
        target: The target's folder; None without.

    Attributes:
        source: The drafter.
        release: The release.
        target: The target's folder; None without.
        engine: The facts of the class of the release that serves the drafter.
        raw: The config.json of the copy.
        files: Which files of the folder its tensors are read from.
        tensors: Its tensors, file by file.
    """

    def __init__(
        self, source: Checkpoint, release: ReleaseFacts, label: str, target: Checkpoint | None
    ) -> None:
        self.source, self.release, self.target = source, release, target
        engine = release.engine_facts(label)
        serving = engine.serving(source.config.architectures)
        self.engine: EngineFacts = serving if serving.drafter_kind == "EAGLE-3" else engine
        self.raw: dict[str, Any] = copy.deepcopy(dict(source.raw_config))
        self.files: FileSet = source.files
        self.tensors: list[PlannedTensor] = [PlannedTensor(one, one) for one in source.contents.offered]
        self._view: Checkpoint | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The copy as it stands."""
        if self._view is None:
            self._view = _View(self)
        return self._view

    @property
    def config(self) -> DrafterConfig:
        """Its config as a drafter's.

        Raises:
            InputError: It is none.
        """
        return self.checkpoint.config

    def simulate(self, engine: EngineFacts | None = None) -> LoadPlan:
        """What the release, or another engine, makes of it.

        Raises:
            InputError: It cannot be simulated.
        """
        return simulate(self.config, list(self.checkpoint.contents.offered), engine or self.engine)

    def capture(self) -> CapturePlan:
        """What the release captures for it, under EAGLE3 and without CUDA graphs."""
        target = None if self.target is None else self.target.raw_config
        launch = Launch(cuda_graphs=False)
        return capture_plan(target, self.config, self.release, launch, engine=self.engine.spec)

    def ordered(self) -> list[PlannedTensor]:
        """The tensors in the order an engine is offered them: file by file, sorted by name in each safetensors file.

        A torch checkpoint keeps its own order, and becomes safetensors as soon as one of its tensors is changed.
        """
        if self.files.format == "torch" and not any(tensor.changed for tensor in self.tensors):
            return list(self.tensors)
        order = {file: number for number, file in enumerate(dict.fromkeys(t.info.file for t in self.tensors))}
        return sorted(self.tensors, key=lambda tensor: (order[tensor.info.file], tensor.info.name))

    def find(self, name: str) -> TensorInfo | None:
        """The tensor of exactly this name."""
        return self.checkpoint.tensors.get(name)

    def ending(self, name: str) -> TensorInfo | None:
        """The tensor of exactly this name, else the only one that has it behind a prefix."""
        found = [info for info in self.checkpoint.contents.offered if info.name.endswith(f".{name}")]
        return self.find(name) or (found[0] if len(found) == 1 else None)

    def state(self) -> Any:
        """What `restore` goes back to."""
        return copy.deepcopy(self.raw), self.files, list(self.tensors)

    def restore(self, state: Any) -> None:
        """Take back every change since `state`."""
        raw, self.files, tensors = state
        self.raw, self.tensors, self._view = copy.deepcopy(raw), list(tensors), None

    def set(self, path: str, value: Any) -> ConfigEdit:
        """Set the config at a dotted path, or remove it with `ABSENT`."""
        before = look_up(self.raw, path)
        edit = ConfigEdit(path, before if before is ABSENT else copy.deepcopy(before), value)
        *parents, key = path.split(".")
        place = self.raw
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        if value is ABSENT:
            place.pop(key, None)
        else:
            place[key] = value
        self._view = None
        return edit

    def set_whole(self, raw: Mapping[str, Any]) -> ConfigEdit:
        """Replace the whole config."""
        edit = ConfigEdit("", self.raw, dict(raw))
        self.raw, self._view = copy.deepcopy(dict(raw)), None
        return edit

    def rename(self, names: Mapping[str, str]) -> tuple[RenameEdit, ...]:
        """Rename tensors."""
        self.tensors = [
            replace(t, info=replace(t.info, name=names.get(t.info.name, t.info.name))) for t in self.tensors
        ]
        self._view = None
        return tuple(RenameEdit(*pair) for pair in names.items())

    def add_shard(self, file: str, tensors: Iterable[TensorInfo]) -> tuple[IndexEdit, ...]:
        """Have a shard of the folder read, which the index passes over."""
        self.tensors += [PlannedTensor(tensor, tensor) for tensor in tensors]
        ignored = tuple(one for one in self.files.ignored if one.name != file)
        indexed = self.files.indexed | {tensor.name: file for tensor in tensors}
        self.files = replace(self.files, read=(*self.files.read, file), ignored=ignored, indexed=indexed)
        self._view = None
        return tuple(IndexEdit(tensor.name, file) for tensor in tensors)

    def put(self, name: str, dtype: str, shape: tuple[int, ...], values: Held | TargetRows) -> ValuesEdit:
        """Give the tensor `name` other values, or add it."""
        before, size = None, prod(shape) * DTYPE_BITS[dtype] // 8
        for number, tensor in enumerate(self.tensors):
            if tensor.info.name == name and tensor.origin is not None:
                origin = tensor.origin
                small = origin.nbytes <= LARGEST_INLINE
                data = self.source.read_stored(origin.name).tobytes() if small else None
                before = TensorValue(origin.dtype, origin.shape, data)
                info = replace(tensor.info, dtype=dtype, shape=shape, nbytes=size)
                self.tensors[number] = PlannedTensor(info, origin, values)
        if before is None:
            info = TensorInfo(name, dtype, shape, size, self.files.read[-1], 0)
            self.tensors.append(PlannedTensor(info, None, values))
        self._view = None
        data = b"".join(values.parts()) if size <= LARGEST_INLINE else None
        return ValuesEdit(name, before, TensorValue(dtype, shape, data))
