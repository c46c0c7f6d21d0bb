"""What vLLM does otherwise than SGLang, typed: names that lead to modules, configs that are translated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from eagle3lab.engines.facts.names import NameRules, Rename
from eagle3lab.engines.facts.source import Source


@dataclass(frozen=True, slots=True)
class Unused:
    """Names that contain `text` are skipped without a message.

    Attributes:
        text: The substring, looked for in the name with its prefix.
        source: Where.
        unless_shipped: Not if some name in the checkpoint contains this.
        unless_on: Not if this switch is on.
    """

    text: str
    source: Source
    unless_shipped: str | None = None
    unless_on: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleNames(NameRules):
    """Name rules of a release that walks from module to module, and stops at a name that leads nowhere.

    All names are looked at first: `special`, `token_map`, `own_prefix`. Then each is walked in its order: `unused`,
    and for what lies in the inner model `renames` and `stacked`, then the parameter of that name.

    Attributes:
        token_map: How the tensor with the draft-to-target offsets is renamed; it gets no prefix.
        unused: Names that are skipped.
        once: Whether a rename replaces only the first occurrence, and every rule of `stacked` applies, one after the
            other; else every occurrence, and only the first rule that matches.
        missing: Type of the exception where a name leads to no module or parameter.
        missing_message: Its text, with the fields name and owner.
        inner_missing: The same inside the inner model where that has a loop of its own; None where it is walked too.
        fused_missing: The same inside a fused layer that loads its own; None where it is walked too.
        owners: Class of the drafter and of its inner model, as messages name them.
    """

    walked: ClassVar[bool] = True

    token_map: Rename | None = None
    unused: tuple[Unused, ...] = ()
    once: bool = False
    missing: str = "ValueError"
    missing_message: str = ""
    inner_missing: str | None = None
    fused_missing: str | None = None
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Translated:
    """One key of a translated config.

    Attributes:
        key: In the translated config, and in the one it is read from.
        default: Its value where the config does not state it; null counts as stated.
        if_true: Only if the stated value is true; nothing is written otherwise.
        source: Where.
    """

    key: str
    default: str | bool | int | None
    if_true: bool
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigTranslation:
    """How a config in the format of the speculators library becomes one of the engine's own.

    The nested `transformer_layer_config` comes first, then `keys`, then the architecture.

    Attributes:
        keys: Written in this order.
        architectures: By the layer's model_type; the one under "" for every other, absent where there is no other.
        default_type: The model_type taken where none is stated.
        source: Where it begins.
        asked_for: The key by which the engine knows such a config.
    """

    keys: tuple[Translated, ...]
    architectures: Mapping[str, str]
    default_type: str
    source: Source
    asked_for: str = "speculators_config"

    def knows(self, raw: Mapping[str, Any]) -> bool:
        """Whether the engine takes this config.json for one in the format."""
        return raw.get(self.asked_for) is not None

    def architecture(self, model_type: str | None) -> str | None:
        """The engine's class for a layer of this model_type; None where it has none."""
        return self.architectures.get(model_type or self.default_type, self.architectures.get(""))

    def apply(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The translated config of `raw`, the whole config.json."""
        nested = raw.get("transformer_layer_config")
        flat = {"model_type": self.default_type, **nested} if isinstance(nested, Mapping) else {}
        for item in self.keys:
            if not item.if_true:
                flat[item.key] = raw.get(item.key, item.default)
            elif raw.get(item.key):
                flat[item.key] = raw[item.key]
        architecture = self.architecture(flat.get("model_type"))
        flat["architectures"] = [] if architecture is None else [architecture]
        flat["speculators_model_type"] = raw.get("speculators_model_type")
        return flat


@dataclass(frozen=True, slots=True)
class AllowList:
    """The targets that the engine takes for EAGLE-3.

    Attributes:
        model_types: A target passes if its model_type contains one of these; empty where any class that can hand
            over hidden states passes.
        source: Where.
    """

    model_types: tuple[str, ...]
    source: Source
