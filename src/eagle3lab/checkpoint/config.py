"""A drafter's config.json in any of its three dialects, as one record that knows where each value stood.

Dialects:
    huggingface: flat, as SafeAILab, SpecForge, AngelSlim, TorchSpec and NeMo Automodel write it, with or
        without a nested `eagle_config`.
    modelopt: flat, with an `eagle_config` that also carries ModelOpt's own switches.
    speculators: the layer's settings nested in `transformer_layer_config`, the rest at the top level.

Of the JSON paths of a field the first that is present and not null wins. `eagle_config.*` comes first where
an engine reads it there (SGLang 0.5.23 `models/llama_eagle3.py`, `models/kimi_k25_eagle3.py`). Defaults are
those of transformers' `LlamaConfig` and of the engines' `getattr` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from eagle3lab.checkpoint.json_input import json_type, line_of_key
from eagle3lab.errors import InputError

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


# What a head may have besides the plain layer; written down where it has it, and left out where it does not.
_OPTIONAL = ("bias", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def flat_config(config: DrafterConfig, architecture: str = "LlamaForCausalLMEagle3") -> dict[str, Any]:
    """The flat Hugging Face config.json that SGLang's `LlamaForCausalLMEagle3` reads, from any dialect.

    Layer ids are left out: what they mean depends on where they stand, and SGLang's default layers are those of
    speculators, so a head trained on the defaults needs none.

    Args:
        config: The drafter's configuration.
        architecture: The engine's class for it.
    """
    flat: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "hidden_act": config.hidden_act,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": dict(config.rope_scaling) if config.rope_scaling else None,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": config.torch_dtype or "bfloat16",
    }
    flat |= {name: True for name in _OPTIONAL if getattr(config, name)}
    if config.target_hidden_size != config.hidden_size:
        flat["target_hidden_size"] = config.target_hidden_size
    return flat


def speculators_config(
    config: DrafterConfig, layer_ids: tuple[int, ...] | None, verifier: str, verifier_architectures: list[str]
) -> dict[str, Any]:
    """The nested config.json of the speculators library (0.9.0), which vLLM reads too, from any dialect.

    `norm_before_residual` is always stated: speculators takes false where it is absent, vLLM takes true
    (`vllm/transformers_utils/configs/speculators/algos.py`).

    Args:
        config: The drafter's configuration.
        layer_ids: The target layers whose *input* feeds fc; None for the library's defaults.
        verifier: Name or path of the target.
        verifier_architectures: `architectures` of the target's config.
    """
    rope = {"rope_type": "default", **(config.rope_scaling or {}), "rope_theta": config.rope_theta}
    if "type" in rope:
        rope["rope_type"] = rope.pop("type")
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "dtype": config.torch_dtype or "bfloat16",
        "eagle_aux_hidden_state_layer_ids": None if layer_ids is None else list(layer_ids),
        "embed_requires_grad": False,
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"architectures": verifier_architectures, "name_or_path": verifier},
        },
        "speculators_model_type": "eagle3",
        "target_hidden_size": None
        if config.target_hidden_size == config.hidden_size
        else config.target_hidden_size,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "attention_bias": config.attention_bias,
            "head_dim": config.head_dim,
            "hidden_act": config.hidden_act,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_position_embeddings,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": config.num_attention_heads,
            "num_hidden_layers": config.num_hidden_layers,
            "num_key_value_heads": config.num_key_value_heads,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_parameters": rope,
            "vocab_size": config.vocab_size,
        },
    }
