"""Which hidden states are captured, and which the head was trained with.

Both as *points*: point i is the input of layer i, so it is the output of layer i - 1; point n is the output of the
last layer. Layer ids in a config mean points in one convention (speculators, vLLM: "input of layer") and layer
outputs in the other (SpecForge, ModelOpt, SGLang's own: point = id + 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from eagle3lab.diagnosis.evidence import rules
from eagle3lab.diagnosis.evidence.atlas import first_release
from eagle3lab.diagnosis.evidence.rules import Engine

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.extract.model import Target as Hook

Convention = Literal["input of layer", "output of layer"]
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
# The points that every trainer's defaults come to, by either convention: inputs of these layers.
USUAL = ("2", "n//2", "n-3")
Points = tuple[int, ...]


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


def find_hook(facts: ReleaseFacts, architectures: tuple[str, ...]) -> Hook | None:
    """How this release captures of a target, delegates followed.

    Args:
        facts: The release.
        architectures: The target's class, and the class of the language model in it where the config names one.
    """
    for name in architectures:
        hook = next((target for target in facts.targets if name in target.architectures), None)
        if hook is None:
            return None
        if hook.delegates_to is None:
            return hook
    return None


def can_capture(facts: ReleaseFacts, architecture: str) -> bool:
    """Whether the class of this name has the hook in this release."""
    return any(architecture in target.architectures for target in facts.targets)


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


def shift_of(hook: Hook, ids: Points, layers: int) -> int | None:
    """What the target's class adds to explicit ids; None where its condition is not one that is understood."""
    for shift in hook.shifts:
        holds = _condition(shift.when, ids, layers)
        if holds is None:
            return None
        if holds:
            return shift.added
    return None


def _condition(when: str, ids: Points, layers: int) -> bool | None:
    if not when:
        return True
    if match := re.fullmatch(r"layer_ids\[0\] == (\d+)", when):
        return bool(ids) and ids[0] == int(match[1])
    if when == "max(layer_ids) == n":
        return bool(ids) and max(ids) == layers
    return None


def points_of(expressions: tuple[str, ...], layers: int) -> Points:
    """Capture points from expressions in n."""
    return tuple(_evaluate(expression, layers) for expression in expressions)


def _evaluate(expression: str, n: int) -> int:
    value = 0
    for sign, term in re.findall(r"(^|[+-])(n//\d+|n|\d+)", expression.replace(" ", "")):
        number = n // max(1, int(term[3:])) if term.startswith("n//") else n if term == "n" else int(term)
        value += -number if sign == "-" else number
    return value


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
    convention, certain = _convention(ids, place, layers, trainer)
    trained = None
    if ids and convention:
        trained = ids if convention == "input of layer" else tuple(one + 1 for one in ids)
    beyond = hook is not None and any("== n" in one.when for one in hook.shifts)
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
        last=layers if beyond else layers - 1,
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
    convention, certain = _convention(ids, place, layers, trainer)
    trained = None
    if ids and convention:
        trained = ids if convention == "input of layer" else tuple(one + 1 for one in ids)
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


def _convention(
    ids: Points | None, place: str, layers: int, trainer: Callable[[], str]
) -> tuple[Convention | None, bool]:
    """Which convention ids follow: by their values where these decide, else by who writes them there."""
    if not ids:
        return None, False
    usual = points_of(USUAL, layers)
    if ids == usual or max(ids) == layers:
        # The usual inputs themselves, or a layer that has no output of its own to name.
        return "input of layer", True
    if tuple(one + 1 for one in ids) == usual:
        return "output of layer", True
    if place != NESTED or trainer() == "speculators":
        return "input of layer", False
    return "output of layer", False
