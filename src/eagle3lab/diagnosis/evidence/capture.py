"""Which hidden states are captured, and which the head was trained with, as points: point i is the input of layer i.

How a release captures is `eagle3lab.engines.capture`'s; here it is set beside what the drafter was trained with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.evidence import rules
from eagle3lab.diagnosis.evidence.atlas import first_release
from eagle3lab.diagnosis.evidence.rules import Engine
from eagle3lab.engines.capture.points import (
    NESTED,
    Convention,
    Points,
    can_capture,
    convention_of,
    find_hook,
    last_point,
    meant,
    points_of,
    shift_of,
)

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.extract.model import ReleaseFacts


@dataclass(frozen=True, slots=True)
class Captured:
    """What the engine captures for a drafter.

    Attributes:
        ids: Layer ids as the config states them; None where it states none.
        place: The JSON path they stand at; empty without.
        read: Whether the release reads ids at that place.
        shift: What it adds to them, for this target and these ids.
        points: What is captured.
        default: What is captured when no ids are read.
        graphs_default: Whether CUDA graphs capture the default points whatever the config says.
        trained: What the head was trained with, as far as can be told; None where it cannot.
        convention: Which convention the ids follow; None where there are none.
        certain: Whether the convention follows from the values, not from habit.
        last: The highest point that can be captured.
        source: The engine's line on this target.
    """

    ids: Points | None
    place: str
    read: bool
    shift: int
    points: Points
    default: Points
    graphs_default: bool
    trained: Points | None
    convention: Convention | None
    certain: bool
    last: int
    source: str


def first_with_hook(architecture: str, after: str) -> str | None:
    """The first release after `after` in which the class of this name has the hook; None where none has."""
    return first_release(after, lambda facts: can_capture(facts, architecture))


def first_with_other_shift(
    architectures: tuple[str, ...], ids: Points, layers: int, after: str
) -> str | None:
    """The first release after `after` that takes these ids of this target verbatim; None where none does."""

    def verbatim(facts: ReleaseFacts) -> bool:
        hook = find_hook(facts, architectures)
        return hook is not None and shift_of(hook, ids, layers) == 0

    return first_release(after, verbatim)


def captured(
    config: DrafterConfig,
    facts: ReleaseFacts,
    architectures: tuple[str, ...],
    layers: int,
    trainer: Callable[[], str],
) -> Captured | None:
    """What this release captures of this target for this drafter, beside what the drafter was trained with.

    Args:
        config: The drafter's config.
        facts: The release.
        architectures: The target's class, and that of the language model in it.
        layers: n of the target.
        trainer: Says who wrote the drafter; asked only where the values leave the convention open.

    Returns:
        None where the release's code for this target was not understood.
    """
    hook = find_hook(facts, architectures)
    expressions = hook.default_layers if hook else facts.capture.default_layers if facts.capture else None
    if expressions is None:
        return None
    default = points_of(expressions, layers)
    ids = config.aux_hidden_state_layer_ids or None
    place = config.sources["aux_hidden_state_layer_ids"] if ids else ""
    wiring = facts.wiring
    read = bool(ids) and wiring is not None and place in {reading.key for reading in wiring.ids}
    read = read and (hook is None or hook.takes_ids)
    shift: int | None = facts.capture.shift if facts.capture else 1
    if hook is not None and ids and read:
        shift = shift_of(hook, ids, layers)
    if shift is None:
        return None
    convention, certain = convention_of(ids, place, layers, trainer)
    trained = meant(ids, convention) if ids and convention else None
    source = hook.source if hook else facts.capture.source if facts.capture else ""
    return Captured(
        ids=ids,
        place=place,
        read=read,
        shift=shift,
        points=tuple(one + shift for one in ids) if read and ids else default,
        default=default,
        graphs_default=wiring is not None and bool(wiring.ids) and wiring.graphs == "default layers",
        trained=trained,
        convention=convention,
        certain=certain,
        last=last_point(hook, layers),
        source=str(source),
    )


def captured_by_vllm(
    config: DrafterConfig, engine: Engine, layers: int, trainer: Callable[[], str]
) -> Captured:
    """The same for vLLM: ids are points as they stand, at the top level; from some release on nested ones too."""
    ids = config.aux_hidden_state_layer_ids or None
    place = config.sources["aux_hidden_state_layer_ids"] if ids else ""
    read = bool(ids) and (place != NESTED or rules.holds("reads nested layer ids", engine))
    default = points_of(tuple(rules.vllm_drafter()["default_points"]), layers)
    convention, certain = convention_of(ids, place, layers, trainer)
    trained = meant(ids, convention) if ids and convention else None
    return Captured(
        ids=ids,
        place=place,
        read=read,
        shift=0,
        points=ids if read and ids else default,
        default=default,
        graphs_default=False,
        trained=trained,
        convention=convention,
        certain=certain,
        last=layers,
        source=rules.source("reads nested layer ids", engine),
    )
