"""What is read of a model's config.json: its classes, its layers, its width, its longest context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TargetShape:
    """A target as far as capture depends on it.

    Attributes:
        architectures: The class an engine builds, and the class of the language model in it where the config of a
            multimodal target names one; () where it names none.
        layers: Number n of decoder layers; None where it is not stated.
        hidden_size: Width Ht of its hidden states; None where it is not stated.
    """

    architectures: tuple[str, ...]
    layers: int | None
    hidden_size: int | None


def target_shape(raw: Mapping[str, Any]) -> TargetShape:
    """Read a target's config.json, a multimodal wrapper looked through; what has the wrong type counts as absent."""

    def size(key: str) -> int | None:
        value = stated(raw, key)
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if 0 < value < 2**31 else None

    return TargetShape(classes(raw, language_config(raw)), size("num_hidden_layers"), size("hidden_size"))


def language_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a multimodal target's config that describes its language model; empty for any other."""
    return next((raw[key] for key in _LANGUAGE_MODEL if isinstance(raw.get(key), dict)), _NOTHING)


def stated(raw: Mapping[str, Any], key: str) -> Any:
    """A value of a config.json, its language model's before its own; None where neither has one."""
    value = language_config(raw).get(key)
    return raw.get(key) if value is None else value


def classes(*configs: Mapping[str, Any]) -> tuple[str, ...]:
    """The first name in `architectures` of each config that has one."""
    lists = (config.get("architectures") for config in configs)
    return tuple(
        names[0] for names in lists if isinstance(names, list) and names and isinstance(names[0], str)
    )


def context_of(config: Mapping[str, Any]) -> int | None:
    """Tokens that SGLang derives from a config.json, a multimodal wrapper looked through; None where it states none."""
    positions = stated(config, "max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool) or positions <= 0:
        return None
    return derived_context(positions, stated(config, "rope_scaling"))


def derived_context(positions: int | None, scaling: Any) -> int | None:
    """The context length that SGLang derives from a config (0.5.23 utils/hf_transformers/common.py:677-694).

    A scaling factor counts only without `original_max_position_embeddings`, and not for llama3.
    """
    if positions is None or not isinstance(scaling, Mapping):
        return positions
    factor = scaling.get("factor")
    counts = "original_max_position_embeddings" not in scaling and scaling.get("rope_type") != "llama3"
    if isinstance(factor, int | float) and not isinstance(factor, bool) and counts and 0 < factor < 1e30:
        return int(factor * positions)
    return positions
