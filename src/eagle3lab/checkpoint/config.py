"""A drafter's config.json in any of its three dialects, as one record that knows where each value stood.

Dialects:
    huggingface: flat, as SafeAILab, SpecForge, AngelSlim, TorchSpec and NeMo Automodel write it, with or
        without a nested `eagle_config`.
    modelopt: flat, with an `eagle_config` that also carries ModelOpt's own switches.
    speculators: the layer's settings nested in `transformer_layer_config`, the rest at the top level.

Which JSON paths a field may stand at is the table in `eagle3lab.checkpoint.config_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from eagle3lab.checkpoint.config_fields import FIELDS, MODELOPT_KEYS, Field, check_value
from eagle3lab.checkpoint.json_input import json_type, line_of_key
from eagle3lab.errors import InputError

Dialect = Literal["huggingface", "modelopt", "speculators"]
ABSENT = object()


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter's configuration, independent of who wrote it.

    Attributes:
        dialect: Which of the three layouts the file has.
        architectures: Class names an engine looks up; () when absent.
        model_type: Transformers' model type of the layer; None when absent.
        hidden_size: Width H of the drafter.
        intermediate_size: Width of the feed-forward layer.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads.
        head_dim: Width of one head; hidden_size // num_attention_heads unless stated.
        num_hidden_layers: Decoder layers of the drafter.
        vocab_size: The target's vocabulary V.
        draft_vocab_size: The draft vocabulary D; None when absent or null (see `stated`).
        target_hidden_size: Width Ht of the target's hidden states; hidden_size unless stated.
        tie_word_embeddings: Whether the output head is said to share the embeddings.
        attention_bias: Whether the attention projections carry a bias.
        bias: Whether fc carries a bias.
        norm_before_residual: Whether the residual is taken after hidden_norm.
        norm_before_fc: Whether one norm over all auxiliary states precedes fc.
        fc_norm: Whether each auxiliary state has a norm of its own before fc.
        norm_output: Whether the recurrent hidden state is taken after the final norm.
        aux_hidden_state_layer_ids: The target layers whose hidden states feed fc, as stated; None when
            absent.
        use_aux_hidden_state: Whether auxiliary states are captured at all.
        num_aux_hidden_states: How many states fc fuses: stated, or the number of layer ids, or 3.
        max_position_embeddings: Longest position, in tokens.
        rope_theta: RoPE base.
        rope_scaling: RoPE scaling parameters; None without scaling.
        rms_norm_eps: Epsilon of the RMS norms.
        torch_dtype: Dtype name as stated, without "torch."; None when absent.
        hidden_act: Activation of the feed-forward layer.
        verifier: The target the drafter says it was trained for; None when it does not say.
        sources: Field → the JSON path it came from, "derived: …", or "default".
        raw: The parsed JSON.
    """

    dialect: Dialect
    architectures: tuple[str, ...]
    model_type: str | None
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    vocab_size: int
    draft_vocab_size: int | None
    target_hidden_size: int
    tie_word_embeddings: bool
    attention_bias: bool
    bias: bool
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    aux_hidden_state_layer_ids: tuple[int, ...] | None
    use_aux_hidden_state: bool
    num_aux_hidden_states: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    rms_norm_eps: float
    torch_dtype: str | None
    hidden_act: str
    verifier: str | None
    sources: Mapping[str, str]
    raw: Mapping[str, Any]

    def stated(self, path: str) -> bool:
        """Whether the JSON path (dots between keys) is present, be it null: engines tell absent from null."""
        return look_up(self.raw, path) is not ABSENT


def look_up(raw: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of parsed JSON, or `ABSENT`."""
    value: Any = raw
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return ABSENT
        value = value[key]
    return value


def parse_config(raw: Mapping[str, Any], text: str, path: Path) -> DrafterConfig:
    """Normalise a parsed config.json.

    Args:
        raw: The JSON object.
        text: The text it came from, to name lines in errors.
        path: The file, for errors.

    Raises:
        InputError: A field that every drafter needs is absent or null, or a field has the wrong type or an
            impossible value.
    """
    dialect = _dialect(raw, text, path)
    values: dict[str, Any] = {"dialect": dialect, "raw": MappingProxyType(dict(raw))}
    sources: dict[str, str] = {"dialect": _dialect_evidence(raw, dialect)}
    for field in FIELDS:
        values[field.name], sources[field.name] = _value(field, raw, dialect, values, text, path)
    return DrafterConfig(**values, sources=MappingProxyType(sources))


def _dialect(raw: Mapping[str, Any], text: str, path: Path) -> Dialect:
    for key in ("eagle_config", "transformer_layer_config", "rope_parameters", "speculators_config"):
        if raw.get(key) is not None and not isinstance(raw[key], dict):
            raise InputError(
                f"{key} is {json_type(raw[key])}, not an object", path=path, line=line_of_key(text, key)
            )
    if isinstance(raw.get("transformer_layer_config"), dict):
        return "speculators"
    return "modelopt" if _modelopt_keys(raw) else "huggingface"


def _modelopt_keys(raw: Mapping[str, Any]) -> list[str]:
    return sorted(MODELOPT_KEYS & set(raw.get("eagle_config") or {}))


def _dialect_evidence(raw: Mapping[str, Any], dialect: Dialect) -> str:
    if dialect == "speculators":
        return "transformer_layer_config"
    return f"eagle_config.{_modelopt_keys(raw)[0]}" if dialect == "modelopt" else "default"


def _value(
    field: Field, raw: Mapping[str, Any], dialect: Dialect, known: Mapping[str, Any], text: str, path: Path
) -> tuple[Any, str]:
    null_at = None
    for place in field.places(dialect):
        value = look_up(raw, place)
        if value is ABSENT:
            continue
        if value is None:
            null_at = null_at or place
            continue
        key = place.rpartition(".")[2]
        problem = check_value(field.kind, value)
        if problem:
            raise InputError(f"{place} {problem}", path=path, line=line_of_key(text, key))
        usable = field.convert(value) if field.convert else value
        if usable is not None:
            return usable, place
    if field.required:
        raise InputError(
            f"{null_at} is null" if null_at else f"does not state {field.places(dialect)[0]}",
            path=path,
            line=line_of_key(text, null_at.rpartition(".")[2]) if null_at else None,
            advice="Copy it from the drafter's training configuration.",
        )
    if field.derive:
        derived = field.derive(known)
        if derived is not None:
            return derived, f"derived: {field.derived_from}"
    return field.default, null_at if null_at and field.default is None else "default"
