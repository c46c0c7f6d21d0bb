"""Which parameter a tensor's name leads to."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from eagle3lab.engines.facts import NameRules, Special, Stacked


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
    """

    renamed: str
    special: Special | None = None
    stacked: Stacked | None = None
    parameter: str | None = None
    exception: str | None = None
    warned: bool = False


def route(name: str, rules: NameRules, parameters: Container[str], on: Container[str] = ()) -> Route:
    """Follow the release's rules for `name`, in their order.

    Args:
        name: The name in the checkpoint.
        rules: The release's.
        parameters: Names of the drafter's parameters.
        on: Names of the switches that are on.
    """
    for rename in rules.renames:
        name = name.replace(rename.old, rename.new)
    for special in rules.special:
        if special.contains in name and (special.when is None or special.when in on):
            return Route(name, special=special)
    if rules.own_prefix is not None and rules.own_prefix.unless not in name:
        name = rules.own_prefix.text + name
    stacked = next((rule for rule in rules.stacked if rule.part in name), None)
    if stacked is not None:
        name = name.replace(stacked.part, stacked.fused)
    candidates = (prefix + name for prefix in rules.prefixes)
    found = next((candidate for candidate in candidates if candidate in parameters), None)
    if found is not None or name.endswith(rules.optional):
        return Route(name, stacked=stacked, parameter=found)
    exception = rules.unmatched_shard if stacked is not None else None
    return Route(name, stacked=stacked, exception=exception, warned=rules.warns and exception is None)
