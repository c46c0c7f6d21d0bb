"""Why a stage differs: settings tried on the engine's side until its own difference is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lab.parity.model import Cause, Difference, Stage
from lab.reference import Drafter
from lab.reference.llama import Shape

Recompute = Callable[[Stage, Drafter], Difference]
"""The own difference of a stage, were the engine to serve this drafter."""

_SKIPPED = "the engine skips fc: the states are as wide as the embedding"
_OTHERWISE = "the engine computes it otherwise, or from other weights"
_PLAIN = {
    "embedding": "the engine looks the tokens up in another embedding",
    "target states": "the engine captures other states than the head was trained on",
    "fc input": "the norms in front of fc are not the same",
    "drafted tokens": "the engine's token map leads to other ids",
    "logits": "the engine has another head",
}


def causes(
    stages: Sequence[Stage], drafter: Drafter, trained: Shape, recompute: Recompute
) -> tuple[Cause, ...]:
    """The stages that differ of themselves, each kind once, with what is known of the reason.

    Args:
        stages: All stages in their order.
        drafter: As served.
        trained: Shape of the layer by the trainer's config.
        recompute: Computes a stage again.
    """
    found: list[Cause] = []
    for stage in stages:
        if stage.own.alike:
            continue
        cause = _cause(stage, drafter, trained, recompute)
        # A reason shows at every step, and what turns queries turns keys: once is enough.
        same = {stage.name, stage.name.replace("rotated keys", "rotated queries")}
        if not any(one.stage.name in same and one.meaning == cause.meaning for one in found):
            found.append(cause)
    return tuple(found)


def _cause(stage: Stage, drafter: Drafter, trained: Shape, recompute: Recompute) -> Cause:
    if stage.name == "first position":
        words = "the engine counts rotary positions from another number, and attention reads their differences only"
        return Cause(stage, words, harmless=True)
    if stage.name == "positions":
        words = f"by {stage.own.max_abs:.0f}, counted from the first position on each side"
        return Cause(stage, f"the positions of draft step {stage.step} are off {words}")
    for words, changed in _settings(stage.name, drafter, trained):
        if recompute(stage, changed).alike:
            return Cause(stage, words)
    if stage.name == "fc" and drafter.wiring.fc_by_width:
        runs = replace(drafter, wiring=replace(drafter.wiring, fc_by_width=False))
        if recompute(stage, runs).alike:
            return Cause(stage, _SKIPPED)
    return Cause(stage, _PLAIN.get(stage.name, _OTHERWISE))


def _settings(name: str, drafter: Drafter, trained: Shape) -> Iterator[tuple[str, Drafter]]:
    """Settings that this stage reads, changed to what the trainer may have, each with its words."""
    wiring, shape = drafter.wiring, drafter.shape
    sides = ("in front of", "behind")
    if name == "attention residual":
        there, here = sides[not wiring.residual_normed], sides[wiring.residual_normed]
        yield (
            f"norm_before_residual: the trainer takes the residual {there} hidden_norm, the engine {here} it",
            replace(drafter, wiring=replace(wiring, residual_normed=not wiring.residual_normed)),
        )
    if name == "recurrence":
        there, here = sides[not wiring.recurrence_normed], sides[wiring.recurrence_normed]
        yield (
            f"norm_output: the trainer hands its state on from {there} the final norm, the engine from {here} it",
            replace(drafter, wiring=replace(wiring, recurrence_normed=not wiring.recurrence_normed)),
        )
    if name.startswith("rotated"):
        turned = replace(shape, rope_base=trained.rope_base, rope_factor=trained.rope_factor)
        if trained.rope_base != shape.rope_base:
            yield (
                f"rotary base {shape.rope_base:g} in the engine, {trained.rope_base:g} in training",
                replace(drafter, shape=replace(shape, rope_base=trained.rope_base)),
            )
        if trained.rope_factor != shape.rope_factor:
            yield (
                f"rotary positions are divided by {shape.rope_factor:g} in the engine, "
                f"by {trained.rope_factor:g} in training",
                replace(drafter, shape=replace(shape, rope_factor=trained.rope_factor)),
            )
            yield "rotary base and scaling are not those of training", replace(drafter, shape=turned)
    if trained.eps != shape.eps and name.endswith("norm"):
        yield (
            f"rms_norm_eps {shape.eps:g} in the engine, {trained.eps:g} in training",
            replace(drafter, shape=replace(shape, eps=trained.eps)),
        )
