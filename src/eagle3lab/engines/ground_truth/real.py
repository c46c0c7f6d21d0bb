"""The load as it really happens: the release's own class and loader, asked what each tensor did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import EngineFacts, ModuleNames
from eagle3lab.engines.ground_truth.process import engine_process
from eagle3lab.engines.loading.drafter import Settings, engine_config
from eagle3lab.engines.loading.names import partners, route, shipped_marks, walk
from eagle3lab.engines.loading.plan import (
    ConstructionError,
    LoadPlan,
    ParameterPlan,
    Slice,
    Status,
    TensorPlan,
    differences,
)
from eagle3lab.engines.loading.simulate import (
    HOT_TOKEN_ID,
    check_request,
    config_notes,
    replacement,
    simulate_load,
)
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig, TensorInfo


# ---- a worker's reply read as a load plan ----------------------------------------------------------------------------


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


# ---- vLLM ------------------------------------------------------------------------------------------------------------


_TARGET_LAYERS, _WIDTH, _VOCABULARY = 8, 64, 256


def real_vllm(
    config: DrafterConfig, tensors: Iterable[TensorInfo], engine: EngineFacts, tp_size: int, tp_rank: int
) -> LoadPlan:
    """What a vLLM release really makes of a drafter, from its config and tensor headers in the order offered.

    Raises:
        InputError: The config cannot be read, the release is not on this machine, or a source tree or more than one
            rank is asked for.
        EngineProcessError: The release's code failed otherwise than by refusing a config or a tensor.
    """
    engine = check_request(config, engine, tp_size, tp_rank)
    if engine.root is not None:
        raise InputError(
            "vLLM's own loader is run for a release, not for a source tree",
            path=engine.root,
            advice="Name the release it was made from, vllm==X.Y.Z.",
        )
    if tp_size != 1:
        raise InputError("vLLM's own loader is run on one rank only", advice="Leave out --tp.")
    offered = list(tensors)
    settings = Settings(engine_config(config, engine), engine, tuple(tensor.name for tensor in offered))
    reply = engine_process(engine).ask(
        {
            "config": dict(config.raw),
            "target": _target(settings),
            "tensors": headers(offered),
        }
    )
    answers, entries = reply.get("tensors", []), reply.get("parameters", [])
    known = {entry["name"] for entry in entries}
    plans = [
        _vllm_tensor_plan(tensor.name, answer, settings, known)
        for tensor, answer in zip(offered, answers, strict=False)
    ]
    parameters = (_vllm_parameter_plan(entry, reply["own"]) for entry in entries)
    return assembled(reply, config, engine, offered, plans, parameters, tp_size, tp_rank)


def _target(settings: Settings) -> dict[str, Any]:
    """A small Llama whose hidden size and vocabulary are those that the drafter was made for, where it says."""
    width = settings.get("target_hidden_size") or settings.get("hidden_size") or _WIDTH
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": width,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": _TARGET_LAYERS,
        "vocab_size": settings.get("vocab_size") or _VOCABULARY,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }


def _vllm_tensor_plan(
    name: str, answer: dict[str, Any], settings: Settings, parameters: set[str]
) -> TensorPlan:
    # A name that is skipped and one that is dropped look the same from outside; so does the parameter that a
    # refused tensor was meant for. The release's name rules tell them apart.
    rules = settings.engine.names
    assert isinstance(rules, ModuleNames)
    on = {switch for switch in settings.engine.switches if settings.switch(switch)}
    way = walk(name, rules, parameters, on | shipped_marks(rules, settings.shipped))
    if answer["outcome"] == "rejected":
        return rejected(name, answer, way.parameter)
    if answer["outcome"] == "nothing":
        return without_effect(name, way.special is not None)
    return loaded(name, answer["reached"][0])


def _vllm_parameter_plan(entry: dict[str, Any], own: dict[str, bool]) -> ParameterPlan:
    kept = own.get(entry["name"].removeprefix("model.").removesuffix(".weight"), True)
    return filled(entry, from_target=not kept, replaced=not kept)


# ---- SGLang ----------------------------------------------------------------------------------------------------------


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
