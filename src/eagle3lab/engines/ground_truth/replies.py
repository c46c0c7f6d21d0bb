"""A worker's reply read as a load plan: what the ground truths of all engines have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.loading.plan import (
    ConstructionError,
    LoadPlan,
    ParameterPlan,
    Slice,
    Status,
    TensorPlan,
)
from eagle3lab.engines.loading.words import config_notes

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig, TensorInfo


def headers(tensors: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    """Tensors as a request names them."""
    return [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in tensors]


def rejected(name: str, answer: Mapping[str, Any], parameter: str | None) -> TensorPlan:
    """A tensor that was refused on its way to `parameter`."""
    reason = ": ".join(filter(None, (answer["exception"], answer["message"])))
    return TensorPlan(name, "rejected", parameter, (), reason, answer["exception"])


def without_effect(name: str, skipped: bool) -> TensorPlan:
    """A tensor after which nothing had changed, whether `skipped` by its name or dropped."""
    if skipped:
        return TensorPlan(name, "special", None, (), "nothing changed; skipped by its name")
    return TensorPlan(name, "dropped", None, (), "nothing changed")


def loaded(name: str, reached: Mapping[str, Any]) -> TensorPlan:
    """A tensor whose values were found in a parameter."""
    slices = tuple(
        Slice(**{key: (value[0], value[1]) for key, value in part.items()}) for part in reached["slices"]
    )
    return TensorPlan(name, "loaded", reached["parameter"], slices, "its values were found in the parameter")


def filled(entry: Mapping[str, Any], from_target: bool, replaced: bool) -> ParameterPlan:
    """A parameter by how much of it was written, if it is not taken `from_target`."""
    written, elements = entry["written"], entry["elements"]
    status: Status = "partly loaded"
    if from_target:
        status = "taken from target"
    elif written == 0:
        status = "left as initialised"
    elif written == elements:
        status = "loaded"
    reason = f"{written} of {elements} elements were written"
    return ParameterPlan(entry["name"], tuple(entry["shape"]), status, reason, replaced)


def assembled(
    reply: Mapping[str, Any],
    config: DrafterConfig,
    engine: EngineFacts,
    offered: Sequence[TensorInfo],
    plans: Sequence[TensorPlan],
    parameters: Iterable[ParameterPlan],
    tp_size: int,
    tp_rank: int,
) -> LoadPlan:
    """The plan of a load; tensors after the last of `plans` were not reached."""
    error = reply.get("construction_error")
    reason = "the drafter could not be built" if error else "loading had stopped"
    unreached = (TensorPlan(t.name, "not reached", None, (), reason) for t in offered[len(plans) :])
    return LoadPlan(
        engine=engine.spec,
        drafter_class=reply.get("class", engine.drafter.name),
        tp_size=tp_size,
        tp_rank=tp_rank,
        tensors=(*plans, *unreached),
        parameters=tuple(parameters),
        construction_error=None if error is None else ConstructionError(error["type"], error["message"]),
        notes=(*config_notes(config, engine), "Seen: the release's own loader ran on this machine's CPU."),
    )
