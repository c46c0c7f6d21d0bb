"""Names: whether checkpoint tensors and engine parameters meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eagle3lab.diagnosis.framework import Missing, SkipCheck, check, listed
from eagle3lab.diagnosis.inputs import Config, Earlier, Engine, Head, Sglang, SglangLoad, Tensors
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen
from eagle3lab.diagnosis.releases import first_release, takes_name
from eagle3lab.engines.release import store

if TYPE_CHECKING:
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.launch.reading import Launch
    from eagle3lab.engines.loading.plan import ParameterPlan, TensorPlan

_CHANCE = (
    "Those parameters keep what they were initialised with; nothing the drafter says is better than chance."
)
# Parameters that checks of their own look at.
_LOOKED_AT = (".bias", "lm_head.weight", "embed_tokens.weight", "draft_id_to_target_id")
_OTHER_HEAD = ("head-kind.not-eagle3",)
_FILES = ("files.unindexed-shard", "files.stale-safetensors", "files.unreadable", "files.missing")
_NAMES_OF_VLLM = (
    "Rename the tensors: layers.0.* or midlayer.* for the layer, fc, norm and lm_head at the top level."
)
_UNASKED = "stops at unknown projection names"
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
# Endings of tensors for which another check has the better name.
_NORMS = ("input_norm.weight", "fc_norm.", "aux_norm_")
_SCALES = ("weight_scale", "weight_scale_inv", "input_scale", "qweight", "qzeros", "scales", "g_idx")
# What layers of other types than Llama's have.
OTHER_LAYERS = ("q_norm", "k_norm", "mask_hidden")
_HARMLESS = ("rotary_emb.inv_freq", "t2d", "d2t", "embed_tokens.weight")


def is_bias(name: str) -> bool:
    """Whether a tensor is a bias."""
    return name.endswith(".bias")


def is_state_norm(name: str) -> bool:
    """Whether a tensor is a norm in front of fc."""
    return any(part in name for part in _NORMS)


def is_scale(name: str) -> bool:
    """Whether a tensor belongs to a quantised weight."""
    return name.rsplit(".", 1)[-1] in _SCALES


def parts_of(parameter: str) -> tuple[str, ...]:
    """The last two parts of the tensors that fill a parameter: `q_proj.weight` and so on for a fused one."""
    *_, module, leaf = parameter.split(".")
    return tuple(f"{part}.{leaf}" for part in _FUSED.get(module, (module,)))


def homeless(load: Load) -> dict[str, list[ParameterPlan]]:
    """Dropped tensor → the empty parameters that it looks made for."""
    meant: dict[str, list[ParameterPlan]] = {}
    for parameter in load.empty:
        for tensor in load.dropped:
            # One that waits for its partner has the right name; its partner is what is missing.
            if not tensor.waits and any(_same(tensor.name, part) for part in parts_of(parameter.name)):
                meant.setdefault(tensor.name, []).append(parameter)
    return meant


def _same(name: str, part: str) -> bool:
    return name == part or name.endswith(f".{part}")


def sure(load: Load, engine: Engine) -> float:
    """How sure the load is: another release of vLLM may stand in for the one that serves."""
    if load.kind != "vllm":
        return 1.0
    return 0.97 if load.plan.engine == str(engine) else 0.85


@check("E3L-N01", "names.dropped", after=_OTHER_HEAD, effect=_CHANCE)
def dropped(load: SglangLoad, facts: ReleaseFacts, engine: Engine) -> Iterator[Finding]:
    """Tensors carry names that this release drops, and their parameters stay uninitialised.

    Seen: Simulated name by name, tensors reach no parameter, and the parameters they were made for get nothing.
    Why: SGLang 0.4.9 to 0.5.11 know the layer as `midlayer.*` only, and drop `layers.0.*` without a word; no release
        knows the prefixes of a raw trainer state.
    Effect: The whole layer (or the whole drafter) is uninitialised memory: accept length 1.00, no error, no warning.
    Repair: Rename the tensors as the release expects them, or use a release that knows the names.
    Sources: The loaders of 20 SGLang releases, run on stub parameters; `models/llama_eagle3.py`, `load_weights`.
    """
    meant = homeless(load)
    lost = tuple(
        name for name in meant if not is_bias(name) and not is_state_norm(name) and not is_scale(name)
    )
    lost = tuple(name for name in lost if not name.endswith(_HARMLESS))
    if not lost:
        return
    reasons = {tensor.name: tensor.reason for tensor in load.dropped}
    empty = sorted({parameter.name for name in lost for parameter in meant[name]})
    yield Finding(
        f"{load.plan.engine} drops {len(lost)} of {len(load.plan.tensors)} tensors because of their names",
        (
            *(seen(reasons[name], tensor=name) for name in lost[:3]),
            seen(f"dropped: {listed(lost, 12)}"),
            seen(f"left as initialised: {listed(tuple(empty), 12)}"),
        ),
        _rename(lost, tuple(empty), facts, engine),
    )


def _rename(lost: tuple[str, ...], empty: tuple[str, ...], facts: ReleaseFacts, engine: Engine) -> str:
    wrapper = lost[0].partition(".")[0] + "."
    if all(name.startswith(wrapper) and takes_name(facts, name.removeprefix(wrapper)) for name in lost):
        return f"Remove the prefix {wrapper} from the names."
    old_and_new = _prefixes(lost, empty)
    rename = f"Rename {old_and_new[0]}.* to {old_and_new[1]}.*" if old_and_new else "Rename the tensors"
    later = first_release(engine.number, lambda later: all(takes_name(later, name) for name in lost))
    return (
        f"{rename}, or use SGLang {later} or later."
        if later
        else f"{rename}; no later release knows the names."
    )


def _prefixes(lost: tuple[str, ...], empty: tuple[str, ...]) -> tuple[str, str] | None:
    """What stands in front of the layer's modules in the tensors, and in the parameters they were made for."""
    for name in lost:
        for module in (".self_attn.", ".mlp."):
            wanted = next((one for one in empty if module in one), None)
            if module in name and wanted is not None:
                old, new = name.partition(module)[0], wanted.partition(module)[0].removeprefix("model.")
                return (old, new) if old != new else None
    return None


@check(
    "E3L-N02",
    "names.rejected",
    after=_OTHER_HEAD,
    others=("names.unsupported-tensor", "layer.quantisation", "layer.norm-before-fc"),
    effect="The engine stops at that tensor.",
    impact=Impact.STOPS,
)
def rejected(
    tensors: Tensors,
    engine: Engine,
    config: Config | None,
    head: Head | None,
    load: Load | Missing,
    earlier: Earlier,
) -> Iterator[Finding]:
    """A tensor carries a name on which this release stops.

    Seen: Simulated in the engine's order, the loader raises at a tensor's name (a KeyError, or in vLLM a
        ValueError).
    Why: SGLang 0.4.6 to 0.4.8 look up every projection without asking whether the parameter exists. vLLM, in every
        release, stops at each name that leads to no parameter, but for a few that it leaves aside.
    Effect: The server stops while loading; the error names a parameter that no file holds.
    Repair: On SGLang rename `layers.0.*` to `midlayer.*`, or use a later release. For vLLM both names are right; remove
        prefixes and what the class has no parameter for.
    Sources: SGLang 0.4.6 `models/llama_eagle3.py:180-190`; vLLM `models/llama_eagle3.py`, `models/utils.py`.
    """
    fix = "Rename the layer's tensors to midlayer.*, or use a release that knows the names."
    if isinstance(load, Missing):
        if engine.kind == "vllm":
            yield from _unknown_to_vllm(tensors, head)
        elif engine.holds(_UNASKED):
            yield from _rejected_by_rule(tensors, engine, fix)
        else:
            raise SkipCheck(load.reason)
        return
    stopped = load.rejected
    if stopped is None or not load.stops_at_a_name:
        return
    if load.kind == "vllm" and config is not None:
        yield _stops_vllm(load, stopped, config, tensors, engine, earlier)
        return
    yield Finding(
        f"{load.plan.engine} stops at the name {stopped.name}",
        (seen(stopped.reason, tensor=stopped.name),),
        fix,
    )


def _rejected_by_rule(tensors: Tensors, engine: Engine, fix: str) -> Iterator[Finding]:
    """The same for releases whose loader is not described: those that look up every projection unasked."""
    projections = [name for name in tensors.names if name.endswith(("q_proj.weight", "gate_proj.weight"))]
    unknown = [name for name in projections if not name.startswith("midlayer.")]
    if unknown:
        yield Finding(
            f"{engine} stops at the name {unknown[0]}",
            (seen("this release knows the layer as midlayer.* only", tensor=unknown[0]),
             seen(engine.source(_UNASKED))),
            fix,
            confidence=0.95,
        )  # fmt: skip


@check("E3L-N03", "names.missing", after=(*_FILES, *_OTHER_HEAD), effect=_CHANCE)
def missing(load: Load, config: Config, engine: Engine, facts: ReleaseFacts | None) -> Iterator[Finding]:
    """A parameter of the drafter gets no tensor at all.

    Seen: After the simulated load a parameter is as it was initialised, and no dropped tensor looks made for it.
    Why: A conversion lost it, a filter removed it, or the trainer never saved it.
    Effect: A matrix of random numbers in the middle of the drafter; no engine reports parameters without a tensor.
    Repair: Export the drafter again with that tensor.
    Sources: SGLang `model_loader/loader.py`: nothing is checked after loading. vLLM 0.32.0, measured: it serves them.
    """
    meant = {parameter.name for parameters in homeless(load).values() for parameter in parameters}
    empty = [one for one in load.empty if one.name not in meant and not one.name.endswith(_LOOKED_AT)]
    wiring = facts.wiring if facts else None
    reads_switch = wiring is not None and wiring.use_aux_hidden_state is not None
    one_state = not config.use_aux_hidden_state and reads_switch
    unused = ("fc.weight", "hidden_norm.weight") if one_state else ()
    weights = tuple(one for one in empty if not is_state_norm(one.name) and not one.name.endswith(unused))
    if weights:
        names = tuple(one.name for one in weights)
        yield Finding(
            f"{len(weights)} parameter(s) of the drafter get no tensor: {listed(names)}",
            (
                *(seen(f"{one.name}: {one.status}, {one.reason}") for one in weights[:6]),
                *(seen(tensor.reason, tensor=tensor.name) for tensor in load.dropped if tensor.waits),
            ),
            f"Export the drafter again with {listed(names)}.",
            impact=Impact.ZERO if any(_matters(name) for name in names) else Impact.PARTIAL,
            confidence=sure(load, engine),
        )


def _matters(name: str) -> bool:
    return not name.endswith("norm.weight")


@check(
    "E3L-N04",
    "names.unsupported-tensor",
    after=_OTHER_HEAD,
    effect="What those tensors do in training is left out in serving: fewer drafts are right.",
    impact=Impact.PARTIAL,
)
def unsupported(load: SglangLoad, config: Config, tensors: Tensors) -> Iterator[Finding]:
    """Trained tensors for which this release has no parameter.

    Seen: q_norm, k_norm, mask_hidden or others are dropped, and no parameter of the drafter is waiting for them.
    Why: The trainer's layer is of another type (a Qwen3 layer has q_norm and k_norm) than the engine's Llama layer.
    Effect: The attention computes something else than in training; acceptance is low, not zero.
    Repair: Train with a Llama-type layer, or serve with an engine that has the parameters (vLLM for Qwen3 layers).
    Sources: SGLang `models/llama_eagle3.py`: no q_norm or k_norm in any release up to 0.5.23.
    """
    meant = homeless(load)
    extra = tuple(
        tensor.name
        for tensor in load.dropped
        if tensor.name not in meant
        and not is_bias(tensor.name)
        and not is_state_norm(tensor.name)
        and not is_scale(tensor.name)
        and not _has_another_name(tensor.name, config, tensors)
    )
    if extra:
        vital = any(part in name for name in extra for part in OTHER_LAYERS)
        yield Finding(
            f"{load.plan.engine} has no parameter for {listed(extra)}",
            tuple(
                seen("dropped: no parameter of the drafter is made for it", tensor=name) for name in extra[:6]
            ),
            "Serve with an engine that has these parameters, or train without them.",
            severity=Severity.ERROR if vital else Severity.NOTE,
            confidence=0.97 if vital else 0.6,
        )


def _has_another_name(name: str, config: Config, tensors: Tensors) -> bool:
    """Tensors that other checks name better, and those that every release drops harmlessly."""
    if name.endswith(_HARMLESS) or "verifier_" in name:
        return True
    if name.endswith("lm_head.weight"):
        return True
    # Layers beyond those that the config states: the number of layers is the fault.
    return tensors.layers > config.num_hidden_layers


@check(
    "E3L-N05",
    "names.shape",
    after=_OTHER_HEAD,
    others=("head.lm-head-rows", "capture.ids-count", "capture.width", "head.embedding"),
    effect="The engine stops at that tensor.",
    impact=Impact.STOPS,
)
def shape(load: Load, config: Config, tensors: Tensors, engine: Engine, log: Log | None) -> Iterator[Finding]:
    """A tensor's shape does not fit the parameter it maps to.

    Seen: The simulated loader refuses a tensor: its rows or columns are not those that the config leads to.
    Why: `head_dim` is absent and is not hidden size / heads, a size was copied from another model, or the head is for
        another target.
    Effect: The engine stops on an assertion or a RuntimeError about sizes.
    Repair: Make the config's sizes agree with the weights.
    Sources: SGLang and vLLM: `layers/linear.py`, `layers/vocab_parallel_embedding.py`.
    """
    stopped = load.rejected
    got_further = log is not None and (log.served or log.death is not None)
    for stop in load.stops:
        stated = config.sources["head_dim"] == "head_dim"
        if stop.rule == "hidden size multiple of heads" and not got_further and not stated:
            yield Finding(
                "hidden_size is no multiple of num_attention_heads, which this release's config class demands",
                (seen(f"{stop.error} ({stop.source})", "config.json"),),
                "Check hidden_size, num_attention_heads and head_dim against the weights.",
                confidence=0.8,
            )
    for name, text in load.unread:
        yield Finding(
            f"{name} has another size than the parameter that the config leads to",
            (seen(f"{text}; the loader says nothing{_head_dim(config, name)}", tensor=name),),
            _shape_fix(config, tensors, name),
            impact=Impact.ZERO,
            confidence=sure(load, engine),
            effect="The parameter holds something else than the trained tensor: the layer computes noise.",
        )
        return
    if stopped is None or load.stops_at_a_name:
        return
    if _looked_at_elsewhere(stopped, config, tensors):
        raise SkipCheck("the tensor is looked at by a check of its own")
    yield Finding(
        f"{stopped.name} does not fit {stopped.parameter}",
        (seen(f"{stopped.reason}{_head_dim(config, stopped.name)}", tensor=stopped.name),),
        _shape_fix(config, tensors, stopped.name),
        confidence=sure(load, engine),
    )


def _looked_at_elsewhere(stopped: TensorPlan, config: Config, tensors: Tensors) -> bool:
    """Whether the checks of the head, of the map or of the captured states say what is wrong."""
    parameter = stopped.parameter or ""
    if parameter.endswith("lm_head.weight"):
        head = tensors.shape("lm_head.weight")
        other = head is not None and head[:1] not in ((), (config.draft_vocab_size or config.vocab_size,))
        return other and not config.tie_word_embeddings
    if parameter.endswith("fc.weight"):
        fc = tensors.shape("fc.weight")
        return fc is not None and fc[:1] == (config.hidden_size,)
    if parameter == "draft_id_to_target_id":
        return (tensors.shape("d2t") or ())[:1] != (config.draft_vocab_size or config.vocab_size,)
    return parameter.endswith("hot_token_id")


def _head_dim(config: Config, name: str) -> str:
    if "self_attn" not in name:
        return ""
    return f"; head_dim is {config.head_dim} ({config.sources['head_dim']})"


def _shape_fix(config: Config, tensors: Tensors, name: str) -> str:
    query = tensors.shape("self_attn.q_proj.weight")
    if "self_attn" in name and query and query[0] and query[0] % config.num_attention_heads == 0:
        width = query[0] // config.num_attention_heads
        if width != config.head_dim:
            return f'State "head_dim": {width} in config.json, as the weights have it.'
    return "Make the sizes in config.json agree with the tensor's shape."


@check(
    "E3L-N06",
    "names.tensor-parallel",
    after=_OTHER_HEAD,
    effect="The server stops while it builds the drafter.",
    impact=Impact.STOPS,
)
def tensor_parallel(
    config: Config, tensors: Tensors, load: Load | Missing, engine: Engine | None, launch: Launch | None
) -> Iterator[Finding]:
    """A parameter cannot be divided among the ranks.

    Seen: The drafter's heads, its feed-forward width or its vocabulary are no multiple of the tensor-parallel size.
    Why: The size was chosen for the target; the drafter has fewer heads.
    Effect: An assertion while the drafter is built, on every rank.
    Repair: Choose a tensor-parallel size that divides the drafter's heads.
    Sources: SGLang `models/llama.py`, LlamaAttention; `layers/linear.py`.
    """
    tp = launch.tp if launch else 1
    if isinstance(load, Missing):
        if not tensors.mla or engine is None or engine.kind != "sglang":
            raise SkipCheck(load.reason)
        if config.num_attention_heads % tp:
            yield Finding(
                f"{config.num_attention_heads} heads cannot be divided among {tp} ranks",
                (
                    seen(f"num_attention_heads is {config.num_attention_heads}", "config.json"),
                    seen(f"--tp is {tp}"),
                ),
                _sizes_that_divide(config, tp),
                confidence=0.9,
            )
        return
    for stop in load.stops:
        if stop.rule in (
            "heads divisible",
            "key-value heads divide",
            "size divisible",
            "vocabulary divisible",
        ):
            yield Finding(
                f"The drafter cannot be divided among {tp} ranks ({stop.rule} does not hold)",
                (
                    seen(f"{stop.error} ({stop.source})"),
                    seen(
                        f"{config.num_attention_heads} attention heads, "
                        f"{config.num_key_value_heads} key-value heads",
                        "config.json",
                    ),
                ),
                _sizes_that_divide(config, tp),
            )


def _sizes_that_divide(config: Config, tp: int) -> str:
    heads = config.num_attention_heads
    fitting = [size for size in range(1, tp) if heads % size == 0 and tp % size == 0]
    return f"Use --tp {max(fitting, default=1)}, which divides {heads} heads."


# ---- names that stop vLLM -----------------------------------------------------------------------------------------


def _stops_vllm(
    load: Load, stopped: TensorPlan, config: Config, tensors: Tensors, engine: Engine, earlier: Earlier
) -> Finding:
    """The name at which vLLM's loader stops; what it belongs to says what to do."""
    name, fault, fix = stopped.name, "", _NAMES_OF_VLLM
    undeclared = any(one.fault == "head-kind.config-value" for one in earlier)
    if name == "d2t" and not config.draft_vocab_size and undeclared:
        raise SkipCheck("the token map has no place without draft_vocab_size, which is looked at by itself")
    if _newer_than_release(name, tensors, engine):
        raise SkipCheck(f"{engine} is too old for {name}, which is looked at by itself")
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
    return Finding(
        f"{engine} stops at the name {name}",
        (
            seen(stopped.reason, tensor=name),
            seen(f"{load.plan.drafter_class} of {load.plan.engine}, simulated"),
        ),
        fix,
        fault=fault,
        confidence=sure(load, engine),
    )


def _newer_than_release(name: str, tensors: Tensors, engine: Engine) -> bool:
    """Whether E3L-L10 says of a tensor that this vLLM release does not know it yet."""
    rule = ""
    if is_state_norm(name):
        rule = "reads norm_before_fc" if "input_norm" in name else "reads fc_norm"
    elif is_bias(name) and tensors.find("q_proj.bias") is not None:
        rule = "loads attention biases"
    return bool(rule and engine.number) and not engine.holds(rule)


def _unknown_to_vllm(tensors: Tensors, head: Head | None) -> Iterator[Finding]:
    """Names like none that vLLM's drafters have, for loads that cannot be simulated."""
    known = re.compile(store()["vllm_drafter"]["names"])
    unknown = tuple(name for name in tensors.names if not known.match(name))
    if head is not None and head.eagle3 and unknown:
        yield Finding(
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


# ---- MLA: heads with low-rank attention, where the load by SGLang's class for them cannot be simulated -------------


@check("E3L-N07", "names.dropped", effect=_CHANCE)
def mla_dropped(
    tensors: Tensors, config: Config, sglang: Sglang, load: SglangLoad | None
) -> Iterator[Finding]:
    """Tensors of an MLA head carry names that its class skips.

    Seen: Names of an MLA head begin with a prefix that Eagle3DeepseekV2ForCausalLM does not take away, and the
        parameters they were made for get nothing.
    Why: The class knows `midlayer.*` and `layers.0.*` and puts `model.` in front itself, so `model.*` reaches nothing.
    Effect: A warning a tensor ("skipping unexpected weight"), and uninitialised parameters: acceptance at chance.
    Repair: Remove the prefix from the names.
    Sources: SGLang 0.5.12 and 0.5.23 `models/kimi_k25_eagle3.py:428-501`.
    """
    rule = _mla_rule(tensors, load)
    lost = tuple(name for name in tensors.names if not _reaches(name, rule) and _meant(name, rule))
    if lost:
        yield Finding(
            f"The MLA class skips {len(lost)} of {len(tensors.names)} tensors because of their names",
            (
                *(seen("the class has no parameter of this name", tensor=name) for name in lost[:3]),
                seen(f"skipped: {listed(lost, 12)} ({rule['source']})"),
            ),
            "Rename the layer's tensors to midlayer.* or layers.0.*, and fc and norm without a prefix.",
            confidence=0.95,
        )


@check("E3L-N08", "names.missing", after=_FILES, effect=_CHANCE)
def mla_missing(
    tensors: Tensors, config: Config, sglang: Sglang, load: SglangLoad | None
) -> Iterator[Finding]:
    """A parameter of an MLA head gets no tensor.

    Seen: A tensor that the MLA layer needs is in the checkpoint under no name.
    Why: A conversion lost it; q_a_proj and kv_a_proj_with_mqa are fused, so that one without the other is lost too.
    Effect: An uninitialised matrix; the class reports no parameter without a tensor.
    Repair: Export the drafter again with that tensor.
    Sources: SGLang 0.5.12 and 0.5.23 `models/kimi_k25_eagle3.py:428-501`.
    """
    rule = _mla_rule(tensors, load)
    absent = tuple(part for part in (*rule["layer"], *rule["top"]) if tensors.find(part) is None)
    if absent:
        yield Finding(
            f"{len(absent)} tensors of the MLA head are missing: {listed(absent)}",
            tuple(seen(f"no tensor is called {part}, with or without a prefix") for part in absent[:6]),
            f"Export the drafter again with {listed(absent)}.",
            confidence=0.95,
        )


def _mla_rule(tensors: Tensors, load: SglangLoad | None) -> dict[str, Any]:
    if not tensors.mla:
        raise SkipCheck("the head's attention is not MLA")
    if load is not None:
        raise SkipCheck("the load is simulated, and looked at by the checks for every head")
    table: dict[str, Any] = store()["mla"]
    return table


def _reaches(name: str, rule: dict[str, Any]) -> bool:
    """Whether a name reaches a parameter of the class, or is consumed in another way."""
    if name in (*rule["top"], "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"):
        return True
    return any(
        name.startswith(prefix) and name.removeprefix(prefix) in rule["layer"] for prefix in rule["prefixes"]
    )


def _meant(name: str, rule: dict[str, Any]) -> bool:
    """Whether a name that reaches nothing looks made for a parameter."""
    parts = (*rule["layer"], *rule["top"], "lm_head.weight")
    return any(name == part or name.endswith(f".{part}") for part in parts)
