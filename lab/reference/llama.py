"""A Llama in plain torch, over a batch of sequences of different lengths: layer, cache, target.

Shapes: B sequences, T tokens of each in this call, S cache slots, H hidden size. Everything is float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention, silu

from eagle3lab.errors import InputError

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu": gelu}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the arithmetic of a layer needs besides its weights.

    Attributes:
        heads: Attention heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        eps: Added to the mean square in each RMS norm.
        rope_base: Base of the rotary embedding.
        rope_factor: Positions are divided by it (RoPE scaling of type "linear").
        activation: Of the feed-forward layer: "silu" or "gelu".
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_base: float = 10000.0
    rope_factor: float = 1.0
    activation: str = "silu"

    @property
    def projections(self) -> list[int]:
        """Rows of queries, keys and values in the one matrix that engines keep them in."""
        return [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]

    def normed(self, rows: Tensor, weight: Tensor) -> Tensor:
        """RMS norm over the last dimension."""
        return rms_norm(rows, weight.shape, weight, self.eps)

    def rotated(self, rows: Tensor, positions: Tensor) -> Tensor:
        """`[B, heads, T, head_dim]` turned by `positions` `[B, T]`; the halves of a head form the pairs."""
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        angles = positions[:, None, :, None] / self.rope_factor * self.rope_base**-steps
        low, high = rows.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tokens of a call stand.

    Attributes:
        slots: `[B, T]` int64, where their keys and values go.
        positions: `[B, T]` int64, what the rotary embedding turns them by.
        seen: `[B, T, S]` bool, the slots that each may attend to, its own included; or float32, what is added to the
            scores.
    """

    slots: Tensor
    positions: Tensor
    seen: Tensor

    @classmethod
    def after(cls, lengths: Tensor, width: int, first_position: int = 0) -> Self:
        """`width` tokens behind the `lengths` `[B]` tokens of each sequence, one slot a token."""
        slots = lengths[:, None] + torch.arange(width)
        seen = torch.arange(int(slots.max()) + 1) <= slots[:, :, None]
        return cls(slots, slots + first_position, seen)

    def doubled(self, counts: Tensor) -> Self:
        """The same, but what stands before the end of each sequence is seen by all, the new tokens a second time.

        Args:
            counts: `[B]`, how many of the new tokens are valid.
        """
        slots = torch.arange(self.seen.shape[-1])
        cached = (slots < (self.slots[:, 0] + counts)[:, None])[:, None, :]
        again = self.seen & (slots >= self.slots[:, :1])[:, None, :]
        times = cached.to(torch.float32) + again.to(torch.float32)
        return replace(self, seen=times.log())


class Cache:
    """Keys and values of one layer, `[B, kv_heads, S, head_dim]`; a slot counts only where a mask says so."""

    def __init__(self, batch: int, slots: int, shape: Shape) -> None:
        self.keys = torch.zeros(batch, shape.kv_heads, slots, shape.head_dim)
        self.values = torch.zeros_like(self.keys)

    def keep(self, rows: Tensor) -> None:
        """Go on with these sequences only."""
        self.keys, self.values = self.keys[rows], self.values[rows]

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy the entries at slots `source` `[B, T]` to the slots `to` `[B, T]`."""
        for entries in (self.keys, self.values):
            entries.scatter_(2, self._index(to), entries.gather(2, self._index(source)))

    def extended(self, keys: Tensor, values: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Put new entries in, and return all that a mask of this width speaks of."""
        index, width = self._index(place.slots), place.seen.shape[-1]
        self.keys.scatter_(2, index, keys)
        self.values.scatter_(2, index, values)
        return self.keys[:, :, :width], self.values[:, :, :width]

    def _index(self, slots: Tensor) -> Tensor:
        return slots[:, None, :, None].expand(-1, self.keys.shape[1], -1, self.keys.shape[3])


def attention(
    weights: Mapping[str, Tensor], inner: Tensor, shape: Shape, place: Place, cache: Cache
) -> Tensor:
    """What attention adds to the residual; `inner` `[B, T, width]` is what q, k and v are made from."""
    parts = linear(inner, weights["self_attn.qkv_proj.weight"]).split(shape.projections, dim=-1)
    query, key, value = (part.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2) for part in parts)
    query, key = shape.rotated(query, place.positions), shape.rotated(key, place.positions)
    keys, values = cache.extended(key, value, place)
    return attended(weights, query, keys, values, place.seen)


def attended(
    weights: Mapping[str, Tensor], query: Tensor, keys: Tensor, values: Tensor, seen: Tensor
) -> Tensor:
    """What comes out of attention and its output projection, `[B, T, H]`.

    Args:
        weights: Of the layer.
        query: `[B, heads, T, head_dim]`.
        keys: `[B, kv_heads, S, head_dim]`.
        values: The same.
        seen: As `Place.seen`.
    """
    mixed = scaled_dot_product_attention(query, keys, values, attn_mask=seen[:, None], enable_gqa=True)
    output = mixed.transpose(1, 2).flatten(2)
    return linear(output, weights["self_attn.o_proj.weight"], weights.get("self_attn.o_proj.bias"))


def feed_forward(weights: Mapping[str, Tensor], hidden: Tensor, shape: Shape) -> Tensor:
    """What the feed-forward layer adds to the residual `hidden` `[B, T, H]`."""
    inner = shape.normed(hidden, weights["post_attention_layernorm.weight"])
    gate, up = linear(inner, weights["mlp.gate_up_proj.weight"]).chunk(2, dim=-1)
    return linear(_ACTIVATIONS[shape.activation](gate) * up, weights["mlp.down_proj.weight"])


@dataclass(frozen=True, slots=True)
class Target:
    """A Llama target.

    Attributes:
        shape: Of its layers.
        layers: The weights of each layer, q, k, v and gate, up fused as engines fuse them.
        embedding: `[V, H]`.
        norm: `[H]`.
        lm_head: `[V, H]`.
        config: Its config.json.
    """

    shape: Shape
    layers: tuple[Mapping[str, Tensor], ...]
    embedding: Tensor
    norm: Tensor
    lm_head: Tensor
    config: Mapping[str, Any]

    def caches(self, batch: int, slots: int) -> list[Cache]:
        """An empty cache for each layer."""
        return [Cache(batch, slots, self.shape) for _ in self.layers]

    def forward(
        self, tokens: Tensor, place: Place, caches: Sequence[Cache], capture: tuple[int, ...] | None
    ) -> tuple[Tensor, Tensor]:
        """Greedy next tokens `[B, T]` and what a drafter is given `[B, T, k × H]`.

        Args:
            tokens: `[B, T]` int64.
            place: Where they stand.
            caches: One a layer.
            capture: Layers whose input is handed over, in the order of the layers however they are listed; None for
                the one state behind the final norm.
        """
        hidden, states = self.embedding[tokens], []
        for number, (weights, cache) in enumerate(zip(self.layers, caches, strict=True)):
            if capture is not None and number in capture:
                states.append(hidden)
            inner = self.shape.normed(hidden, weights["input_layernorm.weight"])
            hidden = hidden + attention(weights, inner, self.shape, place, cache)
            hidden = hidden + feed_forward(weights, hidden, self.shape)
        last = self.shape.normed(hidden, self.norm)
        following = linear(last, self.lm_head).argmax(-1)
        return following, last if capture is None else torch.cat([*states, hidden[..., :0]], dim=-1)


def load_reference_target(folder: Path) -> Target:
    """The Llama target in `folder` (`config.json`, `model.safetensors`), computed in float32.

    Raises:
        InputError: A file or tensor is missing, or it is no Llama of the plain kind.
    """
    from safetensors.torch import load_file

    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    for path in (config_path, weights_path):
        if not path.is_file():
            raise InputError("no such file", path=path, advice="Give the folder of a small Llama target.")
    config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    if config.get("model_type") != "llama" or rope.get("rope_type", "default") != "default":
        raise InputError("the reference computes plain Llama targets only", path=config_path)
    tensors = {name: tensor.to(torch.float32) for name, tensor in load_file(weights_path).items()}
    shape = Shape(
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        config["rms_norm_eps"],
        float(rope["rope_theta"]),
    )

    def fused(layer: int, part: str, names: str) -> Tensor:
        return torch.cat(
            [tensors[f"model.layers.{layer}.{part}.{name}_proj.weight"] for name in names.split()]
        )

    def layer_weights(layer: int) -> dict[str, Tensor]:
        plain = ("input_layernorm", "post_attention_layernorm", "self_attn.o_proj", "mlp.down_proj")
        return {
            "self_attn.qkv_proj.weight": fused(layer, "self_attn", "q k v"),
            "mlp.gate_up_proj.weight": fused(layer, "mlp", "gate up"),
        } | {f"{name}.weight": tensors[f"model.layers.{layer}.{name}.weight"] for name in plain}

    try:
        return Target(
            shape,
            tuple(layer_weights(layer) for layer in range(config["num_hidden_layers"])),
            tensors["model.embed_tokens.weight"],
            tensors["model.norm.weight"],
            tensors["lm_head.weight"],
            config,
        )
    except KeyError as error:
        raise InputError(
            "the target lacks this tensor", path=weights_path, tensor=str(error.args[0])
        ) from None
