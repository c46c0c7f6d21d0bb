"""One drafter config written in another dialect: from any to the flat one, from any to speculators' nested one."""

from __future__ import annotations

from typing import Any

from eagle3lab.checkpoint.config import DrafterConfig

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
