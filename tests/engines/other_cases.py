"""Cases for the drafter classes beside the Llama one: heads with low-rank attention, and EAGLE-1's."""

from __future__ import annotations

from typing import Any

from eagle3lab.checkpoint import TensorInfo
from tests.engines.cases import BIASES, FC_NORMS, ODD_NAMES, Case
from tests.engines.drafters import (
    ABSENT,
    DRAFT,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    VOCABULARY,
    head,
    raw_config,
    read,
    shipped,
    stated,
    tensor,
)
from tests.support.small_models import DEEPSEEK_V3

Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 48, 32, 16, 8, 16
MLA: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT,
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": KV_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "rope_theta": 50000.0,
    "max_position_embeddings": 512,
    # On a CPU the release's own class is built only with a scaled rotary embedding; its parameters are the same.
    "rope_scaling": DEEPSEEK_V3["rope_scaling"],
}
Q_A, KV_A = "midlayer.self_attn.q_a_proj.weight", "midlayer.self_attn.kv_a_proj_with_mqa.weight"
FUSED_A = "midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"


def mla_config(**changes: Any) -> dict[str, Any]:
    """The config of a head with low-rank attention, some keys changed."""
    return stated({**MLA, **changes})


def mla_head(
    layer: str = "midlayer.",
    outer: str = "",
    *,
    width: int = 3 * HIDDEN,
    without: tuple[str, ...] = (),
    shapes: dict[str, list[int]] | None = None,
    extra: tuple[TensorInfo, ...] = (),
) -> list[TensorInfo]:
    """Such a head; see `tests.engines.drafters.head`."""
    names = {
        "d2t": ([DRAFT], "I64"),
        "embed_tokens.weight": ([VOCABULARY, HIDDEN], "BF16"),
        "fc.weight": ([HIDDEN, width], "BF16"),
        f"{layer}self_attn.q_a_proj.weight": ([Q_RANK, 2 * HIDDEN], "BF16"),
        f"{layer}self_attn.kv_a_proj_with_mqa.weight": ([KV_RANK + ROPE, 2 * HIDDEN], "BF16"),
        f"{layer}self_attn.q_a_layernorm.weight": ([Q_RANK], "BF16"),
        f"{layer}self_attn.kv_a_layernorm.weight": ([KV_RANK], "BF16"),
        f"{layer}self_attn.q_b_proj.weight": ([HEADS * (NOPE + ROPE), Q_RANK], "BF16"),
        f"{layer}self_attn.kv_b_proj.weight": ([HEADS * (NOPE + VALUE), KV_RANK], "BF16"),
        f"{layer}self_attn.o_proj.weight": ([HIDDEN, HEADS * VALUE], "BF16"),
        f"{layer}mlp.gate_proj.weight": ([INTERMEDIATE, HIDDEN], "BF16"),
        f"{layer}mlp.up_proj.weight": ([INTERMEDIATE, HIDDEN], "BF16"),
        f"{layer}mlp.down_proj.weight": ([HIDDEN, INTERMEDIATE], "BF16"),
        f"{layer}input_layernorm.weight": ([HIDDEN], "BF16"),
        f"{layer}hidden_norm.weight": ([HIDDEN], "BF16"),
        f"{layer}post_attention_layernorm.weight": ([HIDDEN], "BF16"),
        "lm_head.weight": ([DRAFT, HIDDEN], "BF16"),
        "norm.weight": ([HIDDEN], "BF16"),
        "t2d": ([VOCABULARY], "BOOL"),
    }
    return [*shipped(names, outer, without, shapes), *extra]


def mla_names() -> dict[str, Case]:
    """Names and the two halves of the first projection."""
    halves = (tensor(Q_A, [Q_RANK, 2 * HIDDEN]), tensor(KV_A, [KV_RANK + ROPE, 2 * HIDDEN]))
    bare = mla_head(without=("q_a_proj.weight", "kv_a_proj_with_mqa.weight"))
    families = {
        "midlayer": mla_head(),
        "layers.0": mla_head("layers.0."),
        "model.layers.0": mla_head("layers.0.", "model."),
        "model.midlayer": mla_head(outer="model."),
        "module": mla_head(outer="module."),
        "layers.1": mla_head("layers.1."),
        "midlayer.0": mla_head("midlayer.0."),
        "both names": [*mla_head(), *mla_head("layers.0.")],
        "odd names": mla_head(extra=ODD_NAMES),
        "fc_norm unasked": mla_head(extra=FC_NORMS),
        "no head": mla_head(without=("lm_head.weight",)),
        "no q_a": mla_head(without=("q_a_proj.weight",)),
        "no kv_a": mla_head(without=("kv_a_proj_with_mqa.weight",)),
        "kv_a before q_a": [*bare, *halves[::-1]],
        "halves far apart": [halves[0], *bare, halves[1]],
        "halves in two families": [*bare, halves[0], tensor(KV_A.replace("midlayer", "layers.0"), [40, 128])],
        "two q_a": [*bare, halves[0], *halves],
        "two kv_a": [*bare, halves[0], halves[1], halves[1]],
        "both twice": [*bare, *halves, *halves],
        "already fused": [*bare, tensor(FUSED_A, [Q_RANK + KV_RANK + ROPE, 2 * HIDDEN])],
        "both in one name": [*bare, tensor("q_a_proj.kv_a_proj_with_mqa", [4, 4])],
        "gate and up fused": mla_head(extra=(tensor("midlayer.mlp.gate_up_proj.weight", [256, 64]),)),
        "shards of nothing": mla_head(extra=(tensor("x.up_proj.weight", [8]), tensor("lm_head.gate_proj", [8]))),
        "a Llama layer": [*head(), *head("layers.0.")],
        "an EAGLE-1 head": eagle1_head(),
        "nothing": [],
    }  # fmt: skip
    return {name: (read(MLA), tensors) for name, tensors in families.items()}


def mla_shapes() -> dict[str, Case]:
    """Right and wrong shapes, one tensor at a time."""
    changes: dict[str, list[list[int]]] = {
        "q_a_proj.weight": [[47, 128], [49, 128], [48, 64], [48], [], [88, 128], [0, 128], [48, 128, 1]],
        "kv_a_proj_with_mqa.weight": [[41, 128], [40, 127], [], [40]],
        "q_b_proj.weight": [[200, 48], [100, 48], [192, 47], [192], [], [384, 48]],
        "kv_b_proj.weight": [[256, 33], [250, 32], [512, 32]],
        "q_a_layernorm.weight": [[47], [1], []],
        "o_proj.weight": [[64, 120], [64, 256], [32, 128]],
        "fc.weight": [[64, 128], [64, 256], [65, 192], [63, 192], [], [64]],
        "down_proj.weight": [[64, 130], [64, 70]],
        "lm_head.weight": [[99, 64], [100, 32]],
        "d2t": [[99], []],
    }
    return {
        f"{end} {shape}": (read(MLA), mla_head(shapes={end: shape}))
        for end, wrong in changes.items()
        for shape in wrong
    }


def mla_configs() -> dict[str, Case]:
    """Config variants."""
    ids = "eagle_aux_hidden_state_layer_ids"
    changed: dict[str, tuple[dict[str, Any], list[TensorInfo]]] = {
        "tied": ({"tie_word_embeddings": True}, mla_head()),
        "tied, no draft_vocab_size": ({"tie_word_embeddings": True, "draft_vocab_size": ABSENT}, mla_head()),
        "draft_vocab_size null": ({"draft_vocab_size": None}, mla_head(shapes={"lm_head.weight": [256, 64]})),
        "draft_vocab_size absent": ({"draft_vocab_size": ABSENT}, mla_head(without=("lm_head.weight",))),
        "draft_vocab_size absent, short head": ({"draft_vocab_size": ABSENT}, mla_head()),
        "bias": ({"bias": True}, mla_head(extra=BIASES)),
        "bias, none shipped": ({"bias": True}, mla_head()),
        "attention_bias": ({"attention_bias": True}, mla_head(extra=BIASES)),
        "fc_norm": ({"fc_norm": True}, mla_head(extra=FC_NORMS)),
        "use_aux_norm": ({"use_aux_norm": True}, mla_head(extra=FC_NORMS)),
        "norm_before_fc": ({"norm_before_fc": True}, mla_head(extra=(tensor("input_norm.weight", [192]),))),
        "two ids": ({"eagle_config": {ids: [1, 2]}}, mla_head(width=2 * HIDDEN)),
        "two ids, fc for three": ({"eagle_config": {ids: [1, 2]}}, mla_head()),
        "ids at the top": ({ids: [1, 2]}, mla_head(width=2 * HIDDEN)),
        "ids in both places": ({"eagle_config": {ids: [1]}, ids: [1, 2]}, mla_head(width=HIDDEN)),
        "eagle_config null": ({"eagle_config": None, ids: [1, 2, 3, 4]}, mla_head(width=4 * HIDDEN)),
        "ids null": ({"eagle_config": {ids: None}}, mla_head()),
        "states stated": ({"num_aux_hidden_states": 4}, mla_head()),
        "target wider": ({"target_hidden_size": 80}, mla_head(width=240)),
        "target_hidden_size null": ({"target_hidden_size": None}, mla_head()),
        "no q_lora_rank": ({"q_lora_rank": None}, mla_head()),
        "q_lora_rank unstated": ({"q_lora_rank": ABSENT}, mla_head()),
        "two layers": ({"num_hidden_layers": 2}, mla_head()),
        "a Llama config": ({"model_type": "llama", "q_lora_rank": ABSENT, "v_head_dim": ABSENT}, mla_head()),
        "a Llama config with the sizes": ({"model_type": "llama"}, mla_head()),
        "six heads": ({"num_attention_heads": 6, "num_key_value_heads": 6}, mla_head()),
        "width indivisible": ({"hidden_size": 60}, mla_head()),
        "intermediate indivisible": ({"intermediate_size": 100}, mla_head()),
        "activation": ({"hidden_act": "gelu"}, mla_head()),
        "deepseek_v3": ({"model_type": "deepseek_v3"}, mla_head()),
        "vocabulary padded": (
            {"vocab_size": 250, "draft_vocab_size": 70},
            mla_head(shapes={"embed_tokens.weight": [250, 64], "lm_head.weight": [70, 64], "d2t": [70]}),
        ),
    }
    return {name: (read(mla_config(**changes)), tensors) for name, (changes, tensors) in changed.items()}


# ---- EAGLE-1 ----------------------------------------------------------------------------------------------------

EAGLE1 = {
    "LlamaForCausalLMEagle": "llama",
    "Qwen2ForCausalLMEagle": "qwen2",
    "MistralForCausalLMEagle": "mistral",
}
MISTRAL_NAMES = {
    "attention_norm": [HIDDEN],
    "attention.wq": [64, 64],
    "attention.wk": [32, 64],
    "attention.wv": [32, 64],
    "attention.wo": [64, 64],
    "ffn_norm": [HIDDEN],
    "feed_forward.w1": [128, 64],
    "feed_forward.w2": [64, 128],
    "feed_forward.w3": [128, 64],
}


def eagle1_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """The config of an EAGLE-1 head of this class, some keys changed."""
    own = {"architectures": [architecture], "model_type": EAGLE1[architecture], "draft_vocab_size": ABSENT}
    return raw_config(**{**own, **changes})


def eagle1_head(
    outer: str = "", *, layers: int = 1, first_norm: bool = False, extra: tuple[TensorInfo, ...] = ()
) -> list[TensorInfo]:
    """An EAGLE-1 head: joins one embedding and one hidden state, and the first layer has no norm before it."""
    tensors = [
        tensor(f"{outer}embed_tokens.weight", [VOCABULARY, HIDDEN]),
        tensor(f"{outer}fc.weight", [HIDDEN, 2 * HIDDEN]),
        tensor(f"{outer}fc.bias", [HIDDEN]),
    ]
    for layer in range(layers):
        names = [
            entry for entry in head(f"layers.{layer}.", width=HIDDEN) if f"layers.{layer}." in entry.name
        ]
        absent = (
            ("hidden_norm.weight",)
            if layer or first_norm
            else ("hidden_norm.weight", "input_layernorm.weight")
        )
        tensors += [
            tensor(outer + one.name, list(one.shape)) for one in names if not one.name.endswith(absent)
        ]
    return tensors + list(extra)


def eagle1(architecture: str) -> dict[str, Case]:
    """Names, shapes and config variants for one of EAGLE-1's classes."""
    qkv_biases = tuple(
        tensor(f"layers.0.self_attn.{part}_proj.bias", [rows])
        for part, rows in (("q", 64), ("k", 32), ("v", 32))
    )
    o_bias = (tensor("layers.0.self_attn.o_proj.bias", [HIDDEN]),)
    own_head = (tensor("lm_head.weight", [VOCABULARY, HIDDEN]),)
    fused = (
        tensor("layers.0.self_attn.qkv_proj.weight", [128, 64]),
        tensor("layers.0.mlp.gate_up_proj.weight", [256, 64]),
        tensor("layers.0.self_attn.qkv_proj.bias", [128]),
    )
    mistral = [tensor(f"layers.0.{name}.weight", shape) for name, shape in MISTRAL_NAMES.items()]
    changed: dict[str, tuple[dict[str, Any], list[TensorInfo]]] = {
        "its head": ({}, eagle1_head()),
        "with biases": ({}, eagle1_head(extra=(*qkv_biases, *o_bias))),
        "attention_bias": ({"attention_bias": True}, eagle1_head(extra=(*qkv_biases, *o_bias))),
        "below model.": ({}, eagle1_head("model.")),
        "with a head": ({}, eagle1_head(extra=own_head)),
        "with a head below model.": ({}, eagle1_head("model.", extra=own_head)),
        "tied": ({"tie_word_embeddings": True}, eagle1_head(extra=own_head)),
        "a norm too many": ({}, eagle1_head(first_norm=True)),
        "two layers": ({"num_hidden_layers": 2}, eagle1_head(layers=2)),
        "two layers shipped": ({}, eagle1_head(layers=2)),
        "already fused": ({}, [*eagle1_head(), *fused]),
        "odd names": ({}, eagle1_head(extra=(*ODD_NAMES, tensor("projector.x", [2]), tensor("vision_tower.x", [2])))),
        "an EAGLE-3 head": ({}, head()),
        "an EAGLE-3 head without fc": ({}, head(without=("fc.weight",))),
        "an EAGLE-3 head, layers.0": ({}, head("layers.0.", without=("fc.weight",), width=HIDDEN)),
        "an MLA head": ({}, mla_head("layers.0.", width=2 * HIDDEN)),
        "hot_vocab_size": ({"hot_vocab_size": DRAFT}, eagle1_head(extra=own_head)),
        "heads wider": ({"head_dim": 16}, eagle1_head()),
        "one key-value head": ({"num_key_value_heads": 1}, eagle1_head()),
        "activation": ({"hidden_act": "gelu"}, eagle1_head()),
        "intermediate indivisible": ({"intermediate_size": 100}, eagle1_head()),
        "width indivisible": ({"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 6}, eagle1_head()),
        "Mistral's names": ({}, [tensor("norm.weight", [HIDDEN]), tensor("eagle_linear.weight", [64, 128]), *mistral]),
        "Mistral's scales": (
            {},
            [tensor("eagle_linear.qscale_act", []), tensor("layers.0.attention.wq.qscale_weight", []),
             tensor("output.weight", [256, 64])],
        ),
        "Mistral's second layer": ({}, [tensor("layers.1.attention.wq.weight", [64, 64])]),
        "fc too wide": ({}, [tensor("fc.weight", [64, 192])]),
        "fc as one column": ({}, [tensor("fc.weight", [64, 1])]),
        "fc bias scalar": ({}, [tensor("fc.bias", [])]),
        "qkv bias too short": ({}, [tensor("layers.0.self_attn.q_proj.bias", [60])]),
        "nothing": ({}, []),
    }  # fmt: skip
    return {
        name: (read(eagle1_config(architecture, **changes)), tensors)
        for name, (changes, tensors) in changed.items()
    }


MLA_CASES: dict[str, Case] = {
    f"{group.__name__}: {name}": case
    for group in (mla_names, mla_shapes, mla_configs)
    for name, case in group().items()
}
EAGLE1_CASES: dict[str, dict[str, Case]] = {name: eagle1(name) for name in EAGLE1}
