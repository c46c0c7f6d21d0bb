"""The config as an engine sees it: flat, completed by its config class, sizes and switches computed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.facts import EngineFacts, config_class
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig

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
