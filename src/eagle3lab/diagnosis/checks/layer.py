"""Layer: whether the drafter's layer computes in serving what it computed in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.config import ABSENT, look_up
from eagle3lab.diagnosis.checks.names import is_bias, is_scale, is_state_norm
from eagle3lab.diagnosis.framework import SkipCheck, check, listed
from eagle3lab.diagnosis.inputs import (
    Config,
    Engine,
    Head,
    Sglang,
    SglangLoad,
    SglangRelease,
    Target,
    Tensors,
    VllmRelease,
)
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen
from eagle3lab.diagnosis.releases import first_release
from eagle3lab.engines.release import or_later
from eagle3lab.engines.target import derived_context

if TYPE_CHECKING:
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.engines.launch.reading import Launch

_CONFIG = "config.json"
_DIFFERS = "The layer computes something else than in training: fewer drafts are right."
_OPTION = "has an option for the draft model's quantisation"


@check(
    "E3L-L01",
    "layer.norm-before-residual",
    impact=Impact.PARTIAL,
    effect="The residual is another state than in training, at every step: acceptance is near chance.",
)
def norm_before_residual(config: Config, engine: Engine) -> Iterator[Finding]:
    """The head was trained with norm_before_residual, which this engine ignores.

    Seen: `norm_before_residual` is true.
    Why: speculators offers it, vLLM honours it (and takes true where nothing is stated); SGLang takes the un-normed
        state as residual in every release.
    Effect: Names, map and ids are right and the arithmetic is not; accept lengths of 1.1 to 1.3.
    Repair: Train with `norm_before_residual` false, or serve with vLLM. Converting the file cannot help.
    Sources: SGLang 0.4.6 `llama_eagle3.py:72`, 0.5.9:84, 0.5.23:99.
    """
    if engine.kind == "vllm":
        if config.dialect == "speculators" and config.sources["norm_before_residual"] == "default":
            yield Finding(
                "norm_before_residual is not stated: vLLM takes it for true, speculators trains with false",
                (seen("norm_before_residual is absent", _CONFIG),),
                'State "norm_before_residual": false, or true where the head was trained so.',
                severity=Severity.WARNING,
                confidence=0.7,
            )
        return
    if config.norm_before_residual:
        yield Finding(
            "norm_before_residual is true, and SGLang does not read it",
            (seen(f"{config.sources['norm_before_residual']} is true", _CONFIG),),
            "Serve with vLLM, which honours it, or train the head without it.",
            confidence=0.97,
        )


@check(
    "E3L-L10",
    "layer.norm-before-fc",
    others=("layer.bias",),
    impact=Impact.PARTIAL,
    effect=_DIFFERS,
)
def newer_than_vllm(tensors: Tensors, config: Config, engine: VllmRelease) -> Iterator[Finding]:
    """The head has norms before fc or biases that this vLLM release does not know.

    Seen: input_norm, fc_norm or q, k, v biases are in the checkpoint, on a release from before vLLM read them.
    Why: vLLM reads attention biases from 0.16, norm_before_fc from 0.18.1 and fc_norm from 0.22.1 on.
    Effect: The tensors are left out or stop the load; the layer computes something else than in training.
    Repair: Use a later vLLM.
    Sources: vLLM `model_executor/models/llama_eagle3.py` of 0.14.1 to 0.33.0.
    """
    for ending, rule, fault in (
        ("input_norm.weight", "reads norm_before_fc", "layer.norm-before-fc"),
        ("fc_norm.0.weight", "reads fc_norm", "layer.norm-before-fc"),
        ("q_proj.bias", "loads attention biases", "layer.bias"),
    ):
        name = tensors.find(ending)
        if name is not None and not engine.holds(rule):
            first = engine.since(rule)
            yield Finding(
                f"vLLM {engine.number} does not know {name}",
                (seen(f"vLLM {rule} from {first} on ({engine.source(rule)})", tensor=name),),
                f"Use vLLM {first} or later.",
                fault=fault,
                confidence=0.85,
            )


@check("E3L-L02", "layer.norm-before-fc", impact=Impact.PARTIAL, effect=_DIFFERS)
def norm_before_fc(load: SglangLoad, config: Config, engine: Engine, facts: EngineFacts) -> Iterator[Finding]:
    """The head normalises the states before fc, which this release does not.

    Seen: input_norm or fc_norm tensors reach no parameter, or the config asks for them and they are not there.
    Why: SGLang knows fc_norm from 0.5.12 and norm_before_fc from 0.5.17 on; both must be on in the config.
    Effect: fc gets states of another scale than in training.
    Repair: Use a release that knows the norm, and state the flag in the config.
    Sources: SGLang 0.5.23 `models/llama_eagle3.py:163-200`.
    """
    lost = tuple(tensor.name for tensor in load.dropped if is_state_norm(tensor.name))
    empty = tuple(one.name for one in load.empty if is_state_norm(one.name))
    if lost:
        flag = "norm_before_fc" if any("input_norm" in name for name in lost) else "fc_norm"
        knows = flag in facts.switches
        yield Finding(
            f"{load.plan.engine} drops the norm in front of fc: {listed(lost)}",
            (
                *(
                    seen("dropped: the release builds no such norm for this config", tensor=name)
                    for name in lost[:3]
                ),
                seen(f"{flag} is {getattr(config, flag)} ({config.sources[flag]})", _CONFIG),
            ),
            f'Set "{flag}": true in config.json.'
            if knows
            else f"Use SGLang {_first_with(engine, flag)} or later, with {flag} true.",
            confidence=0.97,
        )
    elif empty:
        yield Finding(
            f"The config asks for a norm in front of fc that the weights do not hold: {listed(empty)}",
            tuple(seen(f"{name} is left as initialised") for name in empty[:3]),
            "Set the flag to false where the head was trained without it.",
            severity=Severity.WARNING,
            confidence=0.8,
        )


def _first_with(engine: Engine, switch: str) -> str | None:
    return first_release(engine.number, lambda facts: switch in facts.switches)


@check(
    "E3L-L03",
    "layer.norm-output",
    severity=Severity.WARNING,
    impact=Impact.LATER,
    effect="The first draft is right; later ones start from a state of another scale than in training.",
)
def norm_output(
    config: Config, engine: SglangRelease, tensors: Tensors | None, facts: EngineFacts | None
) -> Iterator[Finding]:
    """norm_output means something else to the trainer than to this release, or is ignored.

    Seen: `norm_output` is true on a release that does not read it, or was written by SpecForge, which means a norm
        before lm_head by it.
    Why: SGLang (from 0.5.12) feeds back the normed state when it is set; SpecForge feeds back the un-normed one.
    Effect: Position 1 is as trained, later positions are worse.
    Repair: Flip the flag and compare positions 2 and 3; use 0.5.12 or later for heads that need it.
    Sources: SpecForge `llama3_eagle.py:1690,1773`; SGLang 0.5.12 `models/llama_eagle3.py`.
    """
    if not config.norm_output:
        return
    place = config.sources["norm_output"]
    served = facts.serving(config.architectures) if facts is not None else None
    unread = served is not None and served.joins_halves and "norm_output" not in served.switches
    if unread or not engine.holds("reads norm_output"):
        first = _first_with(engine, "norm_output") if unread else engine.since("reads norm_output")
        yield Finding(
            "norm_output is true, and this release does not read it",
            (seen(f"{place} is true", _CONFIG), seen(f"SGLang reads it from {first} on")),
            f"Use SGLang {first} or later.",
            severity=Severity.ERROR,
            confidence=0.85,
        )
    elif (tensors is None or tensors.trainer in ("specforge", "unknown")) and not config.fc_norm:
        yield Finding(
            "norm_output may mean something else to the trainer than to this release",
            (
                seen(f"{place} is true", _CONFIG),
                seen("SpecForge means a norm before lm_head; SGLang feeds the normed state back"),
            ),
            "Serve once with norm_output false and compare the acceptance of positions 2 and 3.",
            confidence=0.5,
        )


@check(
    "E3L-L04",
    "layer.rope",
    impact=Impact.PARTIAL,
    effect=_DIFFERS,
)
def rope(config: Config, engine: SglangRelease) -> Iterator[Finding]:
    """The RoPE base or scaling stands in a field that this release ignores.

    Seen: Only `rope_parameters` (transformers 5) states base or scaling, on a release that reads `rope_theta` and
        `rope_scaling`.
    Why: The trainer saved the config with transformers 5.
    Effect: The engine falls back to a base of 10000 without scaling; attention to distant tokens is wrong.
    Repair: Write `rope_theta` and `rope_scaling` at the top level, or use 0.5.10 or later.
    Sources: SGLang 0.5.9 and 0.5.10 `models/llama_eagle3.py`, `models/llama.py`.
    """
    if config.dialect == "speculators" or engine.holds("reads rope_parameters"):
        return
    served = look_up(config.raw, "rope_theta")
    base = 10000.0 if served in (ABSENT, None) else float(served)
    lost_scaling = config.rope_scaling is not None and config.sources["rope_scaling"] == "rope_parameters"
    if base == config.rope_theta and not lost_scaling:
        return
    yield Finding(
        f"RoPE is served with base {base:g}"
        + (" and without scaling" if lost_scaling else "")
        + f", trained with {config.rope_theta:g}",
        (
            seen(f"rope_theta is {'absent' if served is ABSENT else served}, "
                 f"{config.sources['rope_theta']} is {config.rope_theta:g}", _CONFIG),
            seen(engine.source("reads rope_parameters")),
        ),
        f'Write "rope_theta": {config.rope_theta:g}'
        + (" and rope_scaling" if lost_scaling else "")
        + f" at the top level of config.json, or use {or_later('reads rope_parameters')}.",
        confidence=0.95,
    )  # fmt: skip


@check(
    "E3L-L11",
    "layer.rope",
    after=("layer.rope",),
    severity=Severity.NOTE,
    impact=Impact.PARTIAL,
    effect="If the head was trained with the target's base, distant tokens are attended to wrongly.",
)
def rope_of_the_target(config: Config, target: Target, log: Log | None) -> Iterator[Finding]:
    """The drafter's RoPE base is not the target's.

    Seen: The drafter's base and the target's differ, or the drafter's config states none and 10000 is used.
    Why: Some trainers ignore `rope_theta` (SafeAILab always, SpecForge before October 2025), so a base of 10000 can
        be right; others copy the target's, and a converter lost it.
    Effect: None where the head was trained with that base.
    Repair: Compare with the training configuration; serve once with the target's base.
    Sources: SafeAILab `model/cnets.py`; SpecForge d3472dde; `models/llama_eagle3.py` of SGLang.
    """
    own, other = config.rope_theta, target.rope_theta
    if other is None or own == other:
        return
    signature = log.observed.signature if log else ""
    losing = signature in ("partial", "weak-training", "below-expectation")
    yield Finding(
        f"The drafter's RoPE base is {own:g}, the target's is {other:g}",
        (
            seen(f"rope_theta is {own:g} ({config.sources['rope_theta']})", _CONFIG),
            seen(f"the target's rope_theta is {other:g}"),
        ),
        f"Find out which base the head was trained with; try rope_theta {other:g}.",
        severity=Severity.WARNING if losing else Severity.NOTE,
        confidence=0.4,
    )


@check("E3L-L05", "layer.bias", impact=Impact.PARTIAL, effect=_DIFFERS)
def bias(load: SglangLoad, config: Config, head: Head) -> Iterator[Finding]:
    """A bias exists in one of trainer and engine only.

    Seen: Bias tensors reach no parameter, or a bias that the config asks for gets no tensor.
    Why: SGLang's drafter has no bias on q, k and v in any release; `bias` and `attention_bias` give fc and o_proj one.
    Effect: Trained biases are dropped without a word; a bias that nobody fills is zero or random by release.
    Repair: Train without biases, or serve with vLLM 0.16 or later; set the flag to false where none are shipped.
    Sources: SGLang 0.4.6 `llama_eagle3.py:56`, 0.5.23:72.
    """
    if not head.eagle3:
        raise SkipCheck("the weights are not an EAGLE-3 head")
    lost = tuple(tensor.name for tensor in load.dropped if is_bias(tensor.name))
    empty = tuple(one.name for one in load.empty if one.name.endswith(".bias"))
    if lost:
        yield Finding(
            f"Trained biases are dropped: {listed(lost)}",
            (
                *(seen("dropped: this release has no such bias", tensor=name) for name in lost[:4]),
                *(seen(f"{name} is left as initialised") for name in empty[:2]),
            ),
            "Serve with an engine that has these biases (vLLM 0.16 or later), or train without them.",
            confidence=0.97,
        )
    elif empty:
        random = any("fc.bias" in name for name in empty)
        yield Finding(
            f"The engine has a bias that no tensor fills: {listed(empty)}",
            (
                *(seen(f"{name} is left as initialised") for name in empty[:3]),
                seen(f"attention_bias is {config.attention_bias}, bias is {config.bias}", _CONFIG),
            ),
            'Set "attention_bias" and "bias" to false, or export the biases.',
            severity=Severity.ERROR if random else Severity.NOTE,
            confidence=0.9 if random else 0.5,
        )


@check(
    "E3L-L06",
    "layer.attention-window",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The drafter attends further back than in training: long contexts are drafted worse.",
)
def attention_window(config: Config, sglang: Sglang, launch: Launch | None) -> Iterator[Finding]:
    """The head was trained with an attention window that serving does not apply, or the other way round.

    Seen: `sliding_window` is set and in use in the drafter's config; the engine's drafter layer attends to everything.
    Why: The layer's settings were copied from a target with windowed layers.
    Effect: None within the window; beyond it the layer sees more than in training.
    Repair: Train without a window, or limit the context to it.
    Sources: SGLang `models/llama_eagle3.py`: no sliding window; `--speculative-draft-window-size` from 0.5.12 on.
    """
    nested = config.raw.get("transformer_layer_config")
    raw = {**config.raw, **(nested if isinstance(nested, dict) else {})}
    window, kinds = raw.get("sliding_window"), raw.get("layer_types")
    used = raw.get("use_sliding_window") is True or (isinstance(kinds, list) and "sliding_attention" in kinds)
    if not isinstance(window, int) or isinstance(window, bool) or not used:
        return
    if launch is not None and launch.has("speculative-draft-window-size"):
        return
    yield Finding(
        f"The drafter's config has an attention window of {window} tokens, which SGLang does not apply",
        (seen(f"sliding_window is {window}, and in use", _CONFIG),),
        f"Set --speculative-draft-window-size ({or_later('has an option for the draft window')}), "
        "or train without a window.",
        confidence=0.7,
    )


@check(
    "E3L-L07",
    "layer.context",
    impact=Impact.STOPS,
    effect="The server stops; with the override it serves, and drafts beyond the trained length are poor.",
)
def context(
    config: Config, sglang: Sglang, target: Target | None, launch: Launch | None
) -> Iterator[Finding]:
    """The drafter's longest position is shorter than the context being served.

    Seen: The drafter's derived context length is below `--context-length`, or below the target's where none is given.
    Why: Trainers write the length they trained with, 2048 or 4096, and engines take it for a limit.
    Effect: ValueError at start, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set.
    Repair: Set --context-length to what is needed, or raise max_position_embeddings to the target's and measure.
    Sources: SGLang 0.5.9 `configs/model_config.py`, `_derive_context_length`.
    """
    asked = launch.number("context-length") if launch else None
    served = asked or (target.context if target and launch else None)
    own = derived_context(config.max_position_embeddings, config.rope_scaling)
    if served is None:
        raise SkipCheck("neither --context-length nor a target with a launch command is given")
    if config.sources["max_position_embeddings"] == "default" or own is None or served <= own:
        return
    variable = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    allowed = launch is not None and launch.environment.get(variable, "0").lower() not in (
        "0",
        "false",
        "",
    )
    yield Finding(
        f"The drafter knows {own} positions, and {served} are to be served",
        (
            seen(f"max_position_embeddings is {config.max_position_embeddings}", _CONFIG),
            seen(f"--context-length is {asked}" if asked else f"the target's context length is {served}"),
            *([seen(f"{variable} is set, so the server starts")] if allowed else []),
        ),
        f"Use --context-length {own}, or raise the drafter's max_position_embeddings and measure long contexts.",
        severity=Severity.WARNING if allowed else Severity.ERROR,
        impact=Impact.PARTIAL if allowed else Impact.STOPS,
        confidence=0.95 if asked else 0.85,
    )


@check(
    "E3L-L08",
    "layer.dtype",
    impact=Impact.STOPS,
    effect="The first forward pass stops: two dtypes meet in one product.",
)
def dtype(config: Config, target: Target, launch: Launch, sglang: Sglang) -> Iterator[Finding]:
    """Drafter and target dtypes cannot be mixed at the boundary.

    Seen: The drafter's dtype is float16 (or is stated as float32, which becomes float16), the target's bfloat16, and
        no `--dtype` makes them equal.
    Why: Each model takes its own torch_dtype where the command states none.
    Effect: A RuntimeError about mat1 and mat2 at fc.
    Repair: Give `--dtype bfloat16`, or convert the drafter.
    Sources: SGLang `configs/model_config.py`, `_get_and_verify_dtype`; SpecForge issue 348.
    """
    if launch.text("dtype") not in (None, "auto"):
        return
    own, other = _served_dtype(config.torch_dtype), _served_dtype(target.dtype)
    if config.torch_dtype is None or target.dtype is None or own == other:
        return
    yield Finding(
        f"The drafter runs in {own}, the target in {other}",
        (
            seen(f"torch_dtype is {config.torch_dtype}", _CONFIG),
            seen(f"the target's torch_dtype is {target.dtype}; no --dtype is given"),
        ),
        f"Give --dtype {other}, or convert the drafter to {other}.",
        confidence=0.9,
    )


def _served_dtype(stated: str | None) -> str:
    return "float16" if stated in (None, "float32", "float16") else str(stated)


# Methods that need a config of the checkpoint; the others quantise on the fly.
_NEEDS_CONFIG = frozenset(
    {"awq", "awq_marlin", "compressed-tensors", "gptq", "gptq_marlin", "marlin"}
    | {"modelopt", "modelopt_fp4", "modelopt_fp8"}
)


@check(
    "E3L-L09",
    "layer.quantisation",
    impact=Impact.STOPS,
    effect="The server stops while it looks for the drafter's quantisation config.",
)
def quantisation(
    config: Config, engine: Sglang, tensors: Tensors | None, load: SglangLoad | None, launch: Launch | None
) -> Iterator[Finding]:
    """The drafter inherits the target's quantisation, or carries scales this engine cannot use.

    Seen: `--quantization` names a method with a config of its own, the drafter has none, and nothing exempts it; or
        scale tensors of the drafter reach no parameter.
    Why: Where it is not given, the draft model's quantisation is the target's.
    Effect: ValueError "Cannot find the config file for …"; dropped scales leave weights that mean nothing.
    Repair: `--speculative-draft-model-quantization unquant` (0.5.7 or later), or an unquantised drafter.
    Sources: SGLang 0.5.9 `server_args.py`, `model_loader/weight_utils.py:248`.
    """
    scales = tuple(name for name in tensors.names if is_scale(name)) if tensors is not None else ()
    lost = {tensor.name for tensor in load.dropped} if load is not None else set()
    if dropped := tuple(name for name in scales if name in lost):
        yield Finding(
            f"Scales of quantised weights are dropped: {listed(dropped)}",
            tuple(seen("dropped: no parameter is made for it", tensor=name) for name in dropped[:3]),
            "Give an unquantised drafter.",
            impact=Impact.ZERO,
            effect="The weights are read without their scales: they mean nothing.",
            confidence=0.8,
        )
    if launch is None:
        return
    method = launch.text("quantization")
    if method not in _NEEDS_CONFIG or launch.has("speculative-draft-model-quantization"):
        return
    if "quantization_config" in config.raw:
        return
    if method == "modelopt_fp4" and engine.holds("loads an unquantised head under modelopt_fp4"):
        return
    option = engine.holds(_OPTION)
    yield Finding(
        f"The drafter inherits --quantization {method}, and has no such config",
        (
            seen(f"--quantization is {method}"),
            seen("the drafter's config has no quantization_config", _CONFIG),
        ),
        "Give --speculative-draft-model-quantization unquant."
        if option or not engine.number
        else f"Use {or_later(_OPTION)} with --speculative-draft-model-quantization unquant.",
        confidence=0.9,
    )


@check(
    "E3L-L12",
    "layer.activation",
    impact=Impact.STOPS,
    effect="The engine's class computes silu only: it stops while it is built.",
)
def activation(config: Config, load: Load | None, head: Head) -> Iterator[Finding]:
    """The head was trained with another activation than the engine's class computes.

    Seen: `hidden_act` is not silu, and the drafter's class refuses that.
    Why: The trainer took the activation of a target with GELU (Gemma), or its own default (NeMo Automodel).
    Effect: ValueError "Unsupported activation". With silu written in its place the head loads and computes something
        else than in training.
    Repair: Train with silu, or serve with an engine whose class has the activation.
    Sources: SGLang `models/llama.py`, LlamaMLP; vLLM likewise.
    """
    stop = next((one for one in load.stops if one.rule == "activation"), None) if load is not None else None
    act = config.raw.get("hidden_act")
    if stop is None and (not head.eagle3 or not isinstance(act, str) or act in ("silu", "swish")):
        return
    yield Finding(
        f"The head's activation is {act}; the engine's drafter class computes silu",
        (
            seen(f"hidden_act is {act}", _CONFIG),
            *([seen(f"{stop.error} ({stop.source})")] if stop is not None else []),
        ),
        "Train the head with silu. If it was, and the config is wrong, write silu into hidden_act.",
        confidence=0.97 if stop is not None else 0.8,
    )
