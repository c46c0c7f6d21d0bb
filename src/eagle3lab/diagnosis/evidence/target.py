"""The target's config.json, a multimodal wrapper looked through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.capture.shape import derived_context, stated, target_shape


@dataclass(frozen=True, slots=True)
class Target:
    """What a diagnosis needs of a target.

    Attributes:
        architectures: The class an engine builds, and the class of the language model in it where the config of a
            multimodal target names one; () where it names none.
        layers: Number n of decoder layers; None where it is not stated.
        hidden_size: Width Ht of its hidden states.
        vocab_size: Tokens V.
        tied: Whether its output head is its embedding.
        dtype: As stated, without "torch.".
        rope_theta: RoPE base.
        context: Longest position as SGLang derives it.
        name: `_name_or_path`, where the config has kept it.
    """

    architectures: tuple[str, ...]
    layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    tied: bool
    dtype: str | None
    rope_theta: float | None
    context: int | None
    name: str | None

    @property
    def architecture(self) -> str | None:
        """The class an engine builds; None where the config names none."""
        return next(iter(self.architectures), None)


def read_target(raw: Mapping[str, Any]) -> Target:
    """Read a target's config.json, of any shape; what has the wrong type counts as absent."""
    shape = target_shape(raw)
    dtype = stated(raw, "torch_dtype") or stated(raw, "dtype")
    name = raw.get("_name_or_path")
    return Target(
        architectures=shape.architectures,
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        vocab_size=_size(stated(raw, "vocab_size")),
        tied=stated(raw, "tie_word_embeddings") is True,
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        rope_theta=_number(stated(raw, "rope_theta") or _inner(stated(raw, "rope_parameters"), "rope_theta")),
        context=derived_context(_size(stated(raw, "max_position_embeddings")), stated(raw, "rope_scaling")),
        name=name if isinstance(name, str) and name else None,
    )


def _inner(holder: Any, key: str) -> Any:
    """A value of a nested object; None where there is no object, or it has no such key."""
    return holder.get(key) if isinstance(holder, Mapping) else None


def _size(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value < 2**31 else None


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e30 else None
