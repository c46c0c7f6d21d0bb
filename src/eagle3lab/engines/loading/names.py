"""Which parameter a tensor's name leads to."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from eagle3lab.engines.facts import Joined, NameRules, Special, Stacked

T = TypeVar("T")
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Half:
    """One of two tensors that are loaded as one.

    Attributes:
        rule: The rule that joins them.
        part: Which of the two, 0 or 1, in the order in which they are stacked; None if the name says both.
        pair: The name that the first of the two has or would have.
    """

    rule: Joined
    part: int | None
    pair: str

    @property
    def fused(self) -> str:
        """The name of the parameter that both are loaded into."""
        return self.pair.replace(self.rule.parts[0], self.rule.fused)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a name leads.

    Attributes:
        renamed: The name after the release's renames and, for a shard, with the fused part in its place.
        special: The rule that ends the matter, if one does.
        stacked: The rule that makes it a shard of a fused parameter, if one does.
        parameter: The parameter it leads to; None if there is none of that name.
        exception: Type of the exception that a name without a parameter causes; None if it is dropped.
        warned: Whether a name that is dropped is mentioned in a warning.
        half: What it is of two tensors that are loaded as one, if it is; `parameter` is then that of both.
        message: What the exception says; None for the name.
    """

    renamed: str
    special: Special | None = None
    stacked: Stacked | None = None
    parameter: str | None = None
    exception: str | None = None
    warned: bool = False
    half: Half | None = None
    message: str | None = None


def route(
    name: str, rules: NameRules, parameters: Container[str], on: Container[str] = (), layers: int = 1
) -> Route:
    """Follow the release's rules for `name`, in their order.

    Args:
        name: The name in the checkpoint.
        rules: The release's.
        parameters: Names of the drafter's parameters.
        on: Names of the switches that are on.
        layers: Number of layers of the drafter.
    """
    if rules.translation is not None:
        translated = rules.translation.apply(name)
        if translated is None:
            return Route(name, warned="warning" in rules.translation.unmatched)
        name = translated
    layer = _LAYER.search(name) if rules.layers is not None else None
    if layer is not None and int(layer[1]) >= layers:
        return Route(name)
    special = _special(name, rules, on) if rules.special_first else None
    if special is None:
        for rename in rules.renames:
            name = rename.apply(name)
        special = None if rules.special_first else _special(name, rules, on)
    if special is not None:
        return Route(name, special=special)
    if rules.own_prefix is not None:
        name = rules.own_prefix.apply(name)
    if name.startswith(rules.optional_starts) and name not in parameters:
        return Route(name)
    stacked = None
    for rule in rules.stacked:
        if rule.part not in name:
            continue
        fused = name.replace(rule.part, rule.fused)
        if rules.missing_shard == "ends":
            name, stacked = fused, rule
            break
        if fused in parameters:
            return Route(fused, stacked=rule, parameter=fused)
        if rules.missing_shard == "goes on":
            name = fused
            if rules.unmatched_shard is not None and not name.endswith(rules.optional):
                return Route(name, stacked=rule, exception=rules.unmatched_shard)
    half = _half(name, rules)
    if half is not None:
        return Route(name, parameter=half.fused if half.fused in parameters else None, half=half)
    candidates = (prefix + name for prefix in rules.prefixes)
    found = next((candidate for candidate in candidates if candidate in parameters), None)
    if found is not None or name.endswith(rules.optional):
        return Route(name, stacked=stacked, parameter=found)
    exception = rules.unmatched_name if stacked is None else rules.unmatched_shard
    return Route(name, stacked=stacked, exception=exception, warned=rules.warns and exception is None)


def _special(name: str, rules: NameRules, on: Container[str]) -> Special | None:
    matching = (rule for rule in rules.special if rule.matches(name))
    return next((rule for rule in matching if rule.when is None or rule.when in on), None)


def _half(name: str, rules: NameRules) -> Half | None:
    for rule in rules.joined:
        first, second = (part in name for part in rule.parts)
        if first or second:
            pair = name if first else name.replace(rule.parts[1], rule.parts[0])
            return Half(rule, None if first and second else 0 if first else 1, pair)
    return None


@dataclass(slots=True)
class Waiting(Generic[T]):
    """Tensors that wait for their partners.

    Attributes:
        kept: By the pair's name and the part.
    """

    kept: dict[tuple[str, int], T] = field(default_factory=dict)

    def arrived(self, half: Half, tensor: T) -> tuple[T, T] | None:
        """Keep one more; both, in the order in which they are stacked, if its partner is there."""
        assert half.part is not None
        self.kept[half.pair, half.part] = tensor
        if (half.pair, 1 - half.part) not in self.kept:
            return None
        return self.kept.pop((half.pair, 0)), self.kept.pop((half.pair, 1))


def partners(routes: list[Route]) -> Mapping[int, int]:
    """Index of a tensor that completes a pair to the index of the one that was there before."""
    waiting: Waiting[int] = Waiting()
    found: dict[int, int] = {}
    for index, way in enumerate(routes):
        if way.half is not None and way.half.part is not None:
            both = waiting.arrived(way.half, index)
            if both is not None:
                found[index] = min(both)
    return found
