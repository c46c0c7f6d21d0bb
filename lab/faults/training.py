"""Faults of training: heads trained wrongly on purpose, and one that meets another target than its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eagle3lab.checkpoint import Checkpoint
from eagle3lab.engines.extract import ReleaseFacts
from lab.faults.model import LATER, PARTIAL, Applies, always, fault, variant, with_target
from lab.faults.settings import holds
from lab.faults.train import TRAININGS
from lab.specimen.variant import write_variant


def _trained(
    name: str,
    training: str,
    expected: str,
    applies: Applies = always,
    *,
    ids: list[int] | None = None,
    outputs: list[int] | None = None,
) -> None:
    change = f"The head was trained {TRAININGS[training].what}."
    if ids is not None:
        change += f" Its layer ids {ids} stand at the top level of config.json."
    if outputs is not None:
        change += f" eagle_config names that state, {outputs}."

    own: dict[str, object] = {} if ids is None else {"eagle_aux_hidden_state_layer_ids": ids}
    if outputs is not None:
        own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True}
    variant(name, change, expected, applies=applies, training=training, config=own)


def _ignores_norm_before_fc(facts: ReleaseFacts) -> str | None:
    return "this release reads norm_before_fc" if "norm_before_fc" in facts.switches else None


_trained(
    "healthy/control", "control", "a working head, weaker than the specimen's: it was trained for 500 steps"
)
_trained("layer.norm-before-residual", "norm-before-residual", PARTIAL)
_trained(
    "layer.norm-output/trained",
    "norm-output",
    LATER,
    lambda facts: "this release reads norm_output" if holds("reads norm_output", facts) else None,
)
_trained("layer.norm-before-fc", "norm-before-fc", PARTIAL, _ignores_norm_before_fc)
_trained("capture.ids-ignored", "layers-off-by-one", PARTIAL, ids=[3, 5, 6])
_trained(
    "capture.width/unnamed",
    "one-state",
    "the engine stops: it builds an fc for three states and gets one for one",
)
_trained(
    "capture.width/named",
    "one-state",
    "the one state is as wide as the embedding, so fc is skipped; or the engine stops",
    outputs=[4],
)
_trained("training.weak/few-steps", "few-steps", PARTIAL)
_trained("training.weak/one-step", "one-step", LATER)
_trained("training.weak/unshifted-tokens", "unshifted-tokens", PARTIAL)


variant(
    "layer.rope/trained-base-100",
    "The head was trained with a rotary base of 100, and config.json does not say so.",
    PARTIAL,
    training="rope-base",
    config={"rope_theta": 10000.0},
)


@fault(
    "training.pairing/other-target",
    "The target is another training run's: it answers as before, with the dimensions of its hidden states in another "
    "order.",
    "accept length near 1: the states mean something else",
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out)
    order = np.random.default_rng(11).permutation(head.config.hidden_size)
    with_target(out, lambda target, to: _reordered(target, to, order))


def _reordered(target: Checkpoint, to: Path, order: NDArray[np.int64]) -> None:
    """The target with the dimensions of its hidden states in this order."""
    turned = {}
    for name in target.tensors:
        values = np.asarray(target.read(name), dtype=np.float32)
        if name.endswith("norm.weight"):
            values = values[order]
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            values = values[order, :]
        else:
            values = values[:, order]
        turned[name] = np.ascontiguousarray(values)
    write_variant(target, to, replace=turned)
