"""Whether a variant of a drafter class says what the release's own constructors do: both asked with many configs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.loading.construction import construction_error
from eagle3lab.engines.loading.layout import local_parameters
from eagle3lab.engines.loading.settings import Settings
from eagle3lab.engines.loading.words import replacement
from eagle3lab.engines.proof.cut_out import CutOut
from eagle3lab.errors import Eagle3labError, InputError

LIMIT_SECONDS = 60
_WORKER = Path(__file__).with_name("stand_ins.py")
Config = dict[str, Any]
# A config in which every size is another number, with what is read of it that no parameter depends on.
_PLAIN: Config = {
    "architectures": [], "model_type": "llama", "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 1,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1000, "draft_vocab_size": 128,
    "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_scaling": None,
    "max_position_embeddings": 2048, "intermediate_size_mlp": 448,
}  # fmt: skip
_LOW_RANK = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
}  # fmt: skip
# Rules that are checked before the class is built, by transformers or by the engine.
EARLIER = (
    "model_type stated", "hidden size multiple of heads", "layer type served", "architecture registered",
)  # fmt: skip
_ABSENT = object()
_VALUES: dict[str, tuple[Any, ...]] = {
    "num_hidden_layers": (1, 2, 3), "hidden_act": ("silu", "gelu"), "model_type": ("llama", "other"),
    "head_dim": (None, 48, _ABSENT), "hidden_size": (192, 198), "intermediate_size": (320, 321),
    "vocab_size": (1000, 128), "num_attention_heads": (6, 12, 7), "num_key_value_heads": (1, 2, 3),
    "intermediate_size_mlp": (448, 449), "original_vocab_size": (),
}  # fmt: skip
_STRANGE = (True, None, _ABSENT, 7, "x", {})
_DELIBERATE = ("ValueError", "AssertionError", "NotImplementedError", "RuntimeError")
def run_worker(request: Mapping[str, Any]) -> list[Any]:
    command = [sys.executable, "-I", str(_WORKER)]
    answer = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=LIMIT_SECONDS, env={})
    if answer.returncode: raise Eagle3labError(answer.stderr[-800:])
    return json.loads(answer.stdout)


def _with(config: Config, path: str, value: Any) -> Config:
    """The config with a value, or without one, at a dotted path."""
    outer, _, inner = path.partition(".")
    if inner:
        nested = config.get(outer)
        return {**config, outer: _with(nested if isinstance(nested, dict) else {}, inner, value)}
    rest = {key: known for key, known in config.items() if key != outer}
    return rest if value is _ABSENT else {**rest, outer: value}


def keys_of(engine: EngineFacts) -> list[str]:
    """Every config key that a variant asks for."""
    keys: list[str] = []
    for size in engine.sizes.values():
        keys += [*size.model_types.values(), *size.first, *size.stated, *size.divided]
        keys += [one for one in (size.present, size.fallback, *size.terms) if isinstance(one, str)]
    for switch in engine.switches.values():
        keys += [*switch.any, *switch.none, *switch.present, *switch.differs]
    for parameter in engine.parameters:
        keys += [f for f in (*parameter.rows, *parameter.columns) if isinstance(f, str)]
    keys += [rule.size for rule in engine.construction if rule.size]
    keys += ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "model_type"]
    plain = (key.removeprefix("len(").removesuffix(")") for key in keys)
    return [key for key in dict.fromkeys(plain) if key not in engine.sizes or key in ("target_hidden_size",)]


def values_of(key: str, engine: EngineFacts) -> tuple[Any, ...]:
    sizes = engine.sizes.values()
    if key == "model_type":
        return ("llama", "other", *(one for size in sizes for one in size.model_types))
    if key in _VALUES:
        return _VALUES[key]
    if key.endswith("layer_ids"):
        return ([1, 2], [], None, _ABSENT, [1, 2, 3, 4])
    if key in _LOW_RANK:
        return (_LOW_RANK[key], _LOW_RANK[key] + 2, _ABSENT)
    if any(key in (size.present, size.fallback, *size.first, *size.stated) for size in sizes):
        return (5, None, _ABSENT)
    return (True, False, None, _ABSENT)


def probes(engine: EngineFacts, count: int = 150) -> list[tuple[Config, int]]:
    """Configs and numbers of ranks, each key of the variant tried alone and then many at once."""
    plain = {**_PLAIN, **_LOW_RANK}
    keys = keys_of(engine)
    found: list[tuple[Config, int]] = [(plain, ranks) for ranks in (1, 2, 3, 4, 7)]
    for key in keys:
        for value in values_of(key, engine):
            found += [(_with(plain, key, value), ranks) for ranks in (1, 2)]
    choose = random.Random(0)
    for _ in range(count):
        config = plain
        for key in choose.sample(keys, choose.randint(2, 5)):
            values = values_of(key, engine)
            if values:
                config = _with(config, key, choose.choice(values))
        found.append((config, choose.choice((1, 1, 2, 3))))
    return found


def predicted(config: Config, ranks: int, engine: EngineFacts) -> dict[str, Any] | None:
    settings = Settings(config, engine)
    try:
        error = construction_error(settings, ranks)
        if error is not None:
            return {"exception": error.type, "message": error.message}
        parameters = local_parameters(settings, 1, 0)
    except (InputError, ZeroDivisionError):
        return None
    named = [
        [name, one.kind, [one.vocabulary or one.shape[0], *one.shape[1:]]] for name, one in parameters.items()
    ]
    taken = sorted(name for name in parameters if (replacement(settings, name)))
    return {"parameters": named, "taken": taken}


def completed(config: Config, engine: EngineFacts) -> Config:
    settings = Settings(config, engine)
    supplied = {key: settings.key(key) for key in settings.config_class if key not in ("class", "hidden_multiple_of_heads")}
    base = {"tie_word_embeddings": False, "num_key_value_heads": settings.key("num_key_value_heads"), "pad_token_id": None}
    heads = {"head_dim": settings.key("head_dim")} if "head_dim" in config and config["head_dim"] is None else {}
    return {**base, **supplied, **config, **heads}


def differences(cut: CutOut, engine: EngineFacts) -> Iterator[str]:
    from dataclasses import replace
    def is_earlier(r): return r.rule in EARLIER or r.exception.startswith("Strict") or r.exception=="ValidationError"
    earlier = replace(engine, construction=tuple(r for r in engine.construction if is_earlier(r)))
    engine = replace(engine, construction=tuple(r for r in engine.construction if not is_earlier(r)))
    asked = probes(engine)
    request = {
        "files": cut.files, "drafter": cut.start, "kind": engine.kind, "config_class": "LlamaConfig",
        "padding": engine.vocabulary.padding, "grows": engine.vocabulary.grows_with_tp,
        "divides": ["vocabulary", "merged column", *(["column parallel", "row parallel"]), *(["attention"] if any(r.rule=="heads multiple of key-value heads" for r in engine.construction) else [])],
        "target": {"get_vocab_size": 1000, "get_total_num_hidden_layers": 8, "get_num_layers": 8}, "takes": None if engine.kind=="vllm" else ("set_embed_and_head" if engine.drafter_kind=="EAGLE-1" else "set_embed"),
    }
    real = run_worker({**request, "build": [(completed(c, engine), n) for c, n in asked]})
    for (config, ranks), happened in zip(asked, real, strict=True):
        refused = predicted(config, ranks, earlier)
        said = None if refused is None or "exception" in refused else predicted(config, ranks, engine)
        if said and engine.kind == "vllm" and "taken" in said: said["taken"]=[]
        changed = {k: v for k, v in config.items() if {**_PLAIN, **_LOW_RANK}.get(k, _ABSENT) != v}
        changed |= {k: "absent" for k in {**_PLAIN, **_LOW_RANK} if k not in config}
        if said is None:
            continue
        happened.pop("asked", None)
        if "taken" in said and "taken" not in happened: said.pop("taken")
        if said != happened:
            yield f"{changed} on {ranks} ranks: predicted {brief(said, happened)}, happened {brief(happened, said)}"

def brief(one, other):
    if "parameters" in one and "parameters" in other:
        return [x for x in one["parameters"] if x not in other["parameters"]], one.get("taken") if one.get("taken")!=other.get("taken") else ""
    return one if "exception" in one else "built" 
