"""Everything `eagle3lab inspect` tells about a checkpoint, as one record and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from os import PathLike
from typing import Any

from eagle3lab.checkpoint.config import DrafterConfig
from eagle3lab.checkpoint.provenance import Provenance, find_provenance
from eagle3lab.checkpoint.statistics import Progress, TensorStatistics, tensor_statistics
from eagle3lab.checkpoint.store import Checkpoint, open_checkpoint, repeated
from eagle3lab.checkpoint.training_state import Judgement, judge_training

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is on disk.

    Attributes:
        checkpoint: The opened folder.
        config: Its config.json as a drafter's; None when the folder has none, or one that nests a language
            model's configuration, as multimodal targets do.
        statistics: Per tensor; empty when they were not asked for.
        judgements: Per tensor; empty when statistics were not asked for.
        provenance: Who wrote it.
    """

    checkpoint: Checkpoint
    config: DrafterConfig | None
    statistics: Mapping[str, TensorStatistics]
    judgements: Mapping[str, Judgement]
    provenance: Provenance

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary (schema_version 1); NaN and infinity become null."""
        files = self.checkpoint.files
        contents = self.checkpoint.contents
        report = {
            "schema_version": SCHEMA_VERSION,
            "path": str(self.checkpoint.path),
            "files": {
                "format": files.format,
                "read": list(files.read),
                "index": files.index,
                "ignored": [asdict(file) for file in files.ignored],
                "repeated": [{"name": old.name, "file": old.file} for old in repeated(contents.offered)],
                "not_tensors": list(contents.not_tensors),
                "metadata": dict(contents.metadata),
            },
            "config": None if self.config is None else config_fields(self.config),
            "tensors": [self._tensor(name) for name in self.checkpoint.tensors],
            "provenance": asdict(self.provenance),
        }
        ready: dict[str, Any] = _finite(report)
        return ready

    def _tensor(self, name: str) -> dict[str, Any]:
        statistics, judgement = self.statistics.get(name), self.judgements.get(name)
        return {
            **asdict(self.checkpoint.tensors[name]),
            "statistics": None if statistics is None else _without_name(asdict(statistics)),
            "judgement": None if judgement is None else _without_name(asdict(judgement)),
        }


def config_fields(config: DrafterConfig) -> dict[str, dict[str, Any]]:
    """Field → its value and the place it came from."""
    return {
        field.name: {"value": _plain(getattr(config, field.name)), "source": config.sources[field.name]}
        for field in fields(config)
        if field.name in config.sources
    }


def inspect_checkpoint(
    path: str | PathLike[str],
    *,
    statistics: bool = True,
    effective_rank: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Open a checkpoint and gather what there is to know about it.

    Args:
        path: The folder.
        statistics: Whether to read the values: statistics, and whether each tensor looks trained.
        effective_rank: Whether to add each matrix's effective rank.
        progress: Called as `progress(done, total, name)`, in bytes, while values are read.

    Raises:
        InputError: The folder or one of its files cannot be read.
    """
    checkpoint = open_checkpoint(path)
    drafter = checkpoint.has_config and not isinstance(checkpoint.raw_config.get("text_config"), dict)
    values = (
        tensor_statistics(checkpoint, effective_rank=effective_rank, progress=progress) if statistics else {}
    )
    return Inspection(
        checkpoint,
        checkpoint.config if drafter else None,
        values,
        judge_training(checkpoint, values) if statistics else {},
        find_provenance(checkpoint),
    )


def _without_name(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "name"}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _finite(value: Any) -> Any:
    """`value` with every float that JSON cannot express replaced by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
