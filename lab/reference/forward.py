"""One forward pass of an EAGLE-3 head, stage by stage, and that of the Llama it drafts for, in plain torch.

Shapes: B sequences, T tokens of each in this call, S cache slots, H hidden size, V target and D draft vocabulary.
Everything is float32. What trainers and engines do differently is in `Wiring`.
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

Values = Mapping[str, Tensor]
"""What is computed at each stage, by its name, in the order in which it is computed."""
Stage = Callable[[str, Tensor], Tensor]
"""Given the name of a stage and what was computed there; returns what the next stages go on with."""

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu": gelu}


class EngineStops(Exception):
    """The engine would stop here: while loading, or at the first request.

    Attributes:
        exception: Type of the engine's exception.
    """

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(f"{exception}: {message}" if message else exception)
        self.exception = exception


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

    def normed(self, rows: Tensor, weight: Tensor) -> Tensor:
        """RMS norm over the last dimension."""
        return rms_norm(rows, weight.shape, weight, self.eps)

    def by_head(self, rows: Tensor) -> Tensor:
        """`[B, T, heads × head_dim]` as `[B, T, heads, head_dim]`."""
        return rows.unflatten(-1, (-1, self.head_dim))

    def rotated(self, rows: Tensor, positions: Tensor) -> Tensor:
        """`[B, T, heads, head_dim]` turned by `positions` `[B, T]`; the halves of a head form the pairs."""
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        angles = (
            positions[:, :, None, None] / self.rope_factor * self.rope_base**-steps
        )  # [B, T, 1, head_dim / 2]
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
        """The tokens where they stand, all of them in sight of all, and those in order counted a second time.

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
        """Put new entries `[B, T, kv_heads, head_dim]` in, and return all that a mask of this width covers."""
        index, width = self._index(place.slots), place.seen.shape[-1]
        self.keys.scatter_(2, index, keys.transpose(1, 2))
        self.values.scatter_(2, index, values.transpose(1, 2))
        return self.keys[:, :, :width], self.values[:, :, :width]

    def _index(self, slots: Tensor) -> Tensor:
        return slots[:, None, :, None].expand(-1, self.keys.shape[1], -1, self.keys.shape[3])


def _go_on(name: str, value: Tensor) -> Tensor:
    return value


def attention(
    weights: Values, inner: Tensor, shape: Shape, place: Place, cache: Cache, stage: Stage = _go_on
) -> Tensor:
    """What attention adds to the residual, `[B, T, H]`; `inner` `[B, T, width]` is what q, k and v are made from."""
    rows = [count * shape.head_dim for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
    query, key, value = linear(inner, weights["self_attn.qkv_proj.weight"]).split(rows, dim=-1)
    query, key, value = stage("queries", query), stage("keys", key), stage("values", value)
    positions = stage("positions", place.positions)  # [B, T]
    query = stage(
        "rotated queries", shape.rotated(shape.by_head(query), positions)
    )  # [B, T, heads, head_dim]
    key = stage("rotated keys", shape.rotated(shape.by_head(key), positions))  # [B, T, kv_heads, head_dim]
    keys, values = cache.extended(key, shape.by_head(value), place)  # [B, kv_heads, S, head_dim]
    mixed = scaled_dot_product_attention(
        query.transpose(1, 2), keys, values, attn_mask=place.seen[:, None], enable_gqa=True
    )  # [B, heads, T, head_dim]
    projection, bias = weights["self_attn.o_proj.weight"], weights.get("self_attn.o_proj.bias")
    return stage("attention", linear(mixed.transpose(1, 2).flatten(2), projection, bias))


def feed_forward(weights: Values, hidden: Tensor, shape: Shape) -> Tensor:
    """What the feed-forward layer adds to the residual `hidden` `[B, T, H]`."""
    inner = shape.normed(hidden, weights["post_attention_layernorm.weight"])
    gate, up = linear(inner, weights["mlp.gate_up_proj.weight"]).chunk(2, dim=-1)
    return linear(_ACTIVATIONS[shape.activation](gate) * up, weights["mlp.down_proj.weight"])


@dataclass(frozen=True, slots=True)
class Wiring:
    """What trainers and engines do differently.

    Attributes:
        capture: Target layers whose input is handed to the drafter; None for the single state behind the target's
            final norm, as under `--speculative-algorithm EAGLE` or with `use_aux_hidden_state` false.
        fc_by_width: Whether fc runs wherever the incoming width is not the embedding's (SGLang); otherwise it runs on
            the target's states and never on the drafter's own (trainers).
        residual_normed: Whether the residual is taken behind hidden_norm (`norm_before_residual`) or before it.
        recurrence_normed: Whether the drafter is fed its hidden state from behind the final norm (`norm_output`).
        first_position: Rotary position of the first pair of token and state.
        position_gap: Added to the rotary positions of the drafter's own steps.
        accepted_twice: Whether attention over the accepted tokens counts them twice, once in their order and once with
            all of them in sight of all.
    """

    capture: tuple[int, ...] | None
    fc_by_width: bool = True
    residual_normed: bool = False
    recurrence_normed: bool = False
    first_position: int = 0
    position_gap: int = 0
    accepted_twice: bool = False


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter as an engine or its trainer holds it.

    Attributes:
        weights: By the names of SGLang's class without `model.`, the layers as `layers.<i>.`; no head, no embedding.
        embedding: `[V, H]`.
        lm_head: `[D, H]`.
        token_ids: `[D]`, the target id of every draft id; None where drafts are target ids.
        shape: Of its layers.
        wiring: The choices.
        layers: Decoder layers.
        vocabulary: Target ids that exist.
    """

    weights: Values
    embedding: Tensor
    lm_head: Tensor
    token_ids: Tensor | None
    shape: Shape
    wiring: Wiring
    layers: int
    vocabulary: int

    def caches(self, batch: int, slots: int) -> list[Cache]:
        """An empty cache for each layer."""
        return [Cache(batch, slots, self.shape) for _ in range(self.layers)]

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        place: Place,
        caches: Sequence[Cache],
        *,
        own: bool,
        instead: Values | None = None,
    ) -> dict[str, Tensor]:
        """Every stage of the first layer and around it, `logits` `[B, T, D]` and `recurrence` `[B, T, H]` among them.

        Args:
            tokens: `[B, T]` int64 target ids, each the one after its state.
            states: `[B, T, k × Ht]` of the target, or `[B, T, H]` of the drafter itself.
            place: Where they stand.
            caches: One a layer.
            own: Whether `states` are the drafter's own.
            instead: Values of another forward pass by stage: what is computed here is returned, and what follows it
                goes on with the other's. So each stage is that of the other's inputs to it.

        Raises:
            EngineStops: The states do not fit fc.
        """
        computed: dict[str, Tensor] = {}

        def stage(name: str, value: Tensor) -> Tensor:
            computed[name] = value
            return value if instead is None else instead.get(name, value)

        shape, wiring = self.shape, self.wiring
        embedded = stage("embedding", self.embedding[tokens])  # [B, T, H]
        hidden = states
        if not own:
            states = stage("target states", states)  # [B, T, k × Ht]
            skipped = wiring.fc_by_width and states.shape[-1] == self.embedding.shape[-1]
            entering = stage("fc input", states if skipped else self._in_front_of_fc(states))
            hidden = stage("fc", entering if skipped else self._fused(entering))  # [B, T, H]
        elif wiring.fc_by_width and states.shape[-1] != self.embedding.shape[-1]:
            hidden = self._fused(self._in_front_of_fc(states))
        for number in range(self.layers):
            layer, told = self._layer(number), stage if number == 0 else _go_on
            first = (
                [told("input norm", shape.normed(embedded, layer["input_layernorm.weight"]))]
                if number == 0
                else []
            )
            normed = told("hidden norm", shape.normed(hidden, layer["hidden_norm.weight"]))
            inner = torch.cat([*first, normed], dim=-1)  # [B, T, 2 H] in the first layer
            residual = normed if wiring.residual_normed else hidden
            mixed = attention(layer, inner, shape, place, caches[number], told)
            hidden = told("attention residual", residual + mixed)
            hidden = told("layer output", hidden + told("mlp", feed_forward(layer, hidden, shape)))
        last = stage("final norm", shape.normed(hidden, self.weights["norm.weight"]))
        stage("logits", linear(last, self.lm_head))  # [B, T, D]
        stage("recurrence", last if wiring.recurrence_normed else hidden)
        return computed

    def _layer(self, number: int) -> dict[str, Tensor]:
        start = f"layers.{number}."
        return {k.removeprefix(start): v for k, v in self.weights.items() if k.startswith(start)}

    def _in_front_of_fc(self, states: Tensor) -> Tensor:
        """`[B, T, k × Ht]` behind the norms in front of fc, where there are any: one over all, or one a state."""
        if (norm := self.weights.get("input_norm.weight")) is not None:
            states = self.shape.normed(states, norm)
        norms = [weight for name, weight in self.weights.items() if name.startswith("fc_norm.")]
        if norms:
            chunks = states.chunk(len(norms), dim=-1)
            states = torch.cat([self.shape.normed(c, n) for c, n in zip(chunks, norms, strict=True)], dim=-1)
        return states

    def _fused(self, states: Tensor) -> Tensor:
        weight = self.weights["fc.weight"]
        if states.shape[-1] != weight.shape[1]:
            rows, columns = weight.shape
            raise EngineStops("RuntimeError", f"states {states.shape[-1]} wide meet fc of {columns} → {rows}")
        return linear(states, weight, self.weights.get("fc.bias"))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids as target ids.

        Raises:
            EngineStops: An id that the target does not have, or a map that cannot be an index.
        """
        if self.token_ids is None:
            return draft_ids
        if self.token_ids.is_floating_point():
            raise EngineStops("RuntimeError", "token ids of a floating-point d2t cannot index the embedding")
        if int(draft_ids.max()) >= len(self.token_ids):
            raise EngineStops("IndexError", f"draft id {int(draft_ids.max())} of {len(self.token_ids)}")
        ids = self.token_ids[draft_ids]
        if int(ids.max()) >= self.vocabulary or int(ids.min()) < 0:
            raise EngineStops("IndexError", "a drafted id is not in the target's vocabulary")
        return ids


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
    layers: tuple[Values, ...]
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
