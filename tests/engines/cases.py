"""The cases on which simulated and real load must agree: names, dtypes, shapes and configs, good and bad."""

from __future__ import annotations

from typing import Any

from eagle3lab.checkpoint import DrafterConfig, TensorInfo
from tests.engines.drafters import ABSENT, DRAFT, HIDDEN, VOCABULARY, config, head, read, tensor

Case = tuple[DrafterConfig, list[TensorInfo]]

M = "midlayer."
QKV, GATE_UP = M + "self_attn.qkv_proj.weight", M + "mlp.gate_up_proj.weight"
QKV_PARTS = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
GATE_UP_PARTS = ("gate_proj.weight", "up_proj.weight")
ODD_NAMES = (
    tensor("verifier_norm.weight", [HIDDEN]),
    tensor("mask_hidden", [1, HIDDEN]),
    tensor("rotary_emb.inv_freq", [4], "F32"),
    tensor("my_d2t_backup.weight", [DRAFT, 4]),
    tensor("at2d", [3], "F32"),
    tensor("", [2]),
    tensor("model.", [2]),
    tensor("model.model.norm.weight", [HIDDEN]),
    tensor("norm.weight.q_proj.weight", [HIDDEN]),
    tensor("midlayer.self_attn.q_proj.k_proj.weight", [64, 128]),
)
AUX_NORMS = tuple(tensor(f"aux_norm_{place}.weight", [HIDDEN]) for place in ("low", "mid", "high"))
FC_NORMS = tuple(tensor(f"fc_norm.{at}.weight", [HIDDEN]) for at in range(4))
INPUT_NORM = (tensor("input_norm.weight", [3 * HIDDEN]),)
BIASES = (
    tensor(f"{M}self_attn.q_proj.bias", [64]),
    tensor(f"{M}self_attn.k_proj.bias", [32]),
    tensor(f"{M}self_attn.v_proj.bias", [32]),
    tensor(f"{M}self_attn.o_proj.bias", [HIDDEN]),
    tensor("fc.bias", [HIDDEN]),
    tensor(f"{M}mlp.gate_proj.bias", [128]),
)
QK_NORMS = tuple(tensor(f"{M}self_attn.{name}_norm.weight", [8]) for name in "qk")


def names() -> dict[str, Case]:
    """Name families and odd names, under one config."""
    families = {
        "midlayer": head(),
        "layers.0": head("layers.0."),
        "model.layers.0": head("layers.0.", "model."),
        "model.midlayer": head("midlayer.", "model."),
        "midlayer.0": head("midlayer.0."),
        "module": head(outer="module."),
        "draft_model": head(outer="draft_model."),
        "layers.0 below module": head("layers.0.", "module."),
        "layers.1": head("layers.1."),
        "both names, old first": [*head(), *head("layers.0.")],
        "both names, new first": [*head("layers.0."), *head()],
        "with and without model.": [*head(), *head(outer="model.")],
        "mixed": [*head(without=("mlp.up_proj.weight", "fc.weight")), tensor("layers.0.mlp.up_proj.weight", [128, 64])],
        "odd names": head(extra=ODD_NAMES),
        "q and k norms": head(extra=QK_NORMS),
        "biases": head(extra=BIASES),
        "fc_norm unasked": head(extra=FC_NORMS),
        "aux norms unasked": head(extra=AUX_NORMS),
        "input_norm unasked": head(extra=INPUT_NORM),
        "two layers": [*head("layers.0."), *head("layers.1.", width=HIDDEN)],
        "missing fc and up": head(without=("fc.weight", "up_proj.weight")),
        "missing k and v": head(without=("k_proj.weight", "v_proj.weight")),
        "no head, no d2t": head(without=("lm_head.weight", "d2t", "t2d", "embed_tokens.weight")),
        "qkv already fused": head(without=QKV_PARTS, extra=(tensor(QKV, [128, 128]),)),
        "gate and up already fused": head(without=GATE_UP_PARTS, extra=(tensor(GATE_UP, [256, 64]),)),
        "nothing": [],
    }  # fmt: skip
    return {name: (config(), tensors) for name, tensors in families.items()}


def dtypes() -> dict[str, Case]:
    """Dtypes of the weights and of d2t."""
    cases = {dtype: head(dtype=dtype) for dtype in ("F16", "F32", "F64", "F8_E4M3", "I32", "U8")}
    for dtype in ("I32", "BF16", "F32", "BOOL", "F8_E5M2", "U16"):
        cases[f"d2t {dtype}"] = [tensor("d2t", [DRAFT], dtype), *head(without=("d2t",))]
    return {name: (config(), tensors) for name, tensors in cases.items()}


def shapes() -> dict[str, Case]:
    """Right and wrong shapes, one tensor at a time; what comes after a refused one is not reached."""
    changes: dict[str, list[list[int]]] = {
        "q_proj.weight": [[80, 128], [40, 128], [64, 64], [128, 64], [64], [], [64, 1], [64, 128, 1], [0, 128]],
        "k_proj.weight": [[64, 128], [40, 128], [8, 128], [24, 128]],
        "v_proj.weight": [[48, 128], [32, 129]],
        "gate_proj.weight": [[200, 64], [100, 64], [60, 64], [1, 64], [0, 64], [64, 128], [128], [], [128, 1]],
        "up_proj.weight": [[96, 64], [128, 65]],
        "down_proj.weight": [[64, 130], [64, 70], [64, 1], [64, 0], [128, 64], [64], []],
        "o_proj.weight": [[64, 40], [64, 100], [32, 64], [64], [64, 64, 1]],
        "fc.weight": [[64, 128], [64, 256], [192, 64], [64, 192, 1], []],
        "midlayer.hidden_norm.weight": [[63], [1], [], [1, 64], [64, 1]],
        "norm.weight": [[65]],
        "lm_head.weight": [[99, 64], [256, 64], [128, 64], [100, 32], [100, 1], [100], [], [100, 64, 1], [100, 1, 64]],
        "embed_tokens.weight": [[255, 64], [320, 64], [256, 1], [256]],
        "d2t": [[99], [100, 1], [2, 100], [100, 100], [], [0], [1, 100]],
        "t2d": [[], [3, 3]],
    }  # fmt: skip
    cases: dict[str, Case] = {}
    for end, wrong in changes.items():
        for shape in wrong:
            cases[f"{end} {shape}"] = (config(), head(shapes={end: shape}))
    for name, fused in (
        (QKV, [[150, 128], [100, 128], [60, 128], [128, 64], [128], []]),
        (GATE_UP, [[300, 64], [130, 64], []]),
    ):
        for shape in fused:
            cases[f"{name} {shape}"] = (config(), [*head(), tensor(name, shape)])  # fmt: skip
    return cases


def configs() -> dict[str, Case]:
    """Config variants, each with a head that fits it or does not."""
    ids = "eagle_aux_hidden_state_layer_ids"
    changed: dict[str, tuple[dict[str, Any], list[TensorInfo]]] = {
        "tied": ({"tie_word_embeddings": True}, head()),
        "tied, no draft_vocab_size": ({"tie_word_embeddings": True, "draft_vocab_size": ABSENT}, head()),
        "draft_vocab_size null": ({"draft_vocab_size": None}, head(shapes={"lm_head.weight": [256, 64]})),
        "draft_vocab_size null, no head": ({"draft_vocab_size": None}, head(without=("lm_head.weight",))),
        "draft_vocab_size absent": ({"draft_vocab_size": ABSENT}, head()),
        "target wider": ({"target_hidden_size": 80}, head(target=80)),
        "target wider, fc for the drafter": ({"target_hidden_size": 80}, head()),
        "target_hidden_size null": ({"target_hidden_size": None}, head()),
        "attention_bias": ({"attention_bias": True}, head(extra=BIASES)),
        "attention_bias, none shipped": ({"attention_bias": True}, head()),
        "bias": ({"bias": True}, head(extra=BIASES)),
        "o bias too long": (
            {"attention_bias": True},
            head(extra=(tensor(M + "self_attn.o_proj.bias", [65]),)),
        ),
        "o bias scalar": ({"attention_bias": True}, head(extra=(tensor(M + "self_attn.o_proj.bias", []),))),
        "two ids": ({"eagle_config": {ids: [1, 2]}}, head(states=2)),
        "four ids": ({"eagle_config": {ids: [1, 2, 3, 4]}}, head(states=4)),
        "no ids": ({"eagle_config": {ids: []}}, head()),
        "ids at the top": ({ids: [1, 2]}, head(states=2)),
        "four states stated": ({"num_aux_hidden_states": 4, "eagle_config": {ids: [1, 2]}}, head(states=4)),
        "eagle_config null": ({"eagle_config": None}, head()),
        "norm_before_fc": ({"norm_before_fc": True}, head(extra=INPUT_NORM)),
        "norm_before_fc, none shipped": ({"eagle_config": {"norm_before_fc": True}}, head()),
        "norm_before_fc contradicted": (
            {"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}},
            head(extra=INPUT_NORM),
        ),
        "fc_norm": ({"fc_norm": True}, head(extra=FC_NORMS)),
        "use_aux_norm": ({"use_aux_norm": True}, head(extra=AUX_NORMS)),
        "two layers": ({"num_hidden_layers": 2}, [*head("layers.0."), *head("layers.1.", width=HIDDEN)]),
        "two layers, one shipped": ({"num_hidden_layers": 2}, head()),
        "key-value heads unstated": ({"num_key_value_heads": ABSENT}, head(kv_heads=8)),
        "key-value heads null": ({"num_key_value_heads": None}, head(kv_heads=8)),
        "two key-value heads": ({"num_key_value_heads": 2}, head(kv_heads=2)),
        "one key-value head": ({"num_key_value_heads": 1}, head(kv_heads=1)),
        "three key-value heads": ({"num_key_value_heads": 3}, head(kv_heads=3)),
        "heads wider": ({"head_dim": 16}, head(head_dim=16)),
        "heads wider, unstated": ({}, head(head_dim=16)),
        "intermediate indivisible": ({"intermediate_size": 100}, head(intermediate=100)),
        "activation": ({"hidden_act": "gelu"}, head()),
        "vocabulary padded": (
            {"vocab_size": 250, "draft_vocab_size": 70},
            head(shapes={"embed_tokens.weight": [250, 64], "lm_head.weight": [70, 64], "d2t": [70]}),
        ),
        "vocabulary on some ranks only": (
            {"vocab_size": 130, "draft_vocab_size": 10},
            head(shapes={"embed_tokens.weight": [130, 64], "lm_head.weight": [10, 64], "d2t": [10]}),
        ),
        "llama4_text": (
            {"model_type": "llama4_text", "intermediate_size_mlp": 96, "head_dim": 8},
            head(intermediate=96),
        ),
        "llama4_text, size unstated": ({"model_type": "llama4_text", "head_dim": 8}, head()),
        "llama4_text, other size indivisible": (
            {
                "model_type": "llama4_text",
                "intermediate_size_mlp": 96,
                "intermediate_size": 100,
                "head_dim": 8,
            },
            head(intermediate=96),
        ),
        "qwen3": ({"model_type": "qwen3", "head_dim": 8}, head(extra=QK_NORMS)),
        "qwen3, head_dim unstated": ({"model_type": "qwen3"}, head(head_dim=128)),
        "qwen2": ({"model_type": "qwen2"}, head()),
        "mistral": ({"model_type": "mistral"}, head()),
        "model_type absent": ({"model_type": ABSENT}, head()),
        "architecture unknown": ({"architectures": ["Eagle3Speculator"]}, head()),
    }
    cases = {name: (config(**changes), tensors) for name, (changes, tensors) in changed.items()}
    cases["speculators"] = (read(SPECULATORS), head("layers.0."))
    cases["speculators, norms"] = (
        read({**SPECULATORS, "norm_before_fc": True, "fc_norm": True}),
        head("layers.0.", extra=(*INPUT_NORM, *FC_NORMS)),
    )
    return cases


SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "draft_vocab_size": DRAFT,
    "norm_before_residual": False,
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": VOCABULARY,
    },
}

ALL: dict[str, Case] = {
    f"{group.__name__}: {name}": case
    for group in (names, dtypes, shapes, configs)
    for name, case in group().items()
}
