"""A drafter's forward pass as an engine computes it, stage by stage.

The arithmetic of the reference's `Drafter`, which is held against the real servers, taken apart: here each stage can
also be computed from another's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from lab.reference import Drafter
from lab.reference.llama import attended, feed_forward

Values = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """One draft step over a sequence of T tokens, each token with a chain of its own.

    Attributes:
        drafter: As served.
        number: 1 for the pass over the target's states.
        tokens: `[T]` int64 fed to it.
        states: `[T, k × Ht]`, what the engine captures.
        first_position: `[1]` int64, rotary position of the first token in the pass over the target's states.
        earlier: What the steps before computed.
    """

    drafter: Drafter
    number: int
    tokens: Tensor
    states: Tensor
    first_position: Tensor
    earlier: tuple[Values, ...] = ()

    def weight(self, name: str) -> Tensor:
        """A weight of the layer."""
        return self.drafter.layer(0)[f"{name}.weight"]

    def norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""
        return self.drafter.shape.normed(rows, weight)


def computed(step: Step) -> dict[str, Tensor]:
    """Every stage of the step, each from the ones before."""
    values: dict[str, Tensor] = {}
    for name, stage in stages(step.number):
        values[name] = stage(step, values)
    return values


def computed_from(step: Step, trained: Values) -> dict[str, Tensor]:
    """Every stage of the step, each from what the trainer has in its place; a stage that has none is left out."""
    return {name: stage(step, trained) for name, stage in stages(step.number)}


def stages(number: int) -> Sequence[tuple[str, Callable[[Step, Values], Tensor]]]:
    """The stages of a step by name, in their order."""
    return _FIRST if number == 1 else _LATER


def _embedding(step: Step, values: Values) -> Tensor:
    return step.drafter.embedding[step.tokens]


def _target_states(step: Step, values: Values) -> Tensor:
    return step.states


def _fc_input(step: Step, values: Values) -> Tensor:
    states, drafter = values["target states"], step.drafter
    return states if drafter.skips_fc(states, own=False) else drafter.fc_input(states)


def _fc(step: Step, values: Values) -> Tensor:
    states, drafter = values["fc input"], step.drafter
    return states if drafter.skips_fc(states, own=False) else drafter.fused(states)


def _layer_input(step: Step, values: Values) -> Tensor:
    return values["fc"] if step.number == 1 else step.earlier[-1]["recurrence"]


def _input_norm(step: Step, values: Values) -> Tensor:
    return step.norm(values["embedding"], step.weight("input_layernorm"))


def _hidden_norm(step: Step, values: Values) -> Tensor:
    return step.norm(_layer_input(step, values), step.weight("hidden_norm"))


def _projected(part: int) -> Callable[[Step, Values], Tensor]:
    """Rows of queries, keys or values; SGLang keeps the three in one matrix."""

    def project(step: Step, values: Values) -> Tensor:
        rows = step.weight("self_attn.qkv_proj").split(step.drafter.shape.projections)[part]
        return linear(torch.cat([values["input norm"], values["hidden norm"]], dim=-1), rows)

    return project


def _first_position(step: Step, values: Values) -> Tensor:
    return step.first_position


def _positions(step: Step, values: Values) -> Tensor:
    """Counted from the first position of all, which attention does not see."""
    gap = step.drafter.wiring.position_gap if step.number > 1 else 0
    return torch.arange(len(step.tokens)) + step.number - 1 + gap


def _rotated(name: str) -> Callable[[Step, Values], Tensor]:
    def rotate(step: Step, values: Values) -> Tensor:
        shape = step.drafter.shape
        rows = values[name].unflatten(-1, (-1, shape.head_dim)).transpose(0, 1)
        first = (step.earlier[0] if step.earlier else values)["first position"]
        return shape.rotated(rows[None], (values["positions"] + first)[None])[0].transpose(0, 1)

    return rotate


def _attention(step: Step, values: Values) -> Tensor:
    shape, sources = step.drafter.shape, (*step.earlier, values)
    keys = torch.cat([one["rotated keys"] for one in sources])
    rows = torch.cat([one["values"].unflatten(-1, (-1, shape.head_dim)) for one in sources])
    count = len(values["rotated queries"])
    # The target's states up to its own, then what this chain has drafted.
    own = torch.eye(count, dtype=torch.bool)
    seen = torch.cat([torch.ones_like(own).tril(), *[own] * len(step.earlier)], dim=1)
    query, key, value = (one.transpose(0, 1)[None] for one in (values["rotated queries"], keys, rows))
    return attended(step.drafter.layer(0), query, key, value, seen[None])[0]


def _attention_residual(step: Step, values: Values) -> Tensor:
    normed = step.drafter.wiring.residual_normed
    return (values["hidden norm"] if normed else _layer_input(step, values)) + values["attention"]


def _mlp(step: Step, values: Values) -> Tensor:
    return feed_forward(step.drafter.layer(0), values["attention residual"], step.drafter.shape)


def _layer_output(step: Step, values: Values) -> Tensor:
    return values["attention residual"] + values["mlp"]


def _final_norm(step: Step, values: Values) -> Tensor:
    return step.norm(values["layer output"], step.drafter.weights["norm.weight"])


def _logits(step: Step, values: Values) -> Tensor:
    return linear(values["final norm"], step.drafter.lm_head)


def _drafted(step: Step, values: Values) -> Tensor:
    return step.drafter.target_ids(values["logits"].argmax(-1))


def _recurrence(step: Step, values: Values) -> Tensor:
    return values["final norm" if step.drafter.wiring.recurrence_normed else "layer output"]


_LATER = (
    ("embedding", _embedding),
    ("input norm", _input_norm),
    ("hidden norm", _hidden_norm),
    ("queries", _projected(0)),
    ("keys", _projected(1)),
    ("values", _projected(2)),
    ("positions", _positions),
    ("rotated queries", _rotated("queries")),
    ("rotated keys", _rotated("keys")),
    ("attention", _attention),
    ("attention residual", _attention_residual),
    ("mlp", _mlp),
    ("layer output", _layer_output),
    ("final norm", _final_norm),
    ("logits", _logits),
    ("drafted tokens", _drafted),
    ("recurrence", _recurrence),
)
_FIRST = (
    ("embedding", _embedding),
    ("target states", _target_states),
    ("fc input", _fc_input),
    ("fc", _fc),
    *_LATER[1:6],
    ("first position", _first_position),
    *_LATER[6:],
)
