"""Which target layers are captured: ids moved to where the release reads them, in the convention it reads them in.

As *points*: point i is the input of layer i, the output of layer i − 1. The ids of speculators and vLLM, at the top
level, are points. The nested ids of SpecForge, ModelOpt and SGLang name outputs, so point = id + 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3lab.engines.facts import Capture
from eagle3lab.repair.model import Change, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.extract.model import CaptureWiring
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.repair.working_copy import WorkingCopy

NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
Points = tuple[int, ...]


# Conditions under which a target class treats explicit ids in its own way, as the release's source has them.
_CONDITIONS: dict[str, Callable[[Points, int], bool]] = {
    "layer_ids[0] == 1": lambda ids, layers: ids[0] == 1,
    "max(layer_ids) == n": lambda ids, layers: max(ids) == layers,
    "": lambda ids, layers: True,
}

# The language model inside a wrapper whose own ids have exceptions (SGLang's models/kimi_k25.py).
_WRAPPED = {"KimiK25ForConditionalGeneration": "DeepseekV2ForCausalLM"}


@dataclass(frozen=True, slots=True)
class TargetShape:
    """What the conversion of layer ids needs of the target: its class and its number of layers."""

    architectures: tuple[str, ...]
    layers: int


def target_shape(raw: Mapping[str, Any]) -> TargetShape | None:
    """Read from a target's config.json; None where it states no number of layers."""
    nested = raw.get("text_config")
    for place in (raw, nested if isinstance(nested, dict) else {}):
        layers = place.get("num_hidden_layers")
        if isinstance(layers, int) and not isinstance(layers, bool) and layers > 0:
            named = raw.get("architectures")
            names = tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()
            return TargetShape(names, layers)
    return None


def default_points(capture: Capture, layers: int) -> Points:
    """The points captured for a target of `layers` layers when no ids are read."""
    return tuple(_evaluate(expression.replace(" ", ""), layers) for expression in capture.default_layers)


def _evaluate(expression: str, n: int) -> int:
    match = re.fullmatch(r"(n|\d+)(?:(//|-|\+)(\d+))?", expression)
    if match is None:
        raise ValueError(f"{expression} is not an expression in n")
    left = n if match[1] == "n" else int(match[1])
    right = int(match[3] or 0)
    return {None: left, "//": left // (right or 1), "-": left - right, "+": left + right}[match[2]]


@dataclass(frozen=True, slots=True)
class Trained:
    """The points a head was trained with, as its config states them.

    Attributes:
        ids: As they stand.
        place: Where.
        points: What they mean.
        why: How that is known.
    """

    ids: Points
    place: str
    points: Points
    why: str


def trained_points(config: DrafterConfig, capture: Capture, target: TargetShape | None) -> Trained | None:
    """What the ids of a config mean; None where it states none."""
    ids, place = config.aux_hidden_state_layer_ids, config.sources["aux_hidden_state_layer_ids"]
    if not ids:
        return None
    if place != NESTED:
        return Trained(ids, place, ids, f"{place} names the layers whose input is captured")
    if target is not None and ids == default_points(capture, target.layers):
        why = (
            f"{list(ids)} are the default layers of a target with {target.layers} layers, as inputs of layers"
        )
        return Trained(ids, place, ids, why)
    return Trained(ids, place, tuple(one + 1 for one in ids), "nested ids name the layers whose output it is")


def looks_default(points: Points, capture: Capture) -> int | None:
    """The number of layers of a target whose default points these are; None if there is none."""
    candidates = range(1, max(points, default=0) + 8)
    return next((n for n in candidates if default_points(capture, n) == points), None)


def repair_layer_ids(
    copy: WorkingCopy, original: DrafterConfig, target: TargetShape | None
) -> tuple[Change | None, Refusal | None, str]:
    """Put layer ids where the release reads them, so that it captures the layers the head was trained with.

    Args:
        copy: The copy, whose config is flat by now.
        original: The config as it was.
        target: The target's class and layers; None when not known.

    Returns:
        The change, or the refusal, or neither; and a note, empty if there is none.
    """
    capture = copy.engine.capture
    trained = trained_points(original, capture, target)
    if trained is None:
        return None, None, ""
    ids, points = trained.ids, trained.points
    read = trained.place in capture.ids_from and original.dialect == copy.config.dialect
    captured = _points_of(ids, copy.engine, target) if read else None
    if not read and target is not None:
        captured = default_points(capture, target.layers)
    if captured == points:
        return None, None, _graphs_note(copy, points, target) or _convention_note(trained, capture, target)
    if not read and target is None and original.dialect != "speculators":
        layers = looks_default(points, capture)
        if layers is not None:
            said = f"layer ids {list(ids)} are not read by {copy.engine.spec}, and need not be if the target has "
            return None, None, f"{said}{layers} layers: they are its defaults. Name the target to be sure."
    if min(points) < 1 or not capture.ids_from:
        reason = f"layer ids {list(ids)} cannot be stated for {copy.engine.spec}"
        return None, Refusal("capture.ids-range", reason, (trained.why,)), ""
    new = _ids_for(points, copy.engine, target)
    if new is None:
        reason = (
            f"{copy.engine.spec} cannot be told to capture the inputs of layers {list(points)} of this target"
        )
        return (
            None,
            Refusal("capture.ids-range", reason, (trained.why,), ("Serve it with another engine.",)),
            "",
        )
    place = capture.ids_from[0]
    fault = "capture.ids-convention" if read else "capture.ids-ignored"
    seen = (
        f"{copy.engine.spec} reads {place} and captures the inputs of layers {list(captured or ())}"
        if read
        else f"{copy.engine.spec} reads layer ids only from {' or '.join(capture.ids_from)}"
    )
    change = Change(
        fault,
        f"layer ids {list(ids)} become {list(new)} in {place}",
        (f"{trained.place} is {list(ids)}", seen, f"{capture.source}"),
        f"{trained.why}; from {list(new)} the release captures the inputs of layers {list(points)}",
        (copy.set(place, list(new)),),
    )
    return change, None, _graphs_note(copy, points, target)


def _shifts(engine: EngineFacts, target: TargetShape | None) -> list[tuple[str, int]]:
    """What this release adds to explicit ids for this target: conditions and numbers, the first that holds."""
    common = [("", engine.capture.shift)]
    if target is None or engine.kind != "sglang":
        return common
    from eagle3lab.engines.atlas.data import release_facts

    try:
        known = release_facts(engine.release).targets
    except KeyError:
        return common
    named = set(target.architectures)
    found = next((t for t in known if named & {t.name, *t.architectures}), None)
    if found is not None and found.delegates_to is not None:
        delegating = found.name
        found = next((t for t in known if t.name == _WRAPPED.get(delegating)), None)
    return common if found is None or not found.shifts else [(s.when, s.added) for s in found.shifts]


def _points_of(ids: Points, engine: EngineFacts, target: TargetShape | None) -> Points | None:
    """What the release captures from explicit ids; None where a condition is not understood."""
    layers = 0 if target is None else target.layers
    for when, added in _shifts(engine, target):
        if when not in _CONDITIONS:
            return None
        if _CONDITIONS[when](ids, layers):
            return tuple(one + added for one in ids)
    return ids


def _ids_for(points: Points, engine: EngineFacts, target: TargetShape | None) -> Points | None:
    """Ids from which the release captures `points`; None where there are none."""
    added = dict.fromkeys(number for _, number in _shifts(engine, target))
    candidates = (tuple(one - number for one in points) for number in added)
    return next((ids for ids in candidates if _points_of(ids, engine, target) == points), None)


def capture_wiring(engine: EngineFacts) -> CaptureWiring | None:
    """Which ids reach the target in this release; None where that is not known."""
    from eagle3lab.engines.atlas.data import release_facts

    try:
        return release_facts(engine.release).wiring if engine.kind == "sglang" else None
    except KeyError:
        return None


def _graphs_note(copy: WorkingCopy, points: Points, target: TargetShape | None) -> str:
    """That this release's CUDA graphs capture the default layers whatever the config says, where it matters."""
    capture = copy.engine.capture
    usual = (
        default_points(capture, target.layers) == points
        if target
        else looks_default(points, capture) is not None
    )
    wiring = None if usual else capture_wiring(copy.engine)
    if wiring is None or wiring.graphs == "config ids":
        return ""
    return (
        f"{copy.engine.spec} captures the default layers in CUDA graphs whatever the config says "
        f"({wiring.graphs_source}): unless these are the target's defaults, serve with --disable-cuda-graph."
    )


def _convention_note(trained: Trained, capture: Capture, target: TargetShape | None) -> str:
    """That nested ids would be the default layers of some target, were they meant as inputs of layers."""
    layers = looks_default(trained.ids, capture) if target is None and trained.ids != trained.points else None
    if layers is None:
        return ""
    return (
        f"layer ids {list(trained.ids)} are read as outputs of layers; if the target has {layers} layers they are its "
        "defaults written as inputs, and each is one too high. Name the target to have that settled."
    )
