"""An EAGLE-3 drafter read straight from its folder and computed in plain torch, with SGLang's semantics.

What SGLang's Llama drafter does, in a few lines that can be read at one sitting: the layer takes
`[norm(embedding), norm(hidden)]`, adds to the *un-normed* hidden state, `fc` runs only when the incoming
width is not the drafter's own, logits come from after the final norm and the recurrent hidden state from
before it, and a draft id becomes a target id by adding its `d2t` offset. The embedding is the target's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.errors import InputError

if TYPE_CHECKING:
    import torch

#: Names of the one decoder layer's tensors: speculators' prefix and that of SpecForge and SGLang.
LAYER_PREFIXES = ("layers.0.", "midlayer.")
LAYER_TENSORS = (
    "input_layernorm.weight",
    "hidden_norm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)


@dataclass(slots=True)
class DrafterCache:
    """Keys and values of one sequence, `[kv_heads, tokens, head_dim]` float32; None at first."""

    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens held."""
        return 0 if self.keys is None else int(self.keys.shape[1])

    def cut(self, length: int) -> None:
        """Forget everything from token `length` on."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :length], self.values[:, :length]


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter's float32 weights and the values of its configuration that its forward pass needs.

    Attributes:
        layer: The ten tensors of `LAYER_TENSORS`, without their prefix.
        fc: `[H, k × Ht]`.
        norm: `[H]`.
        lm_head: `[D, H]`.
        embedding: `[V, H]`, the target's.
        token_ids: `[D]` int64, the target id of every draft id: index + d2t.
        aux_layers: Target layers whose *input* is an auxiliary hidden state.
        heads: Attention heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        rope_theta: Base of the rotary embedding.
        eps: Added to the variance in each RMS norm.
    """

    layer: Mapping[str, torch.Tensor]
    fc: torch.Tensor
    norm: torch.Tensor
    lm_head: torch.Tensor
    embedding: torch.Tensor
    token_ids: torch.Tensor
    aux_layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float
    _inverse: torch.Tensor = field(repr=False)

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, cache: DrafterCache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the drafter over `T` more tokens of one sequence, and put their keys and values into `cache`.

        Args:
            tokens: `[T]` int64 target ids; the token *after* the one its hidden state belongs to.
            states: `[T, k × Ht]` auxiliary states of the target, or `[T, H]` hidden states of the drafter.
            cache: What came before; `tokens` follow it.

        Returns:
            Logits `[T, D]` over the draft vocabulary and recurrent hidden states `[T, H]`, both float32.
        """
        import torch
        from torch.nn.functional import linear, scaled_dot_product_attention, silu

        width, layer = self.embedding.shape[1], self.layer
        hidden = linear(states, self.fc) if states.shape[-1] != width else states
        embedded = self._normed(self.embedding[tokens], layer["input_layernorm.weight"])
        both = torch.cat([embedded, self._normed(hidden, layer["hidden_norm.weight"])], dim=-1)
        first, count = cache.length, len(tokens)
        query = self._heads(linear(both, layer["self_attn.q_proj.weight"]), self.heads)
        key = self._heads(linear(both, layer["self_attn.k_proj.weight"]), self.kv_heads)
        value = self._heads(linear(both, layer["self_attn.v_proj.weight"]), self.kv_heads)
        query, key = self._rotated(query, first), self._rotated(key, first)
        if cache.keys is not None and cache.values is not None:
            key, value = torch.cat([cache.keys, key], dim=1), torch.cat([cache.values, value], dim=1)
        cache.keys, cache.values = key, value
        seen = torch.ones(count, first + count, dtype=torch.bool).tril(first)
        mixed = scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen, enable_gqa=True
        )[0]
        hidden = hidden + linear(mixed.transpose(0, 1).flatten(1), layer["self_attn.o_proj.weight"])
        inner = self._normed(hidden, layer["post_attention_layernorm.weight"])
        gate, up = linear(inner, layer["mlp.gate_proj.weight"]), linear(inner, layer["mlp.up_proj.weight"])
        hidden = hidden + linear(silu(gate) * up, layer["mlp.down_proj.weight"])
        return linear(self._normed(hidden, self.norm), self.lm_head), hidden

    def _heads(self, rows: torch.Tensor, heads: int) -> torch.Tensor:
        return rows.unflatten(-1, (heads, self.head_dim)).transpose(0, 1)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.rms_norm(rows, weight.shape, weight, self.eps)

    def _rotated(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        """`[heads, T, head_dim]` turned by its positions `first …`; the halves of a head form the pairs."""
        import torch

        positions = torch.arange(first, first + rows.shape[1], dtype=torch.float32)
        angles = positions[:, None] * self._inverse
        low, high = rows.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def load_drafter(folder: Path, embedding: torch.Tensor, *, drop: frozenset[str] = frozenset()) -> Drafter:
    """The drafter in `folder` (`config.json` and `model.safetensors`), its weights in float32.

    Args:
        folder: A checkpoint in speculators' dialect or a flat Hugging Face one, `layers.0.*` or `midlayer.*`.
        embedding: The target's `[V, H]` embedding; engines put it in the drafter's place.
        drop: Tensors, named without a layer prefix, that are treated as an engine treats one that never
            reached its parameter: a norm stays at ones, a matrix is taken as zeros, a missing `d2t` adds
            nothing.

    Raises:
        InputError: A file is missing, or a tensor that is not in `drop`.
    """
    import torch
    from safetensors.torch import load_file

    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    for path in (config_path, weights_path):
        if not path.is_file():
            raise InputError("no such file", path=path, advice="Give the folder of a drafter checkpoint.")
    config = json.loads(config_path.read_text(encoding="utf-8"))
    tensors = {_plain(name): tensor for name, tensor in load_file(weights_path).items()}

    def take(name: str) -> torch.Tensor:
        if name not in tensors:
            raise InputError(
                "the drafter lacks this tensor",
                path=weights_path,
                tensor=name,
                advice="It cannot draft without.",
            )
        tensor = tensors[name].to(torch.float32)
        if name not in drop:
            return tensor
        return torch.ones_like(tensor) if tensor.ndim == 1 else torch.zeros_like(tensor)

    lm_head = take("lm_head.weight")
    offsets = tensors.get("d2t") if "d2t" not in drop else None
    draft_ids = torch.arange(len(lm_head))
    shape = config.get("transformer_layer_config", config)
    head_dim = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    theta = float((shape.get("rope_parameters") or {}).get("rope_theta") or shape.get("rope_theta", 10000.0))
    return Drafter(
        layer={name: take(name) for name in LAYER_TENSORS},
        fc=take("fc.weight"),
        norm=take("norm.weight"),
        lm_head=lm_head,
        embedding=embedding.to(torch.float32),
        token_ids=draft_ids if offsets is None else draft_ids + offsets,
        aux_layers=_aux_layers(config),
        heads=shape["num_attention_heads"],
        kv_heads=shape["num_key_value_heads"],
        head_dim=head_dim,
        rope_theta=theta,
        eps=shape["rms_norm_eps"],
        _inverse=theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim),
    )


def _plain(name: str) -> str:
    for prefix in LAYER_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _aux_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Target layers whose input is wanted; nested ids mean a layer's output, top-level ids its input."""
    nested = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if nested:
        return tuple(index + 1 for index in nested)
    return tuple(config.get("eagle_aux_hidden_state_layer_ids") or ())
