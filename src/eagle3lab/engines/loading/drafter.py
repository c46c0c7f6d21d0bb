"""The drafter that an engine would build from a config: settings, parameters on one rank, or why it cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import ConstructionRule, EngineFacts, Parameter, ParameterKind, config_class
from eagle3lab.engines.loading.plan import ConstructionError
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig


# ---- the config as an engine sees it ---------------------------------------------------------------------------------


_ABSENT = object()
_SUPPLIED = {"num_key_value_heads": "num_attention_heads"}


def engine_config(config: DrafterConfig, engine: EngineFacts) -> dict[str, Any]:
    """The flat config.json that the engine would read.

    The two flat dialects are read by engines as they are. The speculators dialect is not; for it this is the
    config that would say the same in the engine's terms, or the one that an engine which can read it makes of it.
    """
    translated = _translated(config, engine)
    if translated is not None:
        return translated
    if engine.speculators is not None or config.dialect != "speculators":
        return dict(config.raw)
    flat: dict[str, Any] = {
        "architectures": list(engine.drafter.architectures[:1]),
        "model_type": config.model_type or "llama",
        "draft_vocab_size": config.draft_vocab_size,
    }
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_hidden_layers",
        "vocab_size",
        "target_hidden_size",
        "tie_word_embeddings",
        "attention_bias",
        "bias",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "num_aux_hidden_states",
        "hidden_act",
    ):
        flat[key] = getattr(config, key)
    if config.aux_hidden_state_layer_ids is not None:
        flat["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(config.aux_hidden_state_layer_ids)}
    return flat


def served_architectures(config: DrafterConfig, engine: EngineFacts) -> tuple[str, ...]:
    """The architectures that the engine's registry is asked for."""
    translated = _translated(config, engine)
    return tuple(config.architectures if translated is None else translated["architectures"])


def _translated(config: DrafterConfig, engine: EngineFacts) -> dict[str, Any] | None:
    """What an engine that can read the speculators dialect makes of a config in it; None for any other."""
    rules = engine.speculators
    return rules.apply(config.raw) if rules is not None and rules.knows(config.raw) else None


class Settings:
    """Sizes and switches of the drafter class for one config.

    Args:
        flat: The config as the engine reads it.
        engine: The facts of the release.
        shipped: Names of the tensors in the checkpoint, where it matters which are there.
    """

    def __init__(self, flat: Mapping[str, Any], engine: EngineFacts, shipped: tuple[str, ...] = ()) -> None:
        self.flat = flat
        self.engine = engine
        self.shipped = shipped

    @cached_property
    def config_class(self) -> Mapping[str, Any]:
        """What the config class of this model_type supplies; empty if it is not written down."""
        return config_class(str(self.flat.get("model_type"))) or {}

    def get(self, path: str) -> Any:
        """The value at a dotted path; `len(path)` is the length of a list. None when absent or null."""
        if path.startswith("len("):
            return len(self.get(path[4:-1]) or ())
        value = self.look_up(path)
        return None if value is _ABSENT else value

    def look_up(self, path: str) -> Any:
        """The same, with a value of its own for "absent"; see `has`."""
        value: Any = self.flat
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return _ABSENT
            value = value[key]
        return value

    def has(self, path: str) -> bool:
        """Whether the path is present, be its value null."""
        return self.look_up(path) is not _ABSENT

    def key(self, name: str) -> Any:
        """A size's key as the engine's config object has it: stated, or supplied by its class."""
        value = self.get(name)
        if value is not None:
            return value
        supplied = self.config_class.get(name, _SUPPLIED.get(name))
        if isinstance(supplied, str):
            return self.key(supplied)
        if supplied is None and name == "head_dim":
            return self.size("hidden_size") // self.size("num_attention_heads")
        return supplied

    def size(self, name: str) -> int:
        """A size by the name the facts give it, or a config key.

        Raises:
            InputError: The config does not state it, or not as a positive integer.
        """
        value = self.key(name) if name not in self.engine.sizes else self._computed(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"config.json does not state {name} as a positive integer")
        return value

    def _computed(self, name: str) -> Any:
        size = self.engine.sizes[name]
        if size.terms:
            return sum(term if isinstance(term, int) else self.size(term) for term in size.terms)
        if size.divided:
            whole, part = map(self.size, size.divided)
            return whole // part if part else None
        key = size.model_types.get(str(self.flat.get("model_type")))
        if key is not None:
            return self.key(key)
        if size.present is not None and self.has(size.present):
            return self.get(size.present)
        for path in size.stated:
            if self.get(path.removeprefix("len(").removesuffix(")")) is not None:
                return self.get(path)
        for path in size.first:
            value = self.get(path)
            if value:
                return value
        return size.default if size.fallback is None else self.key(size.fallback)

    def product(self, factors: tuple[str | int, ...]) -> int:
        """The product of numbers and sizes."""
        return prod(factor if isinstance(factor, int) else self.size(factor) for factor in factors)

    def switch(self, name: str | None) -> bool:
        """Whether a switch is on; True for None, "no condition"."""
        if name is None:
            return True
        switch = self.engine.switches[name]
        if switch.differs:
            return len({self.size(name) for name in switch.differs}) > 1
        for path in switch.present:
            if self.has(path):
                return bool(self.get(path))
        if switch.none:
            return not any(self.get(path) for path in switch.none)
        return any(self.get(path) for path in switch.any)

    def notes(self) -> tuple[str, ...]:
        """What the config leaves to a config class that eagle3lab has not written down."""
        model_type = self.flat.get("model_type")
        if model_type is None or self.config_class:
            return ()
        unstated = [key for key in ("num_key_value_heads", "head_dim") if self.get(key) is None]
        if not unstated:
            return ()
        return (
            f"config.json does not state {' and '.join(unstated)}, and the class of model_type "
            f"'{printable(str(model_type))}' may have values of its own for them.",
        )


# ---- parameters on one rank ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shard:
    """One stretch of a parameter that a tensor of its own fills.

    Attributes:
        at: First row in the local parameter.
        size: Rows on this rank.
        start: First row, in its own tensor, that belongs to this rank.
        whole: Rows of its tensor over all ranks.
    """

    at: int
    size: int
    start: int
    whole: int


@dataclass(frozen=True, slots=True)
class LocalParameter:
    """A parameter on one rank.

    Attributes:
        name: The name in `named_parameters()`.
        kind: How it is split over ranks.
        shape: Of this rank's part.
        shards: Its stretches by shard, for fused parameters, in the order they are stacked; for "column parallel"
            the one that is all of it.
        vocabulary: Rows the vocabulary has over all ranks, padding aside; 0 where there is none.
        start: First row (vocabulary) or column (row parallel) that belongs to this rank.
        rows_held: Rows of a vocabulary that this rank holds, padding aside.
    """

    name: str
    kind: ParameterKind
    shape: tuple[int, ...]
    shards: tuple[tuple[str | int, Shard], ...] = ()
    vocabulary: int = 0
    start: int = 0
    rows_held: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def shard(self, key: str | int) -> Shard | None:
        """The stretch of this shard; None where there is none."""
        return dict(self.shards).get(key)


def local_parameters(settings: Settings, tp_size: int, tp_rank: int) -> dict[str, LocalParameter]:
    """Every parameter of the drafter on rank `tp_rank` of `tp_size`, by name, in the engine's order.

    The config must have passed `construction_error`. A family of parameters (layers, auxiliary states) is
    written out member by member, layer by layer.
    """
    parameters = {}
    for parameter, layer in _by_layer(settings):
        for name in _names(settings, parameter, layer):
            parameters[name] = _local(settings, parameter, name, layer, tp_size, tp_rank)
    return parameters


def _by_layer(settings: Settings) -> list[tuple[Parameter, int]]:
    """Parameters in order, the consecutive ones that belong to layers repeated together, layer by layer."""
    ordered: list[tuple[Parameter, int]] = []
    family: list[Parameter] = []
    present = [p for p in settings.engine.parameters if settings.switch(p.when)]
    for parameter in (*present, None):
        if parameter is not None and "{layer}" in parameter.name:
            family.append(parameter)
            continue
        if family:
            layers = range(settings.size("num_hidden_layers"))
            ordered += [
                (member, layer) for layer in layers for member in family if layer or member.first_layer
            ]
            family = []
        if parameter is not None:
            ordered.append((parameter, 0))
    return ordered


def _names(settings: Settings, parameter: Parameter, layer: int) -> list[str]:
    if "{aux}" in parameter.name:
        return [parameter.name.replace("{aux}", str(aux)) for aux in range(settings.size("num_aux"))]
    return [parameter.name.replace("{layer}", str(layer))]


def _local(
    settings: Settings, parameter: Parameter, name: str, layer: int, tp_size: int, tp_rank: int
) -> LocalParameter:
    factors = parameter.columns if layer == 0 else parameter.later_columns
    columns = (settings.product(factors),) if factors else ()
    if parameter.kind == "qkv":
        shards = _attention_shards(settings, tp_size, tp_rank)
        return LocalParameter(name, parameter.kind, (_rows_of(shards), *columns), shards)
    rows = settings.product(parameter.rows)
    if parameter.kind == "merged column":
        size = rows // tp_size
        shards = tuple((part, Shard(part * size, size, tp_rank * size, rows)) for part in (0, 1))
        return LocalParameter(name, parameter.kind, (_rows_of(shards), *columns), shards)
    if parameter.kind == "column parallel":
        size = rows // tp_size
        part = Shard(0, size, tp_rank * size, rows)
        return LocalParameter(name, parameter.kind, (size, *columns), ((0, part),))
    if parameter.kind == "row parallel" and columns:
        width = columns[0] // tp_size
        return LocalParameter(name, parameter.kind, (rows, width), start=tp_rank * width)
    if parameter.kind == "vocabulary":
        height = padded_vocabulary(settings, rows, tp_size) // tp_size
        start = min(tp_rank * height, rows)
        held = min((tp_rank + 1) * height, rows) - start
        shape = (height, *columns)
        return LocalParameter(name, parameter.kind, shape, vocabulary=rows, start=start, rows_held=held)
    return LocalParameter(name, parameter.kind, (rows, *columns))


def _rows_of(shards: tuple[tuple[str | int, Shard], ...]) -> int:
    return sum(shard.size for _, shard in shards)


def _attention_shards(settings: Settings, tp_size: int, tp_rank: int) -> tuple[tuple[str | int, Shard], ...]:
    """Queries are split over ranks; keys and values too, down to one head a rank, which is then repeated."""
    head_dim = settings.size("head_dim")
    heads, kv_heads = settings.size("num_attention_heads"), settings.size("num_key_value_heads")
    queries = heads // tp_size * head_dim
    repeats = max(1, tp_size // kv_heads)
    keys = max(1, kv_heads // tp_size) * head_dim
    start, whole = tp_rank // repeats * keys, kv_heads * head_dim
    return (
        ("q", Shard(0, queries, tp_rank * queries, heads * head_dim)),
        ("k", Shard(queries, keys, start, whole)),
        ("v", Shard(queries + keys, keys, start, whole)),
    )


# ---- whether the class can be built at all ---------------------------------------------------------------------------


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
