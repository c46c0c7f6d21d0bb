"""Both forward passes run on the same sequences and compared, stage by stage and step by step, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.engines.atlas.resolve import resolve_release
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import PLAN, RunFolder
from eagle3lab.vocabulary.target_rows import target_tensor
from lab.parity.recording import Given, Pass, read_passes, replay, sequences
from lab.parity.report import TOLERANCE, Cause, Difference, ParityReport, Stage, difference
from lab.parity.trainer import TrainerHead, load_trainer_head
from lab.reference import (
    Drafter,
    EngineStops,
    Target,
    load_as_served,
    load_as_trained,
    load_reference_target,
    one_thread,
)
from lab.reference.forward import Place, Shape, Values
from lab.specimen import build, regenerate, tokenizer
from lab.specimen.paths import prompts_file, target_dir
from lab.specimen.progress import quiet

#: Recorded prompts, and tokens of each, that are compared at most.
MOST_PROMPTS, LONGEST = 8, 512
_TINY = 1024


def compare_forwards(
    drafter: Path,
    target: Path,
    engine: str,
    *,
    trained: Path | None = None,
    events: Path | None = None,
    prompts: Sequence[Sequence[int]] | int = 4,
    steps: int = 2,
    tolerance: float = TOLERANCE,
) -> ParityReport:
    """Run a drafter as its trainer computes it and as an engine does, on the same states, and compare every stage.

    The trainer's side is speculators' own class. The engine's side is the reference drafter with the switches of the
    release. Both compute in float32. What is drafted is fed to neither: each step gets the tokens of the sequence.

    Args:
        drafter: Folder that is served.
        target: Folder of the target. With `events`, config, embedding and head are enough.
        engine: `sglang==0.5.9` and the like.
        trained: Folder whose config says how the head was trained; that of `drafter` if None, which cannot show what
            was edited in it for serving.
        events: A recording of the boundary, see `read_passes`; None to make states with the target here. A run's
            folder also says with which algorithm and attention backend it was launched.
        prompts: Token ids of prompts to make states with, or how many of the specimen's held-out prompts to take.
        steps: Draft steps compared.
        tolerance: See `TOLERANCE`.

    Raises:
        InputError: A folder, a config or a recording cannot be used, speculators is not installed, or the engine
            would not serve this.
    """
    resolved = resolve_release(engine)
    label = resolved.label
    if resolved.facts.kind != "sglang":
        raise InputError(
            f"the engine's side follows SGLang's releases, not {label}",
            advice="Give --engine sglang==X.Y.Z or installed",
        )
    passes: tuple[Pass, ...] = ()
    notes: tuple[str, ...] = ()
    source: Literal["target", "recording"] = "target"
    held: Target
    if events is not None:
        source, passes = "recording", read_passes(events)
        given, notes = sequences(passes, MOST_PROMPTS, LONGEST)
        held = only_matrices(target)
        check_tokens(passes, held)
    else:
        held = load_reference_target(target)
    try:
        # Where tensors are tiny, more threads would spend their time waiting for each other.
        with one_thread() if held.embedding.shape[-1] < _TINY else nullcontext():
            algorithm, backend = _launched(events)
            loaded = load_as_served(drafter, held, engine, algorithm=algorithm, attention_backend=backend)
            served = loaded.drafter
            meant = load_as_trained(trained or drafter, held)
            if events is None:
                asked = default_prompts(held, prompts) if isinstance(prompts, int) else prompts
                given = made_by(held, asked, meant.wiring.capture, served.wiring.capture)
            head = load_trainer_head(trained or drafter, held)
            _check_width(given[0].trained_states.shape[-1], head.model.fc.in_features, events or target)
            comparison = Comparison(head, given, steps, tolerance)
            stages = comparison.stages(served)
            found = causes(stages, served, meant.shape, comparison.own)
            replayed, left_out = replay(served, passes)
    except EngineStops as stop:
        raise InputError(
            f"{label} does not serve this: {stop}",
            path=drafter,
            advice="eagle3lab diagnose says why; give the folder as it is served, and the trainer's as --trained",
        ) from None
    if loaded.dropped:
        notes += (f"{len(loaded.dropped)} tensors of the drafter are dropped by {label}",)
    if loaded.uninitialised:
        notes += (f"left to chance by {label}: " + ", ".join(loaded.uninitialised),)
    if served.wiring.accepted_twice:
        notes += (
            f"{label} with this attention backend counts accepted tokens twice, which only passes over them show",
        )
    if trained is None:
        notes += ("both sides read one config.json: what was edited in it for serving does not show",)
    return ParityReport(
        drafter=str(drafter),
        trained=str(trained or drafter),
        engine=label,
        source=source,
        sequences=len(given),
        tokens=sum(len(one.tokens) for one in given),
        tolerance=tolerance,
        stages=stages,
        causes=found,
        replayed=replayed,
        notes=notes + left_out,
    )


def _launched(events: Path | None) -> tuple[str, str]:
    """Algorithm and attention backend, as a run's folder has them."""
    if events is None or not (events / PLAN).is_file():
        return "EAGLE3", ""
    plan = RunFolder.open(events).plan()
    backends = plan.get("backends")
    backend = backends.get("attention") if isinstance(backends, dict) else None
    return str(plan.get("algorithm") or "EAGLE3"), backend if isinstance(backend, str) else ""


def _check_width(states: int, fc: int, place: Path) -> None:
    if states != fc:
        raise InputError(
            f"the states are {states} wide, and the trainer's fc takes {fc}",
            path=place,
            advice="Record them as EAGLE3 with the layers that the head was trained on.",
        )


_RANDOM_TOKENS = 48


def made_by(
    target: Target,
    prompts: Sequence[Sequence[int]],
    trained: tuple[int, ...] | None,
    served: tuple[int, ...] | None,
) -> tuple[Given, ...]:
    """A sequence for each prompt, the last token of which has no state.

    Args:
        target: The target.
        prompts: Token ids, at least two each.
        trained: Layers whose input the head was trained on; None for the state behind the final norm.
        served: The same for what the engine captures.

    Raises:
        InputError: A prompt is too short, or has a token that the target does not have.
    """
    found = []
    for prompt in prompts:
        if len(prompt) < 2 or min(prompt) < 0 or max(prompt) >= len(target.embedding):
            raise InputError(
                f"a prompt of {len(prompt)} tokens is too short, or has a token beyond the target's vocabulary of "
                f"{len(target.embedding)}"
            )
    with torch.inference_mode():
        for prompt in prompts:
            tokens = torch.tensor([list(prompt)])
            place, states = Place.after(torch.zeros(1, dtype=torch.int64), tokens.shape[1]), {}
            for capture in {trained, served}:
                caches = target.caches(1, tokens.shape[1])
                states[capture] = target.forward(tokens, place, caches, capture)[1][0, :-1]
            found.append(Given(tokens[0, 1:], states[trained], states[served], None))
    return tuple(found)


def default_prompts(target: Target, count: int) -> list[list[int]]:
    """The specimen's held-out prompts for a target of its vocabulary, seeded random ids for another."""
    quiet()
    tok = tokenizer.load_tokenizer(target_dir())
    size = len(target.embedding)
    if len(tok) != size:
        chance = torch.Generator().manual_seed(0)
        return [list(map(int, row)) for row in torch.randint(size, (count, _RANDOM_TOKENS), generator=chance)]
    return [
        regenerate.prompt_ids(tok, one["prompt"]) for one in islice(build.read_prompts(prompts_file()), count)
    ]


def only_matrices(folder: Path) -> Target:
    """A target of any kind without its layers: config, embedding and head, all that a recording leaves to need.

    Raises:
        InputError: The folder has no config.json, or no tensors for embedding and head.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.raw_config
    embedding, head = (
        torch.from_numpy(checkpoint.read(target_tensor(checkpoint, kind)).copy()).to(torch.float32)
        for kind in ("embed_tokens", "lm_head")
    )
    if embedding.ndim != 2 or head.ndim != 2:
        raise InputError("embedding and head are no matrices", path=folder)
    width = embedding.shape[1]
    shape = Shape(1, 1, width, 1e-6)
    return Target(shape, (), embedding, torch.ones(width), head, config)


def check_tokens(passes: Sequence[Pass], target: Target) -> None:
    """See that the target has every token of a recording.

    Raises:
        InputError: A token id is outside the vocabulary: the recording is of another target.
    """
    size = len(target.embedding)
    for one in passes:
        if len(one.tokens) and not 0 <= int(one.tokens.min()) <= int(one.tokens.max()) < size:
            raise InputError(
                f"a token id is outside the target's vocabulary of {size}",
                path=one.path,
                tensor="input_ids",
                advice="Give the target that was served.",
            )


class Comparison:
    """The sequences, run through the trainer's side once.

    Args:
        head: The trainer's side.
        given: The sequences.
        steps: Draft steps.
        tolerance: Of `difference`.
    """

    def __init__(self, head: TrainerHead, given: Sequence[Given], steps: int, tolerance: float) -> None:
        self._given, self._steps, self._tolerance = given, steps, tolerance
        self._trained = [head.trace(one.tokens, one.trained_states, steps) for one in given]

    def stages(self, drafter: Drafter) -> tuple[Stage, ...]:
        """Every stage of every step, carried on and of itself.

        Raises:
            EngineStops: The engine would stop at these states.
        """
        carried, own = self._run(drafter, from_trained=False), self._run(drafter, from_trained=True)
        return tuple(
            Stage(
                step,
                name,
                self._difference(step, name, carried),
                self._difference(step, name, own),
            )
            for step in range(1, self._steps + 1)
            for name in _from_first_position(carried[0][step - 1], carried[0][0], step)
        )

    def own(self, stage: Stage, drafter: Drafter) -> Difference:
        """The own difference of a stage, were this drafter served."""
        return self._difference(stage.step, stage.name, self._run(drafter, from_trained=True))

    def _run(self, drafter: Drafter, *, from_trained: bool) -> list[list[Values]]:
        with torch.inference_mode():
            return [
                engine_steps(drafter, one, self._steps, trained if from_trained else None)
                for one, trained in zip(self._given, self._trained, strict=True)
            ]

    def _difference(self, step: int, name: str, served: Sequence[Sequence[Values]]) -> Difference:
        pairs = []
        for one, trained, engine in zip(self._given, self._trained, served, strict=True):
            # What follows the last token is padding: each later step has one row less to say something about.
            rows = len(one.tokens) - (step - 1)
            sides = (
                _from_first_position(side[step - 1], side[0], step)[name][:rows] for side in (trained, engine)
            )
            pairs.append(tuple(sides))
        trainers, engines = (torch.cat(side) for side in zip(*pairs, strict=True))
        return difference(trainers, engines, self._tolerance)


def engine_steps(
    drafter: Drafter, given: Given, steps: int, trained: Sequence[Values] | None = None
) -> list[Values]:
    """What the engine computes at each stage of each draft step, `[T, …]`, each token with a chain of its own.

    Args:
        drafter: As served.
        given: The sequence; the recorded tokens are fed to each step.
        steps: Draft steps.
        trained: The trainer's values: each stage is computed from the trainer's inputs to it. None to carry the
            engine's own on.

    Raises:
        EngineStops: The engine would stop at these states.
    """
    tokens, count = given.tokens, len(given.tokens)
    first = torch.tensor([drafter.wiring.first_position]) if given.positions is None else given.positions[:1]
    rows, alone = torch.arange(count), torch.eye(count, dtype=torch.bool)
    states, caches, found = given.served_states, drafter.caches(1, steps * count), list[Values]()
    for step in range(steps):
        positions = first + rows + step + (drafter.wiring.position_gap if step else 0)
        # The target's states up to its own, then what this chain has drafted.
        seen = torch.cat([torch.ones_like(alone).tril(), *[alone] * step], dim=1)  # [T, (step + 1) × T]
        place = Place((rows + step * count)[None], positions[None], seen[None])
        fed = torch.cat([tokens[step:], tokens.new_zeros(step)])
        instead = None if trained is None else {name: value[None] for name, value in trained[step].items()}
        stages = drafter.forward(fed[None], states[None], place, caches, own=step > 0, instead=instead)
        values = {name: value[0] for name, value in stages.items()}
        recurrence, used = values.pop("recurrence"), values if trained is None else trained[step]
        values["drafted tokens"] = drafter.target_ids(used["logits"].argmax(-1))
        values["recurrence"] = recurrence
        found.append(values)
        states = recurrence if trained is None else trained[step]["recurrence"]
    return found


def _from_first_position(values: Values, first: Values, step: int) -> Values:
    """The values of a step with positions counted from the first of all, which attention does not see."""
    start, counted = first["positions"][:1], dict[str, Tensor]()
    for name, value in values.items():
        if name == "positions":
            counted |= {"first position": start} if step == 1 else {}
            value = value - start
        counted[name] = value
    return counted


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
