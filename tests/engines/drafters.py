"""Small drafters, as configs and tensor headers: what the simulator and the real loader both start from."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint import DrafterConfig, TensorInfo
from eagle3lab.checkpoint.config import parse_config
from eagle3lab.checkpoint.tensors import DTYPE_BITS

ABSENT = object()
INSTALLED = ("sglang==0.5.9", "sglang==0.5.23")
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCABULARY, DRAFT = 64, 128, 8, 4, 256, 100

FLAT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT,
}


def raw_config(**changes: Any) -> dict[str, Any]:
    """The flat config with some keys changed; ABSENT takes one out."""
    return stated({**FLAT, **changes})


def stated(raw: dict[str, Any]) -> dict[str, Any]:
    """A config without what is ABSENT in it."""
    return {key: value for key, value in raw.items() if value is not ABSENT}


def config(**changes: Any) -> DrafterConfig:
    """The same, read."""
    return read(raw_config(**changes))


def read(raw: dict[str, Any]) -> DrafterConfig:
    """Any config.json, read."""
    return parse_config(raw, json.dumps(raw), Path("config.json"))


def tensor(name: str, shape: list[int], dtype: str = "BF16") -> TensorInfo:
    """A tensor's header."""
    return TensorInfo(name, dtype, tuple(shape), prod(shape) * DTYPE_BITS[dtype] // 8, "model.safetensors", 0)


def head(
    layer: str = "midlayer.",
    outer: str = "",
    *,
    dtype: str = "BF16",
    head_dim: int = 8,
    kv_heads: int = KV_HEADS,
    width: int = 2 * HIDDEN,
    states: int = 3,
    target: int = HIDDEN,
    intermediate: int = INTERMEDIATE,
    without: tuple[str, ...] = (),
    shapes: dict[str, list[int]] | None = None,
    extra: tuple[TensorInfo, ...] = (),
) -> list[TensorInfo]:
    """A whole head: `layer` before the decoder layer's names, `outer` before all.

    `without` leaves tensors out by the end of their names, `shapes` changes their shapes likewise.
    """
    names = {
        "d2t": ([DRAFT], "I64"),
        "embed_tokens.weight": ([VOCABULARY, HIDDEN], dtype),
        "fc.weight": ([HIDDEN, states * target], dtype),
        "lm_head.weight": ([DRAFT, HIDDEN], dtype),
        f"{layer}hidden_norm.weight": ([HIDDEN], dtype),
        f"{layer}input_layernorm.weight": ([HIDDEN], dtype),
        f"{layer}mlp.down_proj.weight": ([HIDDEN, intermediate], dtype),
        f"{layer}mlp.gate_proj.weight": ([intermediate, HIDDEN], dtype),
        f"{layer}mlp.up_proj.weight": ([intermediate, HIDDEN], dtype),
        f"{layer}post_attention_layernorm.weight": ([HIDDEN], dtype),
        f"{layer}self_attn.k_proj.weight": ([kv_heads * head_dim, width], dtype),
        f"{layer}self_attn.o_proj.weight": ([HIDDEN, HEADS * head_dim], dtype),
        f"{layer}self_attn.q_proj.weight": ([HEADS * head_dim, width], dtype),
        f"{layer}self_attn.v_proj.weight": ([kv_heads * head_dim, width], dtype),
        "norm.weight": ([HIDDEN], dtype),
        "t2d": ([VOCABULARY], "BOOL"),
    }
    return [*shipped(names, outer, without, shapes), *extra]


def shipped(
    names: dict[str, tuple[list[int], str]],
    outer: str,
    without: tuple[str, ...],
    shapes: dict[str, list[int]] | None,
) -> list[TensorInfo]:
    """The headers of tensors with these names, shapes and dtypes; the rest as for `head`."""
    tensors = []
    for name, (shape, dtype) in names.items():
        if without and name.endswith(without):
            continue
        changed = [new for end, new in (shapes or {}).items() if name.endswith(end)]
        tensors.append(tensor(outer + name, changed[0] if changed else shape, dtype))
    return tensors


def write_checkpoint(folder: Path, raw: dict[str, Any], tensors: list[TensorInfo]) -> Path:
    """A folder with this config and these tensors, all zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    header, at = {}, 0
    for entry in tensors:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.nbytes],
        }
        at += entry.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return folder
