"""Where a name leads in an engine that walks from module to module, and stops at a name that leads nowhere."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

from eagle3lab.engines.facts import NameRules, Special, Stacked
from eagle3lab.engines.loading.names import Route

if TYPE_CHECKING:
    # vLLM's own types are of no use to a load by SGLang.
    from eagle3lab.engines.facts import ModuleNames, Unused

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
