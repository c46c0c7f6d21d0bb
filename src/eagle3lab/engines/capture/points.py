"""Capture points, and what layer ids become.

Point i is the input of layer i, so it is the output of layer i - 1; point n is the output of the last layer. Layer
ids in a config mean points in one convention (speculators, vLLM: "input of layer") and layer outputs in the other
(SpecForge, ModelOpt, SGLang's own: point = id + 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from eagle3lab.engines.extract.model import ReleaseFacts, Target

Convention = Literal["input of layer", "output of layer"]
Points = tuple[int, ...]
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
# The points that every trainer's defaults come to, by either convention: inputs of these layers.
USUAL = ("2", "n//2", "n-3")


def find_chain(facts: ReleaseFacts, architectures: tuple[str, ...]) -> tuple[tuple[str, Target], ...]:
    """The classes that the call goes through, each with its method's facts; () where the target's class cannot.

    Args:
        facts: The release.
        architectures: The target's class, and the class of the language model in it where the config names one.
    """
    chain: list[tuple[str, Target]] = []
    waiting = list(architectures)
    while waiting:
        name = waiting.pop(0)
        hook = next((one for one in facts.targets if name in (*one.architectures, one.name)), None)
        if hook is None or any(name == known for known, _ in chain):
            return ()
        chain.append((name, hook))
        if hook.delegates_to is None:
            return tuple(chain)
        if not waiting and hook.holds is not None:
            waiting.append(hook.holds)
    return ()


def find_hook(facts: ReleaseFacts, architectures: tuple[str, ...]) -> Target | None:
    """How this release captures of a target, delegates followed; None where it does not, or not as it is read."""
    chain = find_chain(facts, architectures)
    return chain[-1][1] if chain else None


def can_capture(facts: ReleaseFacts, architecture: str) -> bool:
    """Whether the class of this name has the hook in this release."""
    return any(architecture in target.architectures for target in facts.targets)


def shift_of(hook: Target, ids: Points, layers: int) -> int | None:
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


def last_point(hook: Target | None, layers: int) -> int:
    """The highest point that this target can capture: the output of the last layer only where its class says so."""
    beyond = hook is not None and any("== n" in one.when for one in hook.shifts)
    return layers if beyond else layers - 1


def points_of(expressions: tuple[str, ...], layers: int) -> Points:
    """Capture points from expressions in n."""
    return tuple(_evaluate(expression, layers) for expression in expressions)


def _evaluate(expression: str, n: int) -> int:
    value = 0
    for sign, term in re.findall(r"(^|[+-])(n//\d+|n|\d+)", expression.replace(" ", "")):
        number = n // max(1, int(term[3:])) if term.startswith("n//") else n if term == "n" else int(term)
        value += -number if sign == "-" else number
    return value


def convention_of(
    ids: Points | None, place: str, layers: int, trainer: Callable[[], str]
) -> tuple[Convention | None, bool]:
    """Which convention ids follow, and whether that is certain.

    By their values where these decide, else by who writes them at their place.

    Args:
        ids: As stated.
        place: The JSON path they stand at.
        layers: n of the target.
        trainer: Says who wrote the drafter; asked only where the values leave it open.
    """
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


def meant(ids: Points, convention: Convention) -> Points:
    """The points that ids of a convention mean."""
    return ids if convention == "input of layer" else tuple(one + 1 for one in ids)


def ids_for(points: Points, hook: Target, layers: int) -> Points | None:
    """The ids that make this target capture `points`; None where no ids do."""
    for shift in dict.fromkeys(one.added for one in hook.shifts):
        ids = tuple(point - shift for point in points)
        if min(ids, default=0) >= 0 and shift_of(hook, ids, layers) == shift:
            return ids
    return None
