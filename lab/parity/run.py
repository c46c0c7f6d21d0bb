"""One call from folders to a report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eagle3lab.errors import InputError
from lab.parity.model import TOLERANCE, ParityReport

if TYPE_CHECKING:
    from lab.parity.recording import Pass
    from lab.reference import Target

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
    from eagle3lab.engines.atlas.resolve import resolve_release
    from lab.parity.compare import Comparison
    from lab.parity.explain import causes
    from lab.parity.recording import read_passes, sequences
    from lab.parity.replay import replay
    from lab.parity.states import check_tokens, default_prompts, made_by, only_matrices
    from lab.parity.trainer import load_trainer_head
    from lab.reference import (
        EngineStops,
        load_as_served,
        load_as_trained,
        load_reference_target,
        one_thread,
    )

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
    from eagle3lab.runs.folder import PLAN, RunFolder

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
