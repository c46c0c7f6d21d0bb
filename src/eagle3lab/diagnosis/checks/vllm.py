"""Names that stop vLLM, for E3L-N02: as its load is simulated, else by a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle3lab.diagnosis.checks.base import Found, SkipCheck, listed, seen
from eagle3lab.diagnosis.checks.names import OTHER_LAYERS, at_its_name, is_bias, is_scale, is_state_norm, sure
from eagle3lab.diagnosis.evidence.investigation import Investigation
from eagle3lab.diagnosis.evidence.load import Load
from eagle3lab.engines.release import store

_NAMES_OF_VLLM = (
    "Rename the tensors: layers.0.* or midlayer.* for the layer, fc, norm and lm_head at the top level."
)


def rejected_by_vllm(case: Investigation) -> Iterator[Found]:
    """The name at which vLLM stops; nothing where it stops at none."""
    return _unknown(case) if case.vllm_load is None else _stops(case, case.vllm_load)


def _stops(case: Investigation, load: Load) -> Iterator[Found]:
    """The name at which vLLM's loader stops; what it belongs to says what to do."""
    assert case.engine is not None and case.config is not None
    stopped = load.rejected
    if stopped is None or not at_its_name(case, stopped):
        return
    name, fault, fix = stopped.name, None, _NAMES_OF_VLLM
    if name == "d2t" and not case.config.draft_vocab_size and case.blames("head-kind.config-value"):
        raise SkipCheck("the token map has no place without draft_vocab_size, which is looked at by itself")
    if _newer_than_release(case, name):
        raise SkipCheck(f"{case.engine} is too old for {name}, which is looked at by itself")
    if name == "d2t":
        fix = "Leave d2t out where draft_vocab_size is vocab_size; else state the rows of lm_head there."
    elif is_scale(name):
        fault, fix = "layer.quantisation", "Give an unquantised drafter, or one with its quantization_config."
    elif is_state_norm(name):
        flag = "norm_before_fc" if "input_norm" in name else "fc_norm"
        fault, fix = "layer.norm-before-fc", f'Set "{flag}": true in config.json.'
    elif any(part in name for part in OTHER_LAYERS):
        fault = "names.unsupported-tensor"
        fix = "Serve it with a class whose layer has these parameters (vLLM 0.24 or later has one for Qwen3 layers), "
        fix += "or train without them."
    yield Found(
        f"{case.engine} stops at the name {name}",
        (
            seen(stopped.reason, tensor=name),
            seen(f"{load.plan.drafter_class} of {load.plan.engine}, simulated"),
        ),
        fix,
        fault=fault,
        confidence=sure(case),
    )


def _newer_than_release(case: Investigation, name: str) -> bool:
    """Whether E3L-L10 says of a tensor that this vLLM release does not know it yet."""
    assert case.engine is not None
    rule = ""
    if is_state_norm(name):
        rule = "reads norm_before_fc" if "input_norm" in name else "reads fc_norm"
    elif is_bias(name) and case.tensor("q_proj.bias") is not None:
        rule = "loads attention biases"
    return bool(rule and case.engine.number) and not case.engine.holds(rule)


def _unknown(case: Investigation) -> Iterator[Found]:
    """The same for loads that cannot be simulated: names like none that vLLM's drafters have."""
    known = re.compile(store()["vllm_drafter"]["names"])
    unknown = tuple(name for name in case.names if not known.match(name))
    if case.is_eagle3 and unknown:
        yield Found(
            f"vLLM stops at the name {unknown[0]}",
            (
                seen(
                    f"{len(unknown)} names are none that vLLM's drafter knows: {listed(unknown)}",
                    tensor=unknown[0],
                ),
            ),
            _NAMES_OF_VLLM,
            confidence=0.85,
        )
