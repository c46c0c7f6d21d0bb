"""The copy while it is planned: a config and a list of tensors that can be changed, and loaded in simulation."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint.config import ABSENT, look_up, parse_config
from eagle3lab.checkpoint.files import CONFIG_FILE
from eagle3lab.checkpoint.tensors import DTYPE_BITS, TensorInfo
from eagle3lab.engines.loading import simulate
from eagle3lab.repair.model import ConfigEdit, RenameEdit, TensorValue, ValuesEdit

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig
    from eagle3lab.checkpoint.writer import Part
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.engines.loading import LoadPlan

# Tensors up to this size (a token map of a million entries) are kept in the journal, before and after.
LARGEST_INLINE = 8 * 2**20


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the copy.

    Attributes:
        info: Its name, dtype and shape in the copy, and the file it will be in.
        origin: The tensor of the drafter whose values it keeps; None for values of its own.
        parts: Makes its own values; None for those of `origin`.
    """

    info: TensorInfo
    origin: TensorInfo | None
    parts: Callable[[], Iterable[Part]] | None = None

    @property
    def changed(self) -> bool:
        """Whether its file has to be written anew for it."""
        return self.origin is None or self.parts is not None or self.origin.name != self.info.name


class WorkingCopy:
    """A drafter's config and tensors, changed step by step; nothing is written.

    Args:
        checkpoint: The drafter.
        engine: The release it is to be loaded by.

    Attributes:
        raw: The config.json of the copy.
        tensors: Its tensors, file by file.
    """

    def __init__(self, checkpoint: Checkpoint, engine: EngineFacts) -> None:
        self.checkpoint = checkpoint
        self.engine = engine
        self.raw: dict[str, Any] = copy.deepcopy(dict(checkpoint.raw_config))
        self.tensors: list[PlannedTensor] = [PlannedTensor(t, t) for t in checkpoint.contents.offered]
        self._config: DrafterConfig | None = None

    @property
    def config(self) -> DrafterConfig:
        """The config as a drafter's.

        Raises:
            InputError: It is none.
        """
        if self._config is None:
            self._config = parse_config(
                self.raw, json.dumps(self.raw, indent=2), self.checkpoint.path / CONFIG_FILE
            )
        return self._config

    @property
    def infos(self) -> list[TensorInfo]:
        """The tensors in the order an engine is offered them: file by file, sorted by name in each safetensors file.

        A torch checkpoint keeps its own order, and becomes safetensors as soon as one of its tensors is changed.
        """
        if self.checkpoint.files.format == "torch" and not any(tensor.changed for tensor in self.tensors):
            return [tensor.info for tensor in self.tensors]
        order = {file: number for number, file in enumerate(dict.fromkeys(t.info.file for t in self.tensors))}
        return sorted((t.info for t in self.tensors), key=lambda info: (order[info.file], info.name))

    def find(self, name: str) -> TensorInfo | None:
        """The tensor of exactly this name."""
        return next((t.info for t in reversed(self.tensors) if t.info.name == name), None)

    def simulate(self) -> LoadPlan:
        """What the release makes of the copy.

        Raises:
            InputError: It cannot be simulated.
        """
        return simulate(self.config, self.infos, self.engine)

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
        self._config = None
        return edit

    def set_whole(self, raw: Mapping[str, Any]) -> ConfigEdit:
        """Replace the whole config."""
        edit = ConfigEdit("", self.raw, dict(raw))
        self.raw = copy.deepcopy(dict(raw))
        self._config = None
        return edit

    def rename(self, names: Mapping[str, str]) -> tuple[RenameEdit, ...]:
        """Rename tensors."""
        self.tensors = [
            replace(t, info=replace(t.info, name=names.get(t.info.name, t.info.name))) for t in self.tensors
        ]
        return tuple(RenameEdit(*pair) for pair in names.items())

    def replace_values(self, name: str, value: TensorValue) -> ValuesEdit:
        """Give the tensor `name` other values, or add it."""
        data = value.data
        assert data is not None

        def parts() -> Iterable[Part]:
            return (data,)

        return self.put(name, value, parts)

    def put(self, name: str, value: TensorValue, parts: Callable[[], Iterable[Part]]) -> ValuesEdit:
        """The same, with values that are made when they are written."""
        before = None
        size = prod(value.shape) * DTYPE_BITS[value.dtype] // 8
        for number, tensor in enumerate(self.tensors):
            if tensor.info.name != name:
                continue
            before = self._stored(tensor)
            info = replace(tensor.info, dtype=value.dtype, shape=value.shape, nbytes=size)
            self.tensors[number] = PlannedTensor(info, tensor.origin, parts)
        if before is None:
            file = self.checkpoint.files.read[-1]
            info = TensorInfo(name, value.dtype, value.shape, size, file, 0)
            self.tensors.append(PlannedTensor(info, None, parts))
        return ValuesEdit(name, before, value)

    def _stored(self, tensor: PlannedTensor) -> TensorValue:
        origin = tensor.origin
        assert origin is not None
        data = None
        if origin.nbytes <= LARGEST_INLINE:
            data = self.checkpoint.read_stored(origin.name).tobytes()
        return TensorValue(origin.dtype, origin.shape, data)
