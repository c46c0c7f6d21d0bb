"""Tensor names: which the release would load, found by turning its own name rules round, proven by simulating."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from eagle3lab.engines.loading.names import route
from eagle3lab.repair.model import Change
from eagle3lab.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eagle3lab.engines.facts import NameRules
    from eagle3lab.engines.loading import LoadPlan
    from eagle3lab.repair.working_copy import WorkingCopy

# How trainers and engines number a decoder layer: layers.0, midlayer, midlayer.0 (Megatron), with anything before.
_LAYER = re.compile(
    r"(?P<outer>(?:.*\.)?)(?:layers\.(?P<number>\d+)|midlayer(?:\.(?P<deep>\d+))?)\.(?P<tail>.+)"
)

# Token maps are found by a part of their name; a strict reader wants the whole.
_MAPS = ("d2t", "t2d")


def loadable_names(parameters: Iterable[str], rules: NameRules) -> tuple[str, ...]:
    """A checkpoint name for everything the drafter has: each parameter, and each shard of a fused one."""
    known = frozenset(parameters)
    added = [*rules.prefixes, *([rules.own_prefix.text] if rules.own_prefix else [])]
    names: list[str] = []
    for parameter in known:
        for bare in sorted({parameter.removeprefix(prefix) for prefix in added}, key=len):
            parts = [bare.replace(rule.fused, rule.part) for rule in rules.stacked if rule.fused in bare]
            parts += [
                bare.replace(pair.fused, half)
                for pair in rules.joined
                if pair.fused in bare
                for half in pair.parts
            ]
            parts = parts or [bare]
            if all(route(part, rules, known).parameter == parameter for part in parts):
                names += parts
                break
    return tuple(sorted(names))


def repair_names(copy: WorkingCopy, *, strict: bool = False) -> Change | None:
    """Rename the tensors that reach no parameter to names that do, if the simulated load then gains by it.

    Args:
        copy: The copy, changed in place.
        strict: Whether tensors that the release finds under another name than its own are renamed too (for a
            reader that is stricter than the release).

    Returns:
        The change, or None if there is nothing to rename or no renaming helps.
    """
    before = copy.simulate()
    if before.construction_error is not None or not before.parameters:
        return None
    parameters = [parameter.name for parameter in before.parameters]
    mapping = _renaming(copy, parameters, strict)
    if not mapping:
        return None
    tensors = list(copy.tensors)
    edits = copy.rename(mapping)
    after = copy.simulate()
    worse = after.rejected is not None and before.rejected is None
    if worse or len(_filled(after)) < len(_filled(before)) + (0 if strict else 1):
        copy.tensors = tensors
        return None
    gained = [name for name in _filled(after) if name not in set(_filled(before))]
    stopped = before.rejected is not None and before.rejected.name in mapping
    example, new = next(iter(mapping.items()))
    manner = "with a warning" if copy.engine.names.warns else "without a message"
    what = "stop the load" if stopped else f"are dropped {manner}"
    return Change(
        "names.rejected" if stopped else "names.dropped",
        f"{len(mapping)} tensors are renamed ({printable(example)} becomes {new})",
        (
            f"{copy.engine.spec}: {len(mapping)} tensors of these names {what}",
            f"{len(parameters) - len(_filled(before))} of {len(parameters)} parameters of "
            f"{copy.engine.drafter.name} get no tensor",
        )
        if gained
        else (f"{len(mapping)} tensors do not have the names the format gives them",),
        f"simulated under the new names, {len(_filled(after))} of {len(parameters)} parameters are loaded"
        f"{_rest(after)}; "
        "every shape fits, and no two tensors claim the same place",
        edits,
    )


def _filled(plan: LoadPlan) -> list[str]:
    return [p.name for p in plan.parameters if p.status in ("loaded", "taken from target")]


def _rest(plan: LoadPlan) -> str:
    """What is not loaded, in brackets."""
    left = [f"{p.name}: {p.reason}" for p in plan.parameters if p.name not in set(_filled(plan))]
    return f" ({left[0]}{', …' if len(left) > 1 else ''})" if left else ""


def _renaming(copy: WorkingCopy, parameters: list[str], strict: bool) -> dict[str, str]:
    """Old name → new one, for the one set of tensors that can be meant; empty if there is none or more than one."""
    rules, known = copy.engine.names, frozenset(parameters)
    layers: dict[tuple[int, str], str] = {}
    outside: list[str] = []
    for name in loadable_names(parameters, rules):
        inside = _LAYER.fullmatch(name)
        if inside is None:
            outside.append(name)
        else:
            layers[int(inside["number"] or inside["deep"] or 0), inside["tail"]] = name
    names = [info.name for info in copy.infos]
    taken, wanted = set(names), {}
    for name in names:
        way = route(name, rules, known)
        if not strict and (way.special is not None or way.parameter is not None):
            continue
        new = _wanted(name, layers, [*outside, *_MAPS])
        if new is not None and new != name and new not in taken:
            wanted[name] = new
    return _one_to_one(wanted)


def _wanted(name: str, layers: dict[tuple[int, str], str], outside: list[str]) -> str | None:
    inside = _LAYER.fullmatch(name)
    if inside is not None:
        return layers.get((int(inside["number"] or inside["deep"] or 0), inside["tail"]))
    ends = [bare for bare in outside if name == bare or name.endswith(f".{bare}")]
    return max(ends, key=len, default=None)


def _one_to_one(wanted: dict[str, str]) -> dict[str, str]:
    """`wanted` if no two tensors want one name; else the tensors of the only outermost prefix with no such clash."""
    if max(Counter(wanted.values()).values(), default=0) <= 1:
        return wanted
    groups: dict[str, dict[str, str]] = {}
    for name, new in wanted.items():
        groups.setdefault(name.partition(".")[0], {})[name] = new
    most = max(len(group) for group in groups.values())
    largest = [group for group in groups.values() if len(group) == most]
    only = largest[0] if len(largest) == 1 else {}
    return only if max(Counter(only.values()).values(), default=0) <= 1 else {}
