"""The names that releases and the simulator are asked about: every family trainers write, and made-up ones."""

from __future__ import annotations

import random
from collections.abc import Iterable

# A name alone, or several that are offered to the same drafter one after the other.
Offer = str | tuple[str, ...]

_LAYER = (
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.o_proj.bias", "self_attn.q_norm.weight",
    "self_attn.k_norm.weight", "self_attn.qkv_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight", "mlp.gate_up_proj.weight", "input_layernorm.weight", "hidden_norm.weight",
    "post_attention_layernorm.weight", "self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight",
    "self_attn.fused_qkv_a_proj_with_mqa.weight", "self_attn.q_a_layernorm.weight", "self_attn.q_b_proj.weight",
    "self_attn.kv_a_layernorm.weight", "self_attn.kv_b_proj.weight", "attention_norm.weight", "attention.wq.weight",
    "attention.wk.weight", "attention.wv.weight", "attention.wo.weight", "ffn_norm.weight", "feed_forward.w1.weight",
    "feed_forward.w2.weight", "feed_forward.w3.weight", "self_attn.rotary_emb.inv_freq", "mlp.gate.weight",
)  # fmt: skip
_TOP = (
    "embed_tokens.weight", "fc.weight", "fc.bias", "norm.weight", "lm_head.weight", "d2t", "t2d", "input_norm.weight",
    "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight", "aux_norm_low.weight", "aux_norm_mid.weight",
    "aux_norm_high.weight", "verifier_norm.weight", "verifier_lm_head.weight", "mask_hidden",
    "eagle_linear.weight", "tok_embeddings.weight", "output.weight", "vision_tower.fc.weight", "projector.fc.weight",
    "hot_token_id", "rotary_emb.cos_cached",
)  # fmt: skip
# Names at the edges of vLLM's own rules, beside the families that trainers write.
EDGES = (
    "draft_id_to_target_id", "model.draft_id_to_target_id", "d2t.mask_hidden", "t2d.d2t", "d2t.lm_head",
    "lm_head.d2t", "lm_head", "lm_head.bias", "lm_head.weight.bias", "model.lm_head.weight", "mask_hidden",
    "model.mask_hidden", "bias", "fc.bias", "fc", "fc.", ".fc", "norm.bias", "norm.weight.bias", "norm.weight.x",
    "x.bias", "x.y.bias", "", ".", "layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.cos_cached",
    "layers.0.self_attn.q_proj", "layers..0.x", "layers.0.self_attn.q_proj.x", "layers.0.self_attn.qkv_proj.",
    "layers.0.self_attn.qkv_proj.bias.x", "layers.0.mlp.gate_up_proj.x.bias", "layers.0.mlp.x.bias",
    "midlayer.mlp.up_proj.bias", "midlayer.midlayer.x", "layers.0.self_attn.k_proj.q_proj", "input_norm.bias",
    "fc_norm.3.weight", "embed_tokens.bias", "layers.0.q_proj.k_proj.weight",
)  # fmt: skip
_LAYERS = ("midlayer.", "layers.0.", "midlayer.0.", "layers.1.", "midlayer.1.", "layers.")
_OUTER = ("", "model.", "module.", "draft_model.", "model.model.")


def families() -> list[str]:
    """Every name family that trainers are known to write, and some that they are not."""
    inner = [*_TOP, *(layer + name for layer in _LAYERS for name in _LAYER)]
    return [outer + name for outer in _OUTER for name in inner]


def generated(count: int, seed: int = 0) -> list[str]:
    """Names put together at random from the pieces that rules look for."""
    words = (
        "model", "midlayer", "layers", "0", "1", "self_attn", "mlp", "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj",
        "gate_proj", "up_proj", "down_proj", "gate_up_proj", "weight", "bias", "norm", "fc", "fc_norm", "aux_norm_low",
        "aux_norm_mid", "input_norm", "hidden_norm", "d2t", "t2d", "embed_tokens", "module", "x", "xd2ty", "midlayers",
        "q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "layers.0", "wq", "attention", "w1",
    )  # fmt: skip
    choose = random.Random(seed)
    return [".".join(choose.choices(words, k=choose.randint(1, 6))) for _ in range(count)]


def around_words(words: Iterable[str], parameters: Iterable[str]) -> list[str]:
    """Parameters' names with a word in place of each of their parts, and in front: what a rename of it would meet."""
    found: list[str] = []
    shorter = [name.removeprefix("model.") for name in parameters]
    for word in words:
        for name in shorter:
            parts = name.split(".")
            found += [".".join([*parts[:at], word, *parts[at + 1 :]]) for at in range(len(parts))]
            found.append(f"{word}.{name}")
    return list(dict.fromkeys(found))


def offers(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[Offer]:
    """Each name alone, and, where a loader joins two tensors, each with its partner, in both orders."""
    alone = list(names)
    found: list[Offer] = [*alone]
    for parts in pairs:
        for name in alone:
            if (parts[0] in name) != (parts[1] in name):
                mine, theirs = parts if parts[0] in name else parts[::-1]
                partner = name.replace(mine, theirs)
                found += [(name, partner), (partner, name), (name, name, partner)]
    return found
