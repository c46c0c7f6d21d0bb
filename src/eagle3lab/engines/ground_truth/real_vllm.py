"""The load as it really happens in vLLM: its own reading of the config, its own class and loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import EngineFacts, ModuleNames
from eagle3lab.engines.ground_truth.process import engine_process
from eagle3lab.engines.ground_truth.replies import (
    assembled,
    filled,
    headers,
    loaded,
    rejected,
    without_effect,
)
from eagle3lab.engines.loading.plan import LoadPlan, ParameterPlan, TensorPlan
from eagle3lab.engines.loading.settings import Settings, engine_config
from eagle3lab.engines.loading.simulate import check_request
from eagle3lab.engines.loading.walk import shipped_marks, walk
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
        _tensor_plan(tensor.name, answer, settings, known)
        for tensor, answer in zip(offered, answers, strict=False)
    ]
    parameters = (_parameter_plan(entry, reply["own"]) for entry in entries)
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


def _tensor_plan(name: str, answer: dict[str, Any], settings: Settings, parameters: set[str]) -> TensorPlan:
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


def _parameter_plan(entry: dict[str, Any], own: dict[str, bool]) -> ParameterPlan:
    kept = own.get(entry["name"].removeprefix("model.").removesuffix(".weight"), True)
    return filled(entry, from_target=not kept, replaced=not kept)
