"""The load as it really happens in vLLM: its own reading of the config, its own class and loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.facts.vllm import ModuleNames
from eagle3lab.engines.ground_truth.process import engine_process
from eagle3lab.engines.loading.plan import (
    ConstructionError,
    LoadPlan,
    ParameterPlan,
    Slice,
    Status,
    TensorPlan,
)
from eagle3lab.engines.loading.settings import Settings, engine_config
from eagle3lab.engines.loading.simulate import check_request
from eagle3lab.engines.loading.walk import shipped_marks, walk
from eagle3lab.engines.loading.words import config_notes
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig, TensorInfo

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
            advice="Name the release it was made from, for example vllm==0.32.0.",
        )
    if tp_size != 1:
        raise InputError("vLLM's own loader is run on one rank only", advice="Leave out --tp.")
    offered = list(tensors)
    settings = Settings(engine_config(config, engine), engine, tuple(tensor.name for tensor in offered))
    reply = engine_process(engine).ask(
        {
            "config": dict(config.raw),
            "target": _target(settings),
            "tensors": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in offered],
        }
    )
    error = reply.get("construction_error")
    answers = [] if error else reply["tensors"]
    entries = reply.get("parameters", [])
    known = {entry["name"] for entry in entries}
    plans = [
        _tensor_plan(tensor.name, answer, settings, known)
        for tensor, answer in zip(offered, answers, strict=False)
    ]
    reason = "the drafter could not be built" if error else "loading had stopped"
    unreached = [TensorPlan(t.name, "not reached", None, (), reason) for t in offered[len(plans) :]]
    return LoadPlan(
        engine=engine.spec,
        drafter_class=reply.get("class", engine.drafter.name),
        tp_size=tp_size,
        tp_rank=tp_rank,
        tensors=(*plans, *unreached),
        parameters=tuple(_parameter_plan(entry, reply["own"]) for entry in entries),
        construction_error=None if error is None else ConstructionError(error["type"], error["message"]),
        notes=(*config_notes(config, engine), "Seen: the release's own loader ran on this machine's CPU."),
    )


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


def _tensor_plan(name: str, answer: dict[str, Any], settings: Settings, parameters: set[str]) -> TensorPlan:
    # A name that is skipped and one that is dropped look the same from outside; so does the parameter that a
    # refused tensor was meant for. The release's name rules tell them apart.
    rules = settings.engine.names
    assert isinstance(rules, ModuleNames)
    on = {switch for switch in settings.engine.switches if settings.switch(switch)}
    way = walk(name, rules, parameters, on | shipped_marks(rules, settings.shipped))
    if answer["outcome"] == "rejected":
        reason = ": ".join(filter(None, (answer["exception"], answer["message"])))
        return TensorPlan(name, "rejected", way.parameter, (), reason, answer["exception"])
    if answer["outcome"] == "nothing":
        if way.special is not None:
            return TensorPlan(name, "special", None, (), "nothing changed; skipped by its name")
        return TensorPlan(name, "dropped", None, (), "nothing changed")
    reached = answer["reached"][0]
    slices = tuple(
        Slice(**{key: (value[0], value[1]) for key, value in part.items()}) for part in reached["slices"]
    )
    return TensorPlan(name, "loaded", reached["parameter"], slices, "its values were found in the parameter")


def _parameter_plan(entry: dict[str, Any], own: dict[str, bool]) -> ParameterPlan:
    name, shape = entry["name"], tuple(entry["shape"])
    written, elements = entry["written"], entry["elements"]
    status: Status = "partly loaded"
    if written == 0:
        status = "left as initialised"
    elif written == elements:
        status = "loaded"
    kept = own.get(name.removeprefix("model.").removesuffix(".weight"), True)
    if not kept:
        status = "taken from target"
    return ParameterPlan(name, shape, status, f"{written} of {elements} elements were written", not kept)
