"""One call from folders to a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eagle3lab.errors import InputError
from eagle3lab.parity.model import TOLERANCE, ParityReport

if TYPE_CHECKING:
    from eagle3lab.parity.recording import Pass
    from eagle3lab.specimen.reference import Target

#: Recorded prompts, and tokens of each, that are compared at most.
MOST_PROMPTS, LONGEST = 8, 512


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
        events: A recording of the boundary, see `read_passes`; None to make states with the target here.
        prompts: Token ids of prompts to make states with, or how many of the specimen's held-out prompts to take.
        steps: Draft steps compared.
        tolerance: See `TOLERANCE`.

    Raises:
        InputError: A folder, a config or a recording cannot be used, speculators is not installed, or the engine
            would not serve this.
    """
    from eagle3lab.parity.compare import Comparison
    from eagle3lab.parity.explain import causes
    from eagle3lab.parity.recording import read_passes, sequences
    from eagle3lab.parity.replay import replay
    from eagle3lab.parity.states import check_tokens, default_prompts, made_by, only_matrices
    from eagle3lab.parity.trainer import load_trainer_head
    from eagle3lab.specimen.reference import (
        EngineStops,
        load_as_served,
        load_as_trained,
        load_reference_target,
    )

    passes: tuple[Pass, ...] = ()
    notes: tuple[str, ...] = ()
    source: Literal["target", "recording"] = "target"
    held: Target
    if events is not None:
        source, passes = "recording", read_passes(events)
        given, notes = sequences(passes, MOST_PROMPTS, LONGEST)
        held = only_matrices(target)
        check_tokens(given, held, events)
    else:
        held = load_reference_target(target)
    try:
        loaded = load_as_served(drafter, held, engine)
        meant = load_as_trained(trained or drafter, held)
        if events is None:
            asked = default_prompts(target, held, prompts) if isinstance(prompts, int) else prompts
            given = made_by(held, asked, meant.wiring.capture, loaded.drafter.wiring.capture)
        head = load_trainer_head(trained or drafter, held)
        _check_width(given[0].trained_states.shape[-1], head.model.fc.in_features, events or target)
        comparison = Comparison(head, given, steps, tolerance)
        stages = comparison.stages(loaded.drafter)
        found = causes(stages, loaded.drafter, meant.shape, comparison.own)
        replayed, left_out = replay(loaded.drafter, passes)
    except EngineStops as stop:
        raise InputError(
            f"{engine} does not serve this: {stop}",
            path=drafter,
            advice="eagle3lab diagnose says why; give the folder as it is served, and the trainer's as --trained",
        ) from None
    if loaded.dropped:
        notes += (f"{len(loaded.dropped)} tensors of the drafter are dropped by {engine}",)
    if loaded.uninitialised:
        notes += (f"left to chance by {engine}: " + ", ".join(loaded.uninitialised),)
    if trained is None:
        notes += ("both sides read one config.json: what was edited in it for serving does not show",)
    return ParityReport(
        drafter=str(drafter),
        trained=str(trained or drafter),
        engine=engine,
        source=source,
        sequences=len(given),
        tokens=sum(len(one.tokens) for one in given),
        tolerance=tolerance,
        stages=stages,
        causes=found,
        replayed=replayed,
        notes=notes + left_out,
    )


def _check_width(states: int, fc: int, place: Path) -> None:
    if states != fc:
        raise InputError(
            f"the states are {states} wide, and the trainer's fc takes {fc}",
            path=place,
            advice="Record them as EAGLE3 with the layers that the head was trained on.",
        )
