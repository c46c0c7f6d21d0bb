"""Small configs of models, as their config.json has them."""

from __future__ import annotations

from typing import Any

LAYERS = 12
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": LAYERS,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLA: dict[str, Any] = {
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": LAYERS,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}
# Kimi-K2.5's vision tower in both spellings: one for the tower, one for the projector.
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "patch_size": 14,
    "init_pos_emb_height": 8,
    "init_pos_emb_width": 8,
    "init_pos_emb_time": 4,
    "pos_emb_type": "divided_fixed",
    "merge_kernel_size": [2, 2],
    "vt_hidden_size": 32,
    "vt_num_hidden_layers": 1,
    "vt_num_attention_heads": 2,
    "vt_intermediate_size": 64,
    "mm_hidden_size": 32,
    "text_hidden_size": 64,
    "projector_hidden_act": "gelu",
    "mm_projector_type": "patchmerger",
    "projector_ln_eps": 1e-5,
}
LLAMA = SMALL | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN3 = SMALL | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
DEEPSEEK_V3 = SMALL | _MLA | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
DEEPSEEK_V2 = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "topk_method": "greedy",
    "scoring_func": "softmax",
}
KIMI_K25: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "media_placeholder_token_id": 500,
    "text_config": DEEPSEEK_V3 | {"model_type": "kimi_k2"},
    "vision_config": _VISION,
}
EAGLE3_HEAD = SMALL | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "draft_vocab_size": 128,
}
