"""Where a tensor's name leads: looked up as a whole, as in SGLang, or walked from module to module, as in vLLM."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeGuard, TypeVar

from eagle3lab.engines.facts import Joined, NameRules, Special, Stacked

if TYPE_CHECKING:
    from eagle3lab.engines.facts import ModuleNames, Unused


# ---- looked up as a whole --------------------------------------------------------------------------------------------


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


# ---- walked from module to module ------------------------------------------------------------------------------------


_INNER = "model."
# Name of a fused layer to its class.
FUSED = {"qkv_proj": "QKVParallelLinear", "gate_up_proj": "MergedColumnParallelLinear"}


def walks(rules: NameRules) -> TypeGuard[ModuleNames]:
    """Whether it is `walk` that follows these rules, and not `route`."""
    return rules.walked


def shipped_marks(rules: ModuleNames, names: Iterable[str]) -> set[str]:
    """What `walk` needs to know of the checkpoint as a whole: "shipped d2t" where some name contains d2t."""
    texts = {rule.unless_shipped for rule in rules.unused if rule.unless_shipped is not None}
    return {_shipped(text) for name in names for text in texts if text in name}


def _shipped(text: str) -> str:
    return f"shipped {text}"


def walk(name: str, rules: ModuleNames, parameters: Collection[str], on: Container[str] = ()) -> Route:
    """Follow the release's rules for `name`.

    Args:
        name: The name in the checkpoint.
        rules: The release's.
        parameters: Names of the drafter's parameters.
        on: Names of the switches that are on, and `shipped_marks`.
    """
    special = next((rule for rule in rules.special if rule.contains in name), None)
    if special is not None and special.effect == "skipped":
        return Route(name, special=special)
    if special is not None and rules.token_map is not None:
        name = rules.token_map.apply(name)
    elif rules.own_prefix is not None:
        name = rules.own_prefix.apply(name)
    for rule in rules.unused:
        if rule.text in name and not _used(rule, on):
            return Route(name, special=Special(rule.text, "skipped", rule.source))
    if not name.startswith(_INNER):
        return _Walk(rules, parameters, None, "").along(name)
    inner, stacked = _renamed(name[len(_INNER) :], rules)
    if rules.inner_missing is None:
        return _Walk(rules, parameters, stacked, _INNER).along(inner)
    whole = _INNER + inner
    if whole in parameters:
        return Route(whole, stacked=stacked, parameter=whole)
    return Route(whole, stacked=stacked, exception=rules.inner_missing, message=repr(inner))


def _used(rule: Unused, on: Container[str]) -> bool:
    if rule.unless_shipped is not None:
        return _shipped(rule.unless_shipped) in on
    return rule.unless_on is not None and rule.unless_on in on


def _renamed(inner: str, rules: ModuleNames) -> tuple[str, Stacked | None]:
    """A name inside the inner model after its renames and rules for shards."""
    count = 1 if rules.once else -1
    for rename in rules.renames:
        inner = inner.replace(rename.old, rename.new, count)
    stacked: Stacked | None = None
    for shard in rules.stacked:
        if shard.part in inner:
            inner = inner.replace(shard.part, shard.fused, count)
            stacked = shard
            if not rules.once:
                break
    return inner, stacked


class _Walk:
    """Part by part down the modules below `above`, as far as they go."""

    def __init__(
        self, rules: ModuleNames, parameters: Collection[str], stacked: Stacked | None, above: str
    ) -> None:
        self._rules = rules
        self._parameters = parameters
        self._modules = _modules(frozenset(parameters))
        self._stacked = stacked
        self._above = above
        self._whole = ""

    def along(self, name: str) -> Route:
        """Where `name` leads."""
        self._whole = self._above + name
        at = ""
        parts = name.split(".")
        for number, part in enumerate(parts, 1):
            if not part:
                return self._missing(at)  # an empty part leaves the walk where it was
            at = f"{at}.{part}" if at else part
            place = self._above + at
            if place in self._modules:
                if part in FUSED and self._rules.fused_missing is not None:
                    return self._fused(place)
            elif place not in self._parameters:
                return self._missing(at)
            elif number == len(parts):
                return Route(self._whole, stacked=self._stacked, parameter=place)
            elif name.endswith(self._rules.optional):
                return self._nothing()
            else:
                return self._stop(f"Attempted to load nested weight '{name}' into a single parameter '{at}'")
        return self._missing(at)

    def _missing(self, at: str) -> Route:
        """Nothing is called `at`: the engine stops, but for a bias that a module does not have."""
        if at.endswith(self._rules.optional):
            return self._nothing()
        owner = self._rules.owners[1 if self._above else 0]
        return self._stop(self._rules.missing_message.format(name=at, owner=owner))

    def _fused(self, place: str) -> Route:
        """A fused layer loads its own: a parameter, nothing for a bias that it does not have, or an error."""
        rest = self._whole[len(place) + 1 :]
        if rest and self._whole in self._parameters:
            return Route(self._whole, stacked=self._stacked, parameter=self._whole)
        if rest == "bias":
            return self._nothing()
        return Route(
            self._whole,
            stacked=self._stacked,
            exception=self._rules.fused_missing,
            message=f"'{FUSED[place.rpartition('.')[2]]}' object has no attribute 'data'",
        )

    def _nothing(self) -> Route:
        return Route(self._whole, stacked=self._stacked)

    def _stop(self, message: str) -> Route:
        return Route(self._whole, stacked=self._stacked, exception=self._rules.missing, message=message)


@lru_cache(maxsize=8)
def _modules(parameters: frozenset[str]) -> frozenset[str]:
    """Every module that has a parameter somewhere in it."""
    found = set()
    for name in parameters:
        parts = name.split(".")
        found |= {".".join(parts[:number]) for number in range(1, len(parts))}
    return frozenset(found)
