"""The fields of a drafter's config.json as a table: type, JSON paths, default, derivation.

Places are tried in order and the first that is present and not null wins. `eagle_config.*` comes first where
an engine reads it there (SGLang 0.5.23 `models/llama_eagle3.py`, `models/kimi_k25_eagle3.py`). Defaults are
those of transformers' `LlamaConfig` and of the engines' `getattr` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3lab.checkpoint.json_input import json_type

# Switches in `eagle_config` that only NVIDIA ModelOpt writes (export/plugins/hf_spec_export.py).
MODELOPT_KEYS = frozenset(
    {
        "use_input_layernorm_in_first_layer",
        "use_last_layernorm",
        "use_mtp_layernorm",
        "next_layer_regular",
        "parallel_draft_step",
    }
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of `DrafterConfig`.

    Attributes:
        name: The field.
        kind: What its JSON value must be; see `check_value`.
        paths: Dotted JSON paths of the flat dialects, in the order they are tried.
        layer: Whether the speculators dialect keeps it in `transformer_layer_config` (tried before `paths`).
        speculators: Further paths that only the speculators dialect has.
        default: The value when it stands nowhere.
        required: Whether a drafter cannot be read without it.
        convert: Turns the JSON value into the field's; None means "says nothing here".
        derive: Computes it from the fields before it; None means "cannot".
        derived_from: What `derive` uses, for people.
    """

    name: str
    kind: str
    paths: tuple[str, ...]
    layer: bool = False
    speculators: tuple[str, ...] = ()
    default: Any = None
    required: bool = False
    convert: Callable[[Any], Any] | None = None
    derive: Callable[[Mapping[str, Any]], Any] | None = None
    derived_from: str = ""

    def places(self, dialect: str) -> tuple[str, ...]:
        """Where the field may stand in `dialect`, first choice first."""
        if dialect != "speculators":
            return self.paths
        nested = tuple(f"transformer_layer_config.{path}" for path in self.paths) if self.layer else ()
        return (*self.speculators, *nested, *self.paths)


def check_value(kind: str, value: object) -> str | None:
    """What is wrong with `value` (not null) as a `kind`, as the end of a sentence; None if nothing."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if kind == "size":
        if not integer:
            return f"is {json_type(value)}, not an integer"
        assert isinstance(value, int)
        return None if 0 < value < 2**31 else "is not a positive 32-bit integer"
    if kind == "number":
        if not integer and not isinstance(value, float):
            return f"is {json_type(value)}, not a number"
        assert isinstance(value, int | float)
        return None if 0 < value < 1e30 else "is not a positive finite number"
    if kind == "flag":
        return None if isinstance(value, bool) else f"is {json_type(value)}, not true or false"
    if kind == "text":
        return None if isinstance(value, str) else f"is {json_type(value)}, not a string"
    if kind == "object":
        return None if isinstance(value, dict) else f"is {json_type(value)}, not an object"
    if not isinstance(value, list):
        return f"is {json_type(value)}, not an array"
    if kind == "texts":
        return (
            None if all(isinstance(item, str) for item in value) else "holds something that is not a string"
        )
    small = all(isinstance(item, int) and not isinstance(item, bool) and abs(item) < 2**31 for item in value)
    return None if small else "holds something that is not a 32-bit integer"


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    """RoPE scaling out of `rope_scaling` or transformers 5's `rope_parameters`; None for plain RoPE."""
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    plain = not scaling or rope.get("rope_type", rope.get("type")) == "default"
    return None if plain else scaling


def _switch(name: str, *aliases: str, default: bool = False) -> Field:
    paths = tuple(f"{place}{key}" for key in (name, *aliases) for place in ("eagle_config.", ""))
    return Field(name, "flag", paths, default=default)


FIELDS: tuple[Field, ...] = (
    Field("architectures", "texts", ("architectures",), default=(), convert=tuple),
    Field("model_type", "text", ("model_type",), layer=True),
    Field("hidden_size", "size", ("hidden_size",), layer=True, required=True),
    Field("intermediate_size", "size", ("intermediate_size",), layer=True, required=True),
    Field("num_attention_heads", "size", ("num_attention_heads",), layer=True, required=True),
    Field(
        "num_key_value_heads",
        "size",
        ("num_key_value_heads",),
        layer=True,
        derive=lambda known: known["num_attention_heads"],
        derived_from="num_attention_heads",
    ),
    Field(
        "head_dim",
        "size",
        ("head_dim",),
        layer=True,
        derive=lambda known: max(1, known["hidden_size"] // known["num_attention_heads"]),
        derived_from="hidden_size // num_attention_heads",
    ),
    Field("num_hidden_layers", "size", ("num_hidden_layers",), layer=True, required=True),
    Field("vocab_size", "size", ("vocab_size",), layer=True, required=True),
    Field("draft_vocab_size", "size", ("draft_vocab_size",)),
    Field(
        "target_hidden_size",
        "size",
        ("target_hidden_size",),
        derive=lambda known: known["hidden_size"],
        derived_from="hidden_size",
    ),
    Field("tie_word_embeddings", "flag", ("tie_word_embeddings",), default=False),
    Field("attention_bias", "flag", ("attention_bias",), layer=True, default=False),
    Field("bias", "flag", ("bias",), layer=True, default=False),
    _switch("norm_before_residual"),
    _switch("norm_before_fc"),
    _switch("fc_norm", "use_aux_norm"),
    _switch("norm_output"),
    Field(
        "aux_hidden_state_layer_ids",
        "integers",
        ("eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"),
        convert=tuple,
    ),
    _switch("use_aux_hidden_state", default=True),
    Field(
        "num_aux_hidden_states",
        "size",
        ("num_aux_hidden_states", "eagle_config.num_aux_hidden_states"),
        default=3,
        derive=lambda known: len(known["aux_hidden_state_layer_ids"] or ()) or None,
        derived_from="number of aux_hidden_state_layer_ids",
    ),
    Field("max_position_embeddings", "size", ("max_position_embeddings",), layer=True, default=2048),
    Field(
        "rope_theta",
        "number",
        ("rope_theta", "rope_parameters.rope_theta"),
        layer=True,
        default=10000.0,
        convert=float,
    ),
    Field("rope_scaling", "object", ("rope_scaling", "rope_parameters"), layer=True, convert=_scaling),
    Field("rms_norm_eps", "number", ("rms_norm_eps",), layer=True, default=1e-6, convert=float),
    Field(
        "torch_dtype",
        "text",
        ("torch_dtype", "dtype"),
        layer=True,
        convert=lambda name: name.removeprefix("torch."),
    ),
    Field("hidden_act", "text", ("hidden_act",), layer=True, default="silu"),
    Field(
        "verifier", "text", ("speculators_config.verifier.name_or_path",), convert=lambda name: name or None
    ),
)
