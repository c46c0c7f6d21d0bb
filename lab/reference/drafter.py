"""The EAGLE-3 drafter's forward pass, every choice that trainers and engines make differently a switch.

The layer takes `[norm(embedding), norm(hidden)]`, adds to the hidden state, and the head reads what comes out behind
the final norm. What is left open by that sentence is `Wiring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from lab.reference.llama import Cache, Place, Shape, attention, feed_forward


class EngineStops(Exception):
    """The engine would stop here: while loading, or at the first request.

    Attributes:
        exception: Type of the engine's exception.
    """

    def __init__(self, exception: str, message: str) -> None:
        super().__init__(f"{exception}: {message}" if message else exception)
        self.exception = exception


@dataclass(frozen=True, slots=True)
class Wiring:
    """The choices.

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
    """A drafter as an engine holds it after loading, float32.

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

    weights: Mapping[str, Tensor]
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
        self, tokens: Tensor, states: Tensor, place: Place, caches: list[Cache], *, own: bool
    ) -> tuple[Tensor, Tensor]:
        """Logits `[B, T, D]` and recurrent hidden states `[B, T, H]`.

        Args:
            tokens: `[B, T]` int64 target ids.
            states: `[B, T, k × Ht]` of the target, or `[B, T, H]` of the drafter itself.
            place: Where they stand.
            caches: One a layer.
            own: Whether `states` are the drafter's own.

        Raises:
            EngineStops: The states do not fit fc.
        """
        embedded = self.embedding[tokens]
        hidden = states if self.skips_fc(states, own=own) else self.fused(self.fc_input(states))
        for number in range(self.layers):
            weights = self.layer(number)
            normed = self.shape.normed(hidden, weights["hidden_norm.weight"])
            inner = normed
            if number == 0:
                normed_embedding = self.shape.normed(embedded, weights["input_layernorm.weight"])
                inner = torch.cat([normed_embedding, normed], dim=-1)
            residual = normed if self.wiring.residual_normed else hidden
            hidden = residual + attention(weights, inner, self.shape, place, caches[number])
            hidden = hidden + feed_forward(weights, hidden, self.shape)
        last = self.shape.normed(hidden, self.weights["norm.weight"])
        return linear(last, self.lm_head), last if self.wiring.recurrence_normed else hidden

    def layer(self, number: int) -> dict[str, Tensor]:
        """The weights of a decoder layer, by their names in it."""
        start = f"layers.{number}."
        return {k.removeprefix(start): v for k, v in self.weights.items() if k.startswith(start)}

    def skips_fc(self, states: Tensor, *, own: bool) -> bool:
        """Whether these states go into the first layer as they are."""
        return states.shape[-1] == self.embedding.shape[-1] if self.wiring.fc_by_width else own

    def fc_input(self, states: Tensor) -> Tensor:
        """What enters fc: `states` behind the norms in front of it, where there are any."""
        if (norm := self.weights.get("input_norm.weight")) is not None:
            states = self.shape.normed(states, norm)
        norms = [weight for name, weight in self.weights.items() if name.startswith("fc_norm.")]
        if norms:
            chunks = states.chunk(len(norms), dim=-1)
            states = torch.cat([self.shape.normed(c, n) for c, n in zip(chunks, norms, strict=True)], dim=-1)
        return states

    def fused(self, states: Tensor) -> Tensor:
        """What fc makes of its input.

        Raises:
            EngineStops: The states do not fit it.
        """
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
