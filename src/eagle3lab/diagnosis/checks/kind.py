"""Head kind: whether checkpoint and config are an EAGLE-3 head that this engine can build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.config import ABSENT, look_up
from eagle3lab.diagnosis.framework import Missing, SkipCheck, check
from eagle3lab.diagnosis.inputs import (
    Algorithm,
    Config,
    DrafterFolder,
    Earlier,
    Engine,
    Head,
    OwnMtp,
    RawConfig,
    Sglang,
    Tensors,
)
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen
from eagle3lab.diagnosis.releases import eagle3_architectures, first_release
from eagle3lab.engines.release import or_later
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.extract.vllm import VllmFacts
    from eagle3lab.engines.facts import EngineFacts

_STOPS = "The server stops before it serves anything."
_CONFIG = "config.json"


@check("E3L-K01", "head-kind.not-eagle3", effect=_STOPS, impact=Impact.STOPS)
def not_eagle3(
    tensors: Tensors,
    own: OwnMtp | None,
    config: Config | None,
    head: Head | None,
    algorithm: Algorithm | None,
) -> Iterator[Finding]:
    """The weights are not an EAGLE-3 head.

    Seen: The attention reads H values where an EAGLE-3 layer reads 2H (embedding and hidden state side by side), and
        fc, if there is one, joins one state and one embedding (H × 2H): an EAGLE-1/2 head, or a plain language model.
    Why: The wrong folder, or a head trained for the older method.
    Effect: With EAGLE3 the engine looks for the token map of the EAGLE-3 class and stops on an AttributeError.
    Repair: Serve an EAGLE-1/2 head with `--speculative-algorithm EAGLE`, or give an EAGLE-3 head.
    Sources: SGLang `models/llama_eagle.py`, `models/llama_eagle3.py`; `speculative/eagle_worker.py:155-182` (0.5.9).
    """
    if algorithm in ("EAGLE", "NEXTN", "STANDALONE", "draft_model", "eagle"):
        raise SkipCheck(f"the command serves it as {algorithm}, which is for other heads")
    if own is not None:
        name = tensors.find("eh_proj.weight")
        if name is not None:
            yield Finding(
                "This is a multi-token-prediction layer of the target, not an EAGLE-3 head",
                (
                    seen(
                        "such a layer joins embedding and state in eh_proj; an EAGLE-3 head has fc",
                        tensor=name,
                    ),
                ),
                "Serve it with EAGLE (NEXTN) and without a draft path.",
                confidence=0.9,
            )
        return
    if config is None or head is None:
        raise SkipCheck("the drafter's config.json cannot be read as a drafter's")
    attention = tensors.shape("self_attn.q_proj.weight")
    if head.eagle3 or attention is None or len(attention) != 2:
        return
    hidden, fc = config.hidden_size, tensors.shape("fc.weight")
    if attention[1] != hidden:
        return
    joins = fc is not None and len(fc) == 2 and fc[1] == 2 * hidden
    kind = "an EAGLE-1/2 head" if joins else "a plain language model"
    name = tensors.find("self_attn.q_proj.weight")
    yield Finding(
        f"This is {kind}, not an EAGLE-3 head",
        (
            seen(f"q_proj reads {attention[1]} values, an EAGLE-3 layer reads {2 * hidden}", tensor=name),
            seen(f"fc is {list(fc)}" if fc else "there is no fc", tensor=tensors.find("fc.weight")),
        ),
        "Serve it with --speculative-algorithm EAGLE." if joins else "Give the folder of an EAGLE-3 head.",
        confidence=0.97,
    )


@check(
    "E3L-K02",
    "head-kind.architecture",
    after=("head-kind.not-eagle3",),
    effect=_STOPS,
    impact=Impact.STOPS,
)
def architecture(
    config: Config,
    engine: Engine,
    head: Head | None,
    tensors: Tensors | None,
    algorithm: Algorithm | None,
    sglang: EngineFacts | Missing,
    vllm: VllmFacts | Missing,
) -> Iterator[Finding]:
    """`architectures` names a class that is no drafter of this release.

    Seen: The first name in `architectures` is a base model's, another engine's, or a later release's class.
    Why: The target's config was copied, the trainer writes its own name, or the head is for another engine.
    Effect: The engine builds another model and stops on its tensors, or does not know the name at all. vLLM puts
        Eagle3 in front of a name that has it neither first nor last, so it serves the bare names of some base models,
        and does not look at `architectures` in a config of speculators.
    Repair: Write the class of this release into `architectures`.
    Sources: SGLang `models/registry.py`: the key is the exact class name; the EntryClass lines of each release.
        vLLM `model_executor/models/registry.py`, `transformers_utils/configs/eagle.py`.
    """
    if engine.kind == "vllm":
        if isinstance(vllm, Missing):
            raise SkipCheck(vllm.reason)
        if vllm.drafter is None:
            raise SkipCheck(f"nothing is known of the classes of {engine}")
        if vllm.translation is not None and vllm.translation.knows(config.raw):
            return
        known, where = eagle3_architectures(vllm), f"vLLM {vllm.release}, {vllm.drafter.source}"
    elif isinstance(sglang, Missing):
        raise SkipCheck(sglang.reason)
    elif config.dialect == "speculators":
        raise SkipCheck("the speculators dialect is looked at as a whole")
    else:
        known = (*sglang.drafter.architectures, *sglang.drafter.other_architectures)
        where = str(sglang.drafter.source)
    stated = config.architectures
    if head is not None and not head.eagle3 and algorithm in ("EAGLE", "NEXTN", "eagle"):
        raise SkipCheck(f"the head is not an EAGLE-3 head, and is served as {algorithm}")
    if not stated or stated[0] in known:
        return
    yield Finding(
        f"{engine} has no drafter class called {stated[0]}",
        (
            seen(f"architectures is {list(stated)}", _CONFIG),
            seen(f"{engine} serves EAGLE-3 heads as {', '.join(known)} ({where})"),
        ),
        _class_fix(stated[0], known[0], engine, tensors),
        confidence=0.97 if head is not None and head.eagle3 else 0.7,
    )


def _class_fix(stated: str, known: str, engine: Engine, tensors: Tensors | None) -> str:
    """The release that has the class, for a head with low-rank attention; else the class to write."""
    write = f'Set "architectures": ["{known}"] in the drafter\'s config.json.'
    if engine.kind != "sglang" or tensors is None or not tensors.mla:
        return write

    def knows(facts: ReleaseFacts) -> bool:
        return facts.drafter is not None and stated in facts.drafter.other_architectures

    later = first_release(engine.number, knows)
    if later is None:
        return write
    return f"Use SGLang {later} or later, which has {stated}: the class of this release has no low-rank attention."


@check(
    "E3L-K03",
    "head-kind.config-dialect",
    effect=_STOPS,
    impact=Impact.STOPS,
)
def dialect(raw: RawConfig, tensors: Tensors, sglang: Sglang) -> Iterator[Finding]:
    """config.json is in the speculators dialect, which this engine cannot read.

    Seen: The layer's settings stand in `transformer_layer_config`; there is no top-level `model_type` or
        `hidden_size`.
    Why: speculators writes this form for vLLM.
    Effect: SGLang stops while it reads the config, before it looks at any weight.
    Repair: Write a flat config.json: the layer's settings at the top level, `architectures` of this release, layer
        ids as outputs of layers in `eagle_config`.
    Sources: SGLang has no support for speculators' configs in any release up to 0.5.23.
    """
    if not isinstance(raw.get("transformer_layer_config"), dict):
        return
    yield Finding(
        "config.json is speculators' own, nested form",
        (
            seen("the layer's settings stand in transformer_layer_config", _CONFIG),
            seen(f"architectures is {raw.get('architectures')}", _CONFIG),
        ),
        "Rewrite config.json in the flat form that SGLang reads.",
        confidence=0.99,
    )


_CONFIG_RULES = {
    "model_type stated": "State model_type (llama for the usual heads).",
    "target_hidden_size not null": "State target_hidden_size, or leave the key out.",
    "draft_vocab_size stated": "State draft_vocab_size: the rows of lm_head.",
    "draft_vocab_size not null": "State draft_vocab_size: the rows of lm_head.",
}


@check(
    "E3L-K04",
    "head-kind.config-value",
    after=("head-kind.not-eagle3", "head-kind.config-dialect", "files.unreadable", "files.missing"),
    effect=_STOPS,
    impact=Impact.STOPS,
)
def config_value(
    folder: DrafterFolder,
    tensors: Tensors,
    own: OwnMtp | None,
    config: Config | None,
    engine: Engine | None,
    load: Load | None,
    earlier: Earlier,
) -> Iterator[Finding]:
    """A config field that this release needs is absent, null or impossible.

    Seen: `draft_vocab_size` is absent, or `target_hidden_size` or `eagle_config` is null, where the release reads it
        without a default; or a field that every drafter needs is missing.
    Why: A config was written by hand or flattened by a converter that kept null values.
    Effect: The engine stops on an AttributeError or TypeError that names no file.
    Repair: State the field, or leave the key out where it is null.
    Sources: The construction rules of each release's facts; SGLang 0.5.9 `speculative/eagle_worker.py:195-200`.
    """
    if own is not None:
        raise SkipCheck("the drafter is the target's own prediction layer")
    if config is None:
        yield _unread_config(folder)
        return
    for stop in load.stops if load else ():
        if stop.rule in _CONFIG_RULES:
            yield Finding(
                f"This release needs a field that config.json does not give: {stop.rule}",
                (seen(f"{stop.error} ({stop.source})", _CONFIG),),
                _CONFIG_RULES[stop.rule],
            )
    if load is not None:
        yield from _map_without_a_place(config, load)
    yield from _wrong_types(config, engine)
    rule = "fails on a null eagle_config"
    if engine and look_up(config.raw, "eagle_config") is None and engine.holds(rule):
        yield Finding(
            "eagle_config is null, on which this release stops",
            (seen("eagle_config is null", _CONFIG), seen(engine.source(rule))),
            "Leave eagle_config out, or write the layer ids into it.",
        )


# Fields of Llama's config class that may not be null, with the type that transformers demands.
_TYPED = {
    **dict.fromkeys(("use_cache", "attention_bias", "mlp_bias", "tie_word_embeddings"), bool),
    **dict.fromkeys(("rms_norm_eps", "initializer_range"), float),
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"), int),
    "max_position_embeddings": int,
    "hidden_act": str,
}
# Fields of DeepSeek's config class, which MLA heads are read with.
_TYPED_MLA = dict.fromkeys(
    ("n_routed_experts", "n_shared_experts", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), int
)
_MLA = ("kimi_k2", "deepseek_v3")


def _wrong_types(config: Config, engine: Engine | None) -> Iterator[Finding]:
    """Fields of a type that the config class of the release's transformers refuses."""
    rule = "checks the types of config fields"
    if engine is None or not engine.holds(rule) or config.dialect == "speculators":
        return
    fields = _TYPED | (_TYPED_MLA if config.raw.get("model_type") in _MLA else {})
    for field, kind in fields.items():
        value = config.raw.get(field, ABSENT)
        if value is ABSENT or type(value) in ((int, float) if kind is float else (kind,)):
            continue
        yield Finding(
            f"{field} is {json.dumps(value)[:60]}, which the config class of this release refuses",
            (
                seen(f"{field} is {json.dumps(value)[:60]}, not of type {kind.__name__}", _CONFIG),
                seen(engine.source(rule)),
            ),
            f"State {field}, or leave the key out.",
            confidence=0.95 if engine.kind == "sglang" else 0.9,
        )


def _unread_config(folder: DrafterFolder) -> Finding:
    try:
        assert folder.checkpoint is not None
        _ = folder.checkpoint.config
    except InputError as error:
        return Finding(
            "config.json cannot be read as a drafter's",
            (seen(error.problem, error.path, line=error.line),),
            error.advice or "Copy the field from the training configuration.",
            confidence=0.9,
        )
    raise SkipCheck("the drafter's config.json can be read")


def _map_without_a_place(config: Config, load: Load) -> Iterator[Finding]:
    """Without draft_vocab_size vLLM takes the draft vocabulary for whole, and stops at a token map."""
    stopped = load.rejected if load.kind == "vllm" else None
    if stopped is None or stopped.name != "d2t" or stopped.parameter or config.draft_vocab_size:
        return
    yield Finding(
        "This release needs a field that config.json does not give: draft_vocab_size stated",
        (seen(stopped.reason, tensor="d2t"), seen("draft_vocab_size is not stated", _CONFIG)),
        _CONFIG_RULES["draft_vocab_size stated"],
    )


@check(
    "E3L-K05",
    "head-kind.layer-count",
    effect="The server stops, or runs layers whose parameters nobody filled.",
    impact=Impact.STOPS,
)
def layer_count(
    config: Config, head: Head, tensors: Tensors, engine: Engine | None, load: Load | None
) -> Iterator[Finding]:
    """num_hidden_layers disagrees with the weights, or this release allows only one layer.

    Seen: The weights hold another number of decoder layers than `num_hidden_layers`, or more than the release builds.
    Why: `num_hidden_layers` was copied from the target, or a head of several layers meets an old release.
    Effect: Releases up to 0.5.11 stop; later ones build the extra layers and leave them uninitialised, silently.
    Repair: Set `num_hidden_layers` to the layers in the weights; for several layers use 0.5.12 or later.
    Sources: SGLang `models/llama_eagle3.py`: ValueError "EAGLE3 currently only supports 1 layer" up to 0.5.11.
    """
    stated, held = config.num_hidden_layers, tensors.layers
    one_only = load is not None and any(stop.rule == "one layer" for stop in load.stops)
    if held == 0 or not head.eagle3 or (stated == held and not one_only):
        return
    evidence = [
        seen(f"num_hidden_layers is {stated}", _CONFIG),
        seen(f"the weights hold {held} decoder layer(s)"),
    ]
    if load is not None:
        evidence += (seen(f"{s.error} ({s.source})") for s in load.stops if s.rule == "one layer")
    if stated != held:
        fix = f"Set num_hidden_layers to {held}."
    else:
        fix = f"Use a release that builds several layers ({or_later('builds several layers')})."
    quiet = not one_only and stated > held and load is not None
    yield Finding(
        f"{stated} layers in config.json, {held} in the weights"
        if stated != held
        else "This release builds one layer",
        tuple(evidence),
        fix,
        impact=Impact.ZERO if quiet else Impact.STOPS,
        severity=Severity.WARNING
        if engine is not None and engine.kind == "vllm" and stated < held
        else Severity.ERROR,
    )
