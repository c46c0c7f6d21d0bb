"""Whether a build variant says what a release's own constructors do: both given many configs.

Every config key that the variant or the constructors ask for is tried with several values, alone and many at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3lab.engines.facts import ConstructionRule, EngineFacts
from eagle3lab.engines.loading.drafter import Settings, construction_error, local_parameters
from eagle3lab.engines.loading.simulate import replacement
from eagle3lab.engines.proof.cut_out import CutOut, run
from eagle3lab.errors import InputError

Config = dict[str, Any]
_LOW_RANK = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
}  # fmt: skip
# A config in which every size is another number, with what is read of it that no parameter depends on.
_PLAIN: Config = {
    "architectures": [], "model_type": "llama", "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 1,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1000, "draft_vocab_size": 128,
    "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_scaling": None,
    "max_position_embeddings": 2048, "intermediate_size_mlp": 448, **_LOW_RANK,
}  # fmt: skip
_ABSENT = "(absent)"
_VALUES: dict[str, tuple[Any, ...]] = {
    "num_hidden_layers": (2, 3), "hidden_act": ("gelu",), "head_dim": (None, 48), "hidden_size": (198,),
    "intermediate_size": (321,), "intermediate_size_mlp": (449,), "vocab_size": (128,),
    "num_attention_heads": (12, 7), "num_key_value_heads": (1, 3), **dict.fromkeys(_LOW_RANK, (14, _ABSENT)),
}  # fmt: skip
_LISTS: tuple[Any, ...] = ([1, 2], [], None, [1, 2, 3, 4])
# Of a key that only the constructors ask for. An error that such a value leads to need not mean anything.
_STRANGE: tuple[Any, ...] = (True, False, 7, None, {})
_DELIBERATE = ("ValueError", "AssertionError", "NotImplementedError", "RuntimeError")
_TARGET = {"get_total_num_hidden_layers": 8, "get_num_layers": 8}
# Checked where the config is read or the class is looked for, before it is built.
_EARLIER = (
    "model_type stated", "hidden size multiple of heads", "layer type served", "architecture registered",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """A config, and how many ranks the drafter is split over.

    Attributes:
        changes: What it says otherwise than the plain one.
        config: The config as the engine reads it.
        ranks: Number of ranks.
    """

    changes: dict[str, Any]
    config: Config
    ranks: int

    def __str__(self) -> str:
        ranks = [f"{self.ranks} ranks"] if self.ranks > 1 else []
        return (
            ", ".join([f"{key} {value}" for key, value in self.changes.items()] + ranks) or "a plain config"
        )


def _probe(changes: dict[str, Any], ranks: int = 1) -> Probe:
    config: Config = dict(_PLAIN)
    for path, value in changes.items():
        outer, _, inner = path.partition(".")
        if inner:
            nested = config.get(outer)
            config[outer] = {**(nested if isinstance(nested, dict) else {}), inner: value}
            if value == _ABSENT:
                del config[outer][inner]
        elif value == _ABSENT:
            config.pop(outer, None)
        else:
            config[outer] = value
    return Probe(changes, config, ranks)


def _keys(engine: EngineFacts) -> list[str]:
    """Every config key that a variant asks for."""
    keys: list[Any] = (
        list(_VALUES) if engine.names.joined else [key for key in _VALUES if key not in _LOW_RANK]
    )
    for size in engine.sizes.values():
        keys += [*size.model_types.values(), *size.first, *size.stated, *size.divided, *size.terms]
        keys += [size.present, size.fallback]
    for switch in engine.switches.values():
        keys += [*switch.any, *switch.none, *switch.present, *switch.differs]
    for parameter in engine.parameters:
        keys += [*parameter.rows, *parameter.columns]
    keys += [rule.size for rule in engine.construction]
    plain = (key.removeprefix("len(").removesuffix(")") for key in keys if isinstance(key, str))
    stated = {size.present for size in engine.sizes.values()} | {
        key for s in engine.sizes.values() for key in s.first
    }
    return [key for key in dict.fromkeys(plain) if key not in engine.sizes or key in stated]


def _values(key: str, engine: EngineFacts) -> tuple[Any, ...]:
    sizes = engine.sizes.values()
    if key in _VALUES:
        return _VALUES[key]
    if key.endswith("layer_ids"):
        return _LISTS
    if any(key in (size.present, size.fallback, *size.first, *size.stated) for size in sizes):
        return (5, None, _ABSENT)
    return (True, False, None, _ABSENT)


def probes(variants: Sequence[EngineFacts], asked: Iterable[str], count: int = 150) -> list[Probe]:
    """The configs to try.

    Args:
        variants: Those of one class.
        asked: Config keys that the constructors ask for.
        count: How many configs with several changes at once.
    """
    values = {key: _values(key, engine) for engine in variants for key in _keys(engine)}
    types = [one for engine in variants for size in engine.sizes.values() for one in size.model_types]
    values["model_type"] = ("other", *dict.fromkeys(types))
    found = [_probe({}, ranks) for ranks in (1, 2, 3, 4, 7)]
    for key, tried in values.items():
        found += [_probe({key: value}, ranks) for value in tried for ranks in (1, 2)]
        found += [_probe({"tie_word_embeddings": True, key: value}) for value in tried]
    known = {part for key in values for part in (key, key.partition(".")[0])}
    strange = sorted({*asked} - known - {"architectures", "rms_norm_eps"})
    found += [_probe({key: value}) for key in strange for value in _STRANGE]
    choose = random.Random(0)
    for _ in range(count):
        keys = choose.sample(list(values), choose.randint(2, 5))
        found.append(_probe({key: choose.choice(values[key]) for key in keys}, choose.choice((1, 1, 2, 3))))
    if (
        variants[0].kind == "vllm"
    ):  # what is made of a config in the speculators format has no class to complete it
        found += [
            _probe({"speculators_model_type": "eagle3", key: _ABSENT})
            for key in ("hidden_act", "rms_norm_eps")
        ]
    return found


def _completed(probe: Probe, engine: EngineFacts) -> tuple[str, Config]:
    """The config's class, and the config as that completes it."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}} if engine.kind == "vllm" else {}
    if "speculators_model_type" in probe.config:
        return "SpeculatorsConfig", {**rope, **probe.config}
    settings = Settings(probe.config, engine)
    supplied = {key: settings.key(key) for key in settings.config_class if key in _PLAIN or key == "head_dim"}
    heads = {"head_dim": settings.key("head_dim")} if probe.config.get("head_dim", 1) is None else {}
    name = settings.config_class.get("class", "PretrainedConfig")
    plain = {key: _PLAIN[key] for key in ("tie_word_embeddings", "rms_norm_eps", "hidden_act")}
    return str(name), {**plain, **rope, **supplied, **probe.config, **heads}


def _predicted(probe: Probe, engine: EngineFacts) -> dict[str, Any] | None:
    """What a variant says of a config: nothing where a size lacks, and None where the class is not reached."""
    flat = {**probe.config, "architectures": list(engine.drafter.architectures[:1])}
    settings = Settings(flat, engine)
    early = tuple(rule for rule in engine.construction if _is_earlier(rule))
    late = tuple(rule for rule in engine.construction if not _is_earlier(rule))
    unstated = {rule.size for rule in late if rule.rule == "key stated" and rule.size not in flat}
    if unstated and not settings.config_class:  # a class that is not written down may supply them
        return None
    try:
        if construction_error(Settings(flat, replace(engine, construction=early)), probe.ranks):
            return None
        error = construction_error(Settings(flat, replace(engine, construction=late)), probe.ranks)
        if error is not None:
            return {"exception": error.type, "message": error.message}
        parameters = local_parameters(settings, 1, 0)
    except (InputError, ZeroDivisionError):
        return {}
    made = [
        [name, one.kind, [one.vocabulary or one.shape[0], *one.shape[1:]]] for name, one in parameters.items()
    ]
    taken = [name for name in parameters if engine.kind == "sglang" and replacement(settings, name)]
    return {"parameters": made, "taken": sorted(taken)}


def _is_earlier(rule: ConstructionRule) -> bool:
    return rule.rule in _EARLIER or rule.checked_config or rule.exception == "ValidationError"


def differences(code: CutOut, variants: Sequence[EngineFacts]) -> list[list[str]]:
    """For each variant of a class, the configs of which its constructors and the variant say different things.

    Raises:
        CannotRunError: The constructors cannot be run alone.
    """
    asked = _run(code, variants, [_probe({})])[0].get("asked", [])
    tried = probes(variants, asked)
    pairs = list(zip(tried, _run(code, variants, tried), strict=True))
    found = []
    for engine in variants:
        ignored = [f"does not ask for {key}" for key in engine.unfollowed_keys if key not in asked]
        known = {*_keys(engine), "model_type", "speculators_model_type"}
        texts = (_difference(probe, one, engine, known) for probe, one in pairs)
        found.append(ignored + [text for text in texts if text is not None])
    return found


def _run(code: CutOut, variants: Sequence[EngineFacts], tried: list[Probe]) -> list[dict[str, Any]]:
    engine = variants[0]
    rules = {rule.rule for one in variants for rule in one.construction}
    attention = ["attention"] if "heads multiple of key-value heads" in rules else []
    takes = {"EAGLE-1": "set_embed_and_head"}.get(engine.drafter_kind, "set_embed")
    request = {
        "build": [(*_completed(probe, engine), probe.ranks) for probe in tried],
        "padding": engine.vocabulary.padding,
        "grows": engine.vocabulary.grows_with_tp,
        "checks": ["vocabulary", "merged column", "column parallel", "row parallel", *attention],
        "target": _TARGET,
        "takes": takes if engine.kind == "sglang" else None,
    }
    return run(engine.kind, code, request)


def _difference(probe: Probe, happened: dict[str, Any], engine: EngineFacts, known: set[str]) -> str | None:
    said = _predicted(probe, engine)
    if "unproved" in happened:
        return str(happened["unproved"])
    # A value that makes no sense for a key may end in an error that means nothing.
    strange = not probe.changes.keys() <= known and happened.get("exception", "") not in ("", *_DELIBERATE)
    if said is None or strange or {*engine.unfollowed_keys} & probe.changes.keys():
        return None
    if not said:
        return (
            f"with {probe} it predicts nothing, and the class is built" if "parameters" in happened else None
        )
    # What the target's weights replace is not seen where tied weights are taken away twice.
    same = all(said[key] == happened[key] for key in said if key in happened)
    if same and ("exception" in said) == ("exception" in happened):
        return None
    return f"with {probe} it predicts {_words(said, happened)}, and the class: {_words(happened, said)}"


def _words(one: dict[str, Any], other: dict[str, Any]) -> str:
    """What is said in one answer and not in the other."""
    if "exception" in one:
        return f"{one['exception']} {one['message']}".strip()
    if "parameters" not in other:
        return "that it is built"
    extra = [
        f"{name} {shape}"
        for name, _, shape in one["parameters"]
        if [name, _, shape] not in other["parameters"]
    ]
    if extra:
        return ", ".join(extra[:3])
    if one.get("taken") != other.get("taken"):
        return f"{', '.join(one['taken']) or 'nothing'} taken from the target"
    return "no other parameter"
