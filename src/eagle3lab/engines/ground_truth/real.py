"""The load as it really happens: the release's own class and loader, asked what each tensor did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.ground_truth.process import engine_process
from eagle3lab.engines.ground_truth.real_vllm import real_vllm
from eagle3lab.engines.ground_truth.replies import (
    assembled,
    filled,
    headers,
    loaded,
    rejected,
    without_effect,
)
from eagle3lab.engines.loading.names import partners, route
from eagle3lab.engines.loading.plan import (
    LoadPlan,
    ParameterPlan,
    Slice,
    TensorPlan,
    differences,
)
from eagle3lab.engines.loading.settings import Settings, engine_config
from eagle3lab.engines.loading.simulate import HOT_TOKEN_ID, check_request, simulate_load
from eagle3lab.engines.loading.words import replacement

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig, TensorInfo


def real_load(checkpoint: Checkpoint, engine: EngineFacts, tp_size: int = 1, tp_rank: int = 0) -> LoadPlan:
    """What rank `tp_rank` of `tp_size` of this release really makes of `checkpoint`.

    Its drafter class is built from the checkpoint's config and its `load_weights` is given every tensor, each
    alone and then all in order, on this machine's CPU. The tensors hold probe values of the checkpoint's dtypes
    and shapes, because loading moves values without looking at them. The first call for a release takes seconds.

    Raises:
        InputError: The config cannot be read, or the release is not on this machine.
        EngineProcessError: The release's code failed otherwise than by refusing a config or a tensor.
    """
    return real(checkpoint.config, checkpoint.contents.offered, engine, tp_size, tp_rank)


def real(
    config: DrafterConfig,
    tensors: Iterable[TensorInfo],
    engine: EngineFacts,
    tp_size: int = 1,
    tp_rank: int = 0,
) -> LoadPlan:
    """The same from a config and tensor headers, in the order they are offered."""
    if engine.kind == "vllm":
        return real_vllm(config, tensors, engine, tp_size, tp_rank)
    engine = check_request(config, engine, tp_size, tp_rank)
    offered = list(tensors)
    asked = headers(offered)
    # A tensor that completes a pair is offered together with the one before it, in the order they are stacked.
    for second, first in partners([route(t.name, engine.names, ()) for t in offered]).items():
        asked[second]["with"] = first
    reply = engine_process(engine).ask(
        {
            "tp_size": tp_size,
            "tp_rank": tp_rank,
            "module": engine.drafter.module,
            "class": engine.drafter.name,
            "config": engine_config(config, engine),
            "config_checked": engine.config_checked,
            "tensors": asked,
        }
    )
    settings = Settings(engine_config(config, engine), engine)
    answers, entries = reply.get("tensors", []), reply.get("parameters", [])
    known = {entry["name"] for entry in entries}
    plans = [
        _tensor_plan(tensor.name, answer, settings, known)
        for tensor, answer in zip(offered, answers, strict=False)
    ]
    _share_pairs(plans, answers, asked, offered)
    parameters = (_parameter_plan(entry, settings, reply["head_from_target"]) for entry in entries)
    return assembled(reply, config, engine, offered, plans, parameters, tp_size, tp_rank)


def _share_pairs(
    plans: list[TensorPlan],
    answers: list[dict[str, Any]],
    asked: list[dict[str, Any]],
    offered: list[TensorInfo],
) -> None:
    """Give each of two tensors that were loaded as one its own part of what was seen.

    The worker finds rows of the two one below the other, the one that came first above.
    """
    for second, (answer, entry) in enumerate(zip(answers, asked, strict=False)):
        if "with" not in entry or answer["outcome"] != "loaded":
            continue
        first = int(entry["with"])
        (reached,) = answer["reached"]
        rows = offered[first].shape[0]
        for index, start, stop in ((first, 0, rows), (second, rows, rows + offered[second].shape[0])):
            parts = tuple(
                part for part in (_within(one, start, stop) for one in reached["slices"]) if part is not None
            )
            reason = "its values were found in the parameter, beside its partner's"
            plans[index] = TensorPlan(offered[index].name, "loaded", reached["parameter"], parts, reason)


def _within(part: dict[str, Any], start: int, stop: int) -> Slice | None:
    """What of a stretch comes from rows `start` to `stop` of two tensors, counted in its own."""
    low, high = max(part["tensor_rows"][0], start), min(part["tensor_rows"][1], stop)
    if low >= high:
        return None
    shift = part["parameter_rows"][0] - part["tensor_rows"][0]
    return Slice((low + shift, high + shift), (low - start, high - start))


def _tensor_plan(name: str, answer: dict[str, Any], settings: Settings, parameters: set[str]) -> TensorPlan:
    # A tensor skipped by its name and one dropped look the same from outside; so does the parameter that a
    # refused tensor was meant for. The release's name rules tell them apart.
    on = {switch for switch in settings.engine.switches if settings.switch(switch)}
    way = route(name, settings.engine.names, parameters, on)
    if answer["outcome"] == "rejected":
        return rejected(name, answer, HOT_TOKEN_ID if way.special else way.parameter)
    if answer["outcome"] == "special":
        shape = answer["shape"]
        return TensorPlan(name, "special", HOT_TOKEN_ID, (), f"hot_token_id was set, shape {shape}")
    if answer["outcome"] == "nothing":
        return without_effect(name, way.special is not None)
    (reached,) = answer["reached"]
    return loaded(name, reached)


def _parameter_plan(entry: dict[str, Any], settings: Settings, head_from_target: bool) -> ParameterPlan:
    name = entry["name"]
    heads = {fact.parameter for fact in settings.engine.from_target if fact.when_null is not None}
    return filled(entry, head_from_target and name in heads, replacement(settings, name) is not None)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The simulated and the real load of one checkpoint.

    Attributes:
        simulated: What `simulate_load` says.
        real: What happened.
        differences: Where they disagree, one line each; empty when they do not.
    """

    simulated: LoadPlan
    real: LoadPlan
    differences: tuple[str, ...]


def simulated_beside_real(
    checkpoint: Checkpoint, engine: EngineFacts, tp_size: int = 1, tp_rank: int = 0
) -> SideBySide:
    """Both loads of `checkpoint` and where they differ.

    Raises:
        InputError: As `simulate_load` and `real_load`.
        EngineProcessError: As `real_load`.
    """
    simulated = simulate_load(checkpoint, engine, tp_size, tp_rank)
    happened = real_load(checkpoint, engine, tp_size, tp_rank)
    return SideBySide(simulated, happened, tuple(differences(simulated, happened)))
