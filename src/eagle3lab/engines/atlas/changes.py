"""A release in words, topic by topic, and what is different in another one. Line numbers do not count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.extract.model import ReleaseFacts, Target
from eagle3lab.engines.facts import FromTarget, NameRules, Parameter, Size, Switch
from eagle3lab.engines.release import releases

# Topic to item to what is said of it.
Description = Mapping[str, Mapping[str, str]]
_UNKNOWN = {"": "unknown"}
_IN = "in "
_EFFECTS = {"hot_token_id": "is the token map", "skipped": "is skipped"}
# A field of a format string, with one level of braces inside.
_FIELD = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two releases.

    Attributes:
        topic: What it is about.
        item: Which one of the topic's items; "" where the topic has only one.
        before: What the first release says of it; None if it does not have it.
        after: What the second says.
    """

    topic: str
    item: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """`+ item: text`, `− item`, or `item: text → text`."""
        if self.before is None:
            return f"+ {_joined(self.item, self.after)}"
        if self.after is None:
            return f"− {self.item or self.before}"
        return _joined(self.item, f"{self.before} → {self.after}")


def _joined(item: str, text: str | None) -> str:
    return f"{item}: {text}" if item and text else item or text or ""


def describe(facts: ReleaseFacts) -> Description:
    """What a release does, in words."""
    wiring, log, rate = facts.wiring, facts.log, facts.acceptance
    return {
        "tensor names": _UNKNOWN if facts.names is None else _names(facts.names),
        "parameters": _UNKNOWN if facts.parameters is None else _parameters(facts.parameters),
        "sizes and switches": {
            **{name: _size(size) for name, size in facts.sizes.items()},
            **{name: _switch(switch) for name, switch in facts.switches.items()},
        },
        "refuses to build": {
            _joined(rule.rule, rule.size): rule.exception + (f" (if {rule.when})" if rule.when else "")
            for rule in facts.construction
        },
        "vocabulary padding": _UNKNOWN
        if facts.vocabulary is None
        else {
            "": f"{facts.vocabulary.padding} rows"
            + (" times ranks" if facts.vocabulary.grows_with_tp else "")
        },
        "short tensors": dict.fromkeys(facts.zero_filled, "filled up with zeros"),
        "taken from the target": {part.parameter: _taken(part) for part in facts.from_target},
        "drafter classes": {one.name: one.kind for one in facts.drafters},
        "targets": _targets(facts),
        "layer ids": _UNKNOWN
        if wiring is None
        else {
            "read from": ", ".join(dict.fromkeys(reading.key for reading in wiring.ids)) or "nowhere",
            "switched off by": wiring.use_aux_hidden_state.key if wiring.use_aux_hidden_state else "nothing",
            "in CUDA graphs": wiring.graphs,
            "a target that cannot": wiring.missing.exception if wiring.missing else "AttributeError",
        },
        "algorithms": _UNKNOWN
        if facts.algorithms is None
        else {name: _alias(facts.algorithms.aliases.get(name)) for name in facts.algorithms.names},
        "accept rate": _UNKNOWN if rate is None else {"": rate.rate_formula},
        "decode line": _UNKNOWN
        if log is None
        else {"opens with": _opening(log.pieces[0]), **{_label(p): "" for p in log.pieces[1:] if _label(p)}},
        "metrics": dict.fromkeys(facts.metrics, ""),
        "fields of meta_info": dict.fromkeys(facts.meta_info, ""),
        "server info": dict.fromkeys(facts.server_info, ""),
        **facts.further_topics(),
        **{
            f"{_IN}{one.drafter.name}": {**_names(one.names), **_parameters(one.parameters)}
            for one in facts.others
        },
        "could not be read": {entry.fact: entry.reason for entry in facts.unknown},
    }


def differences(before: ReleaseFacts, after: ReleaseFacts) -> tuple[Change, ...]:
    """What the second release does otherwise than the first."""
    one, other = describe(before), describe(after)
    return tuple(
        Change(topic, item, one.get(topic, {}).get(item), other.get(topic, {}).get(item))
        for topic in dict.fromkeys([*one, *other])
        # A class that one of them lacks is listed as such, without everything that is in it.
        if not topic.startswith(_IN) or (topic in one and topic in other)
        for item in _in_order(one.get(topic, {}), other.get(topic, {}))
        if one.get(topic, {}).get(item) != other.get(topic, {}).get(item)
    )


def _taken(part: FromTarget) -> str:
    """When a parameter is the target's own."""
    if part.unless_shipped is not None:
        return f"unless a name in the checkpoint contains {part.unless_shipped}"
    if part.when_null is not None:
        return f"if {part.when_null} is null{' or absent' if part.absent_too else ''}"
    return f"unless {' and '.join(part.unless_differs)} differ" if part.unless_differs else "always"


def _in_order(one: Iterable[str], other: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*other, *one]))


def _names(rules: NameRules) -> dict[str, str]:
    words = {f"{rename.old} in a name": f"becomes {rename.new}" for rename in rules.renames}
    words |= {f"{special.contains} in a name": _EFFECTS[special.effect] for special in rules.special}
    words |= {f"{one.part} in a name": f"shard {one.shard} of {one.fused}" for one in rules.stacked}
    words |= {
        f"{part} in a name": f"part {number} of {pair.fused}, kept until the other is there"
        for pair in rules.joined
        for number, part in enumerate(pair.parts)
    }
    words["looked up as"] = " or ".join(f"{prefix}NAME" for prefix in rules.prefixes)
    words["without a parameter"] = rules.unmatched
    return words


def _parameters(parameters: tuple[Parameter, ...]) -> dict[str, str]:
    words = {}
    for parameter in parameters:
        rows = _product(parameter.rows) or "rows of q, k and v"
        text = f"[{', '.join(filter(None, (rows, _product(parameter.columns))))}]"
        if parameter.later_columns != parameter.columns:
            text += f", later layers [{_product(parameter.later_columns)}] wide"
        words[parameter.name] = text + (f" if {parameter.when}" if parameter.when else "")
    return words


def _product(factors: tuple[str | int, ...]) -> str:
    return " x ".join(map(str, factors))


def _size(size: Size) -> str:
    parts = [f"{key} for model_type {kind}" for kind, key in size.model_types.items()]
    parts += [*([size.present] if size.present else []), *size.first]
    parts += [str(last) for last in (size.fallback, size.default) if last is not None]
    return ", else ".join(parts)


def _switch(switch: Switch) -> str:
    if switch.differs:
        return f"where {' and '.join(switch.differs)} differ"
    if switch.none:
        return f"not {' nor '.join(switch.none)}"
    return " or ".join(switch.any) or "the first stated of " + ", ".join(switch.present)


def _targets(facts: ReleaseFacts) -> dict[str, str]:
    """Architecture to what becomes of layer ids, drafters left out."""
    drafters = {drafter.name for drafter in facts.drafters}
    words: dict[str, str] = {}
    for target in facts.targets:
        for name in target.architectures or (target.name,):
            if name not in drafters:
                words[name] = target_rule(target)
    return dict(sorted(words.items()))


def target_rule(target: Target) -> str:
    """What a target does with layer ids: `ids +1, default 2, n//2, n-3`."""
    if target.delegates_to is not None:
        return f"handed on to {target.delegates_to}"
    default = ", ".join(target.default_layers or ())
    return f"ids {target.rule}, default {default}"


def _alias(target: str | None) -> str:
    return f"means {target}" if target else ""


def _opening(piece: str) -> str:
    """The fixed beginning of the decode line."""
    return _FIELD.sub("…", piece.partition("#running-req")[0])


def _label(piece: str) -> str:
    """The names of the fields in a piece of the line, values left out."""
    return _FIELD.sub("…", piece).strip(" ,")


@cache
def changes_by_release(kind: str = "sglang") -> Mapping[str, tuple[Change, ...]]:
    """Release to what it does otherwise than the one before it; nothing for the oldest."""
    names = releases(kind)
    facts = [release_facts(name, kind) for name in names]
    pairs = zip(names[1:], facts, facts[1:], strict=False)
    return {names[0]: (), **{name: differences(before, after) for name, before, after in pairs}}
