"""Whether the engine can build its drafter class from a config at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eagle3lab.engines.facts import ConstructionRule
from eagle3lab.engines.loading.plan import ConstructionError
from eagle3lab.engines.loading.settings import Settings

# A rule answers with the fields of its message where it is broken, and with None where it holds.
Broken = dict[str, Any] | None


def construction_error(settings: Settings, tp_size: int) -> ConstructionError | None:
    """The first rule of the release that this config breaks, as the exception it causes; None if none."""
    for rule in settings.engine.construction:
        if settings.switch(rule.when):
            fields = _RULES[rule.rule](settings, rule, tp_size)
            if fields is not None:
                return ConstructionError(rule.exception, rule.message.format(**fields))
    return None


def padded_vocabulary(settings: Settings, rows: int, tp_size: int) -> int:
    """`rows` padded as the release pads vocabularies; not with every release a multiple of `tp_size`."""
    facts = settings.engine.vocabulary
    padding = facts.padding
    padded = -(-rows // padding) * padding
    if facts.grows_with_tp and padded % tp_size:
        padding *= tp_size
        padded = -(-rows // padding) * padding
    return padded


def _broken(holds: bool, **fields: Any) -> Broken:
    return None if holds else fields


def _model_type(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    return _broken(settings.get("model_type") is not None)


def _multiple_of_heads(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    hidden_size, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    checked = settings.config_class.get("hidden_multiple_of_heads", False)
    return _broken(
        not checked or hidden_size % heads == 0, hidden_size=hidden_size, num_attention_heads=heads
    )


def _architecture(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    engine = settings.engine
    known = {*engine.drafter.architectures, *engine.undescribed}
    known |= {name for rules in engine.others for name in rules.drafter.architectures}
    stated = settings.get("architectures")
    return _broken(any(name in known for name in stated or ()), architectures=stated)


def _grouped_heads(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    """Heads on a rank share its key-value heads evenly."""
    heads = settings.size("num_attention_heads") // tp_size
    shared = max(1, settings.size("num_key_value_heads") // tp_size)
    return _broken(heads % shared == 0, num_heads=heads, num_kv_heads=shared)


def _translated_key(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    """A translated config is completed by no config class."""
    assert rule.size is not None
    return _broken(not settings.has("speculators_model_type") or settings.get(rule.size) is not None)


def _layer_type(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    """Only a config that is translated asks for the type of its layer."""
    if settings.engine.speculators is None or not settings.has("speculators_model_type"):
        return None
    model_type = settings.get("model_type") or settings.engine.speculators.default_type
    return _broken(model_type in rule.allowed, model_type=model_type)


def _one_layer(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    return _broken(settings.size("num_hidden_layers") == 1)


def _vocabulary(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    assert rule.size is not None
    padded = padded_vocabulary(settings, settings.size(rule.size), tp_size)
    return _broken(padded % tp_size == 0, numerator=padded, denominator=tp_size)


def _target_hidden_size(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    key = "target_hidden_size"
    return _broken(not settings.has(key) or settings.get(key) is not None)


def _heads(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    heads = settings.size("num_attention_heads")
    return _broken(heads % tp_size == 0, num_attention_heads=heads, tp_size=tp_size)


def _key_value_heads(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    heads = settings.size("num_key_value_heads")
    return _broken(heads % tp_size == 0 if heads >= tp_size else tp_size % heads == 0)


def _divisible(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    assert rule.size is not None
    return _broken(settings.size(rule.size) % tp_size == 0)


def _stated(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    assert rule.size is not None
    name = settings.config_class.get("class", "PretrainedConfig")
    # A class that is not written down may supply the key.
    holds = settings.has(rule.size) or rule.size in settings.config_class or not settings.config_class
    return _broken(holds, config_class=name, key=rule.size)


def _not_null(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    assert rule.size is not None
    stated = settings.get(rule.size) if settings.has(rule.size) else settings.key(rule.size)
    return _broken(stated is not None)


def _rows_divisible(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    assert rule.size is not None
    rows = settings.size(rule.size)
    return _broken(rows % tp_size == 0, numerator=rows, denominator=tp_size)


def _activation(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    activation = settings.get("hidden_act") or "silu"
    return _broken(activation in rule.allowed, hidden_act=activation)


def _draft_vocabulary_stated(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    name = settings.config_class.get("class", "PretrainedConfig")
    return _broken(settings.has("draft_vocab_size"), config_class=name)


def _draft_vocabulary_set(settings: Settings, rule: ConstructionRule, tp_size: int) -> Broken:
    return _broken(settings.get("draft_vocab_size") is not None)


_RULES: dict[str, Callable[[Settings, ConstructionRule, int], Broken]] = {
    "model_type stated": _model_type,
    "hidden size multiple of heads": _multiple_of_heads,
    "layer type served": _layer_type,
    "translated key stated": _translated_key,
    "architecture registered": _architecture,
    "heads multiple of key-value heads": _grouped_heads,
    "one layer": _one_layer,
    "vocabulary divisible": _vocabulary,
    "target_hidden_size not null": _target_hidden_size,
    "heads divisible": _heads,
    "key-value heads divide": _key_value_heads,
    "size divisible": _divisible,
    "rows divisible": _rows_divisible,
    "key stated": _stated,
    "key not null": _not_null,
    "activation": _activation,
    "draft_vocab_size stated": _draft_vocabulary_stated,
    "draft_vocab_size not null": _draft_vocabulary_set,
}
