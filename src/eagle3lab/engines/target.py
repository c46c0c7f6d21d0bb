"""A target's config.json, a multimodal wrapper looked through: its classes, sizes and longest context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """What is known of a target; what its config does not state, or states with a wrong type, is None.

    Attributes:
        architectures: The class an engine builds, and the class of the language model in it where the config of a
            multimodal target names one; () where it names none.
        layers: Number n of decoder layers.
        hidden_size: Width Ht of its hidden states.
        vocab_size: Tokens V.
        tied: Whether its output head is its embedding.
        dtype: As stated, without "torch.".
        rope_theta: RoPE base.
        context: Longest position in tokens as SGLang derives it.
        name: `_name_or_path`, where the config has kept it.
    """

    architectures: tuple[str, ...] = ()
    layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    tied: bool = False
    dtype: str | None = None
    rope_theta: float | None = None
    context: int | None = None
    name: str | None = None

    @property
    def architecture(self) -> str | None:
        """The class an engine builds; None where the config names none."""
        return next(iter(self.architectures), None)


def read_target(raw: Mapping[str, Any]) -> TargetConfig:
    """Read a target's config.json, of any shape."""
    inner = next((raw[key] for key in _LANGUAGE_MODEL if isinstance(raw.get(key), dict)), _NOTHING)

    def stated(key: str) -> Any:
        return raw.get(key) if inner.get(key) is None else inner[key]

    rope = stated("rope_parameters")
    theta = stated("rope_theta") or (rope.get("rope_theta") if isinstance(rope, Mapping) else None)
    dtype, name = stated("torch_dtype") or stated("dtype"), raw.get("_name_or_path")
    lists = [names for names in (raw.get("architectures"), inner.get("architectures")) if names]
    return TargetConfig(
        architectures=tuple(
            names[0] for names in lists if isinstance(names, list) and isinstance(names[0], str)
        ),
        layers=_size(stated("num_hidden_layers")),
        hidden_size=_size(stated("hidden_size")),
        vocab_size=_size(stated("vocab_size")),
        tied=stated("tie_word_embeddings") is True,
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        rope_theta=_number(theta),
        context=derived_context(_size(stated("max_position_embeddings")), stated("rope_scaling")),
        name=name if isinstance(name, str) and name else None,
    )


def derived_context(positions: int | None, scaling: Any) -> int | None:
    """The context length in tokens that SGLang derives from a config (utils/hf_transformers/common.py:677-694).

    A scaling factor counts only without `original_max_position_embeddings`, and not for llama3.
    """
    if positions is None or not isinstance(scaling, Mapping):
        return positions
    factor = _number(scaling.get("factor"))
    counts = "original_max_position_embeddings" not in scaling and scaling.get("rope_type") != "llama3"
    return int(factor * positions) if factor is not None and counts else positions


def _size(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value < 2**31 else None


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e30 else None
