"""The tiny Kimi-K2.5 target: the case study's own classes, their sizes small, as a permutation target.

`KimiK25ForConditionalGeneration` wraps a vision tower, a projector and a `DeepseekV3ForCausalLM` with multi-head
latent attention (MLA). Twelve dense layers add nothing to their input, and `lm_head` makes the next token the
permutation of the last one, as in `lab.specimen.permutation`: the same prompts, tokens and theory hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.specimen.permutation import HIDDEN, SPECIAL_TOKENS, VOCAB_SIZE, cycles, target_tensors

if TYPE_CHECKING:
    import torch

LAYERS = 12
INTERMEDIATE = 128
HEADS, NOPE, ROPE, VALUE = 4, 16, 8, 16
"""Attention heads; per head the width of a key without position, of its rotary part, of a value."""
Q_LORA, KV_LORA = 64, 64
"""Ranks of the latents that queries, and keys with values, are made from."""

MEDIA_TOKEN = "<|media_pad|>"
"""The token that stands for an image in a prompt; SGLang looks it up when it starts."""

_VISION, _PATCH, _GRID = 32, 14, 4

# Kimi's own scaling in miniature. SGLang's MLA drafter refuses to start on a CPU without one.
ROPE_SCALING = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
    "type": "yarn",
}


def media_token_id() -> int:
    """Id of `MEDIA_TOKEN`: the last fixed point, which no prompt of ours holds."""
    return cycles()[2][-1]


def mla_config() -> dict[str, Any]:
    """What a config says of multi-head latent attention, for the target's text model and for an MLA drafter."""
    return {
        "attention_bias": False,
        "bos_token_id": SPECIAL_TOKENS.index("<bos>"),
        "eos_token_id": SPECIAL_TOKENS.index("<eos>"),
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "kv_lora_rank": KV_LORA,
        "max_position_embeddings": 512,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "pad_token_id": SPECIAL_TOKENS.index("<pad>"),
        "q_lora_rank": Q_LORA,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "rms_norm_eps": 1e-6,
        "rope_scaling": ROPE_SCALING,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "v_head_dim": VALUE,
        "vocab_size": VOCAB_SIZE,
    }


def target_config() -> dict[str, Any]:
    """config.json of the target, in Kimi-K2.5's own layout."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "bos_token_id": SPECIAL_TOKENS.index("<bos>"),
        "eos_token_id": SPECIAL_TOKENS.index("<eos>"),
        "media_placeholder_token_id": media_token_id(),
        "model_type": "kimi_k25",
        "pad_token_id": SPECIAL_TOKENS.index("<pad>"),
        "text_config": mla_config()
        | {
            "architectures": ["DeepseekV3ForCausalLM"],
            # As many dense layers as there are layers: no experts, which would add nothing to what is shown.
            "first_k_dense_replace": LAYERS,
            "intermediate_size": INTERMEDIATE,
            "model_type": "kimi_k2",
            "moe_intermediate_size": 32,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "num_hidden_layers": LAYERS,
            "routed_scaling_factor": 1.0,
            "scoring_func": "sigmoid",
            "topk_group": 1,
            "topk_method": "noaux_tc",
        },
        "torch_dtype": "bfloat16",
        "vision_config": _vision_config(),
    }


def _vision_config() -> dict[str, Any]:
    """A tower of one layer, in both spellings: one is read for the tower, one for the projector."""
    own = {"hidden_size": _VISION, "intermediate_size": 2 * _VISION, "num_attention_heads": 2}
    own["num_hidden_layers"] = 1
    return {
        **own,
        **{f"vt_{name}": value for name, value in own.items()},
        "init_pos_emb_height": _GRID,
        "init_pos_emb_time": _GRID,
        "init_pos_emb_width": _GRID,
        "merge_kernel_size": [2, 2],
        "merge_type": "sd2_tpool",
        "mm_hidden_size": _VISION,
        "patch_size": _PATCH,
        "pos_emb_type": "divided_fixed",
        "text_hidden_size": HIDDEN,
        "video_attn_type": "spatial_temporal",
    }


def target_weights() -> dict[str, torch.Tensor]:
    """The target's tensors, float32, under Kimi-K2.5's names."""
    import torch

    llama = target_tensors()
    text = {
        name: llama[name] for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    }
    for layer in range(LAYERS):
        for name, shape in mla_layer_shapes(HIDDEN, INTERMEDIATE).items():
            norm = name.endswith("norm.weight")
            text[f"model.layers.{layer}.{name}"] = torch.ones(shape) if norm else torch.zeros(shape)
    return {f"language_model.{name}": tensor for name, tensor in text.items()} | _vision_weights()


def mla_layer_shapes(width: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a dense decoder layer with MLA by tensor name; `width` is what q and kv read."""
    return {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_a_proj.weight": (Q_LORA, width),
        "self_attn.q_a_layernorm.weight": (Q_LORA,),
        "self_attn.q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_LORA),
        "self_attn.kv_a_proj_with_mqa.weight": (KV_LORA + ROPE, width),
        "self_attn.kv_a_layernorm.weight": (KV_LORA,),
        "self_attn.kv_b_proj.weight": (HEADS * (NOPE + VALUE), KV_LORA),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * VALUE),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (intermediate, HIDDEN),
        "mlp.up_proj.weight": (intermediate, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, intermediate),
    }


def _vision_weights() -> dict[str, torch.Tensor]:
    """Tower and projector: zeros, for no image is ever shown to them; they are there because the class has them."""
    import torch

    merged = 4 * _VISION
    block = {"wqkv": (3 * _VISION, _VISION), "wo": (_VISION, _VISION)}
    block |= {"mlp.fc0": (2 * _VISION, _VISION), "mlp.fc1": (_VISION, 2 * _VISION)}
    linear: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj": (_VISION, 3, _PATCH, _PATCH),
        **{f"vision_tower.encoder.blocks.0.{name}": shape for name, shape in block.items()},
        "mm_projector.proj.0": (merged, merged),
        "mm_projector.proj.2": (HIDDEN, merged),
    }
    norms = ["encoder.blocks.0.norm0", "encoder.blocks.0.norm1", "encoder.final_layernorm"]
    tensors = {"vision_tower.patch_embed.pos_emb.weight": torch.zeros(_GRID, _GRID, _VISION)}
    for name, shape in linear.items():
        tensors |= {f"{name}.weight": torch.zeros(shape), f"{name}.bias": torch.zeros(shape[0])}
    for name in [*(f"vision_tower.{norm}" for norm in norms), "mm_projector.pre_norm"]:
        tensors |= {f"{name}.weight": torch.ones(_VISION), f"{name}.bias": torch.zeros(_VISION)}
    return tensors
