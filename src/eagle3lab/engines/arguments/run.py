"""Procedures followed step by step. Where a condition is unknown both ways are taken, and what differs is unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from eagle3lab.engines.arguments.evaluate import UNKNOWN, value_of
from eagle3lab.engines.arguments.machine import Machine, asked, platform
from eagle3lab.engines.arguments.rules import ArgumentRules, Procedure, Step

_DEEPEST = 30
# Questions about where weights lie, answered from the name alone.
_STORAGE: dict[str, Callable[[str], Any]] = {
    "is_runai_obj_uri": lambda name: name.startswith(("s3://", "gs://", "az://")),
    "is_remote_url": lambda name: "://" in name,
    "check_gguf_file": lambda name: name.endswith(".gguf"),
    "parse_connector_type": lambda name: name.partition("://")[0] if "://" in name else "",
    "resolve_hf_gguf_model_path": lambda name: UNKNOWN if "gguf" in name.lower() else None,
}
_FALLS_THROUGH = object()
# Conditions that end a procedure on one of two unknown ways: each doubles the ways through the rest of it.
_MOST_WAYS = 6


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on the way.

    Attributes:
        kind: "set", "say" or "refuse".
        subject: The field; the level of a message; the type of an exception.
        value: The new value; the text.
        before: The old value of a field.
        source: `file:line`.
        when: The innermost condition it stands under, in the release's terms; empty for none.
        certain: Whether it happens for sure, or under a condition that is unknown.
    """

    kind: str
    subject: str
    value: Any
    before: Any
    source: str
    when: str
    certain: bool


@dataclass(slots=True)
class State:
    """What is known at one point of a run."""

    fields: dict[str, Any]
    events: list[Event] = field(default_factory=list)

    def copy(self) -> State:
        """The same, to go another way from."""
        return State(dict(self.fields), list(self.events))


class Refused(Exception):
    """The release raises an exception here, for sure."""

    def __init__(self, kind: str, message: str, source: str, when: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.source = source
        self.when = when


@dataclass(frozen=True, slots=True)
class _Node:
    step: Step
    body: tuple[_Node, ...]
    orelse: tuple[_Node, ...]


@cache
def _tree(steps: tuple[Step, ...]) -> tuple[_Node, ...]:
    """Steps by depth as a tree."""
    nodes: list[_Node] = []
    at = 0
    while at < len(steps):
        step = steps[at]
        end = at + 1
        while end < len(steps) and steps[end].depth > step.depth:
            end += 1
        body = _tree(steps[at + 1 : end])
        if step.kind == "else" and nodes:
            nodes[-1] = _Node(nodes[-1].step, nodes[-1].body, body)
        else:
            nodes.append(_Node(step, body, ()))
        at = end
    return tuple(nodes)


class Run:
    """One command resolved by one release.

    Args:
        rules: The release's rules.
        state: Where it starts.
        target: The target's config; None where it is not known.
        drafter: The drafter's, likewise.
        machine: The machine; None where it is not known.
        environment: Variables that are set.
        pinned: Fields whose value stays as it is.
    """

    def __init__(
        self,
        rules: ArgumentRules,
        state: State,
        target: Mapping[str, Any] | None,
        drafter: Mapping[str, Any] | None,
        machine: Machine | None,
        environment: Mapping[str, str],
        pinned: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = rules
        self.state = state
        self.target = target
        self.drafter = drafter
        self.machine = machine
        self.environment = environment
        self.pinned = pinned
        self.depth = 0

    def procedure(
        self, name: str, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one procedure.

        Raises:
            Refused: The release stops here for sure.
        """
        one = self.rules.procedures.get(name)
        if one is None or self.depth >= _DEEPEST:
            return UNKNOWN
        given = dict(zip(one.parameters, arguments, strict=False)) | dict(keywords or {})
        names = {
            parameter: given[parameter]
            if parameter in given
            else value_of(one.defaults[parameter], _Frame(self, one, {}))
            if parameter in one.defaults
            else UNKNOWN
            for parameter in one.parameters
        }
        self.depth += 1
        result = _Frame(self, one, names).block(_tree(one.steps))
        self.depth -= 1
        return None if result is _FALLS_THROUGH else result


class _Frame:
    """One call of a procedure: its local names, and the run that it belongs to."""

    def __init__(self, run: Run, procedure: Procedure, names: dict[str, Any]) -> None:
        self.run = run
        self.one = procedure
        self.names = names
        self.ways = 0
        self.conditions: list[str] = []

    # ---- what expressions ask -------------------------------------------------------------------------------

    def name(self, name: str) -> Any:
        if name == "target":
            return UNKNOWN if self.run.target is None else self.run.target
        if name == "text_config":
            target = self.run.target
            inner = None if target is None else target.get("text_config")
            return UNKNOWN if target is None else inner if isinstance(inner, Mapping) else target
        if name == "current_platform":
            return platform(self.run.machine)
        if name == "ConnectorType":
            return {"INSTANCE": "instance"}
        return self.names.get(name, UNKNOWN)

    def attribute(self, holder: str, name: str) -> Any:
        if holder == "args":
            return self.run.state.fields.get(name, UNKNOWN)
        text = self.run.environment.get(name)
        if text is None:
            return value_of(self.run.rules.environment.get(name, "unknown"), self)
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": None}.get(
            text.lower(), text
        )

    def has(self, name: str) -> bool:
        return name in self.run.state.fields

    def call(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        if name in _STORAGE:
            return _STORAGE[name](str(arguments[0])) if arguments and arguments[0] is not UNKNOWN else UNKNOWN
        if name == "has_asymmetric_kv":
            return self._is_asymmetric()
        if name in self.run.rules.procedures:
            return self.run.procedure(name, arguments, keywords)
        if name == "get_platform":
            return platform(self.run.machine)
        if name == "is_set":
            return arguments[0] in self.run.environment
        if name == "use_mla_backend":
            return is_mla(self.run.target)
        if name == "isinstance":  # asked of algorithms that plugins register
            return False
        if name == "get_config":  # of the drafter: nothing else is opened by name on the way
            return UNKNOWN if self.run.drafter is None else self.run.drafter
        return asked(self.run.machine, name)

    def _is_asymmetric(self) -> Any:
        """Whether keys and values differ in width: not where the target's config gives values no width of their own."""
        if self.run.target is None:
            return UNKNOWN
        keys = ("v_head_dim", "swa_v_head_dim")
        return UNKNOWN if any(key in self.name("text_config") for key in keys) else False

    # ---- steps ----------------------------------------------------------------------------------------------

    def block(self, nodes: tuple[_Node, ...]) -> Any:
        """Run steps; the value returned, or that the end was reached."""
        for number, node in enumerate(nodes):
            if node.step.kind != "if":
                result = self._step(node.step)
            else:
                test = self._asked(node.step)
                if test is UNKNOWN:
                    return self._both(node, nodes[number + 1 :])
                result = self._way(node, test)
            if result is not _FALLS_THROUGH:
                return result
        return _FALLS_THROUGH

    def _way(self, node: _Node, test: bool, tail: tuple[_Node, ...] = ()) -> Any:
        self.conditions.append(node.step.expression if test else f"not ({node.step.expression})")
        result = self.block(node.body if test else node.orelse)
        self.conditions.pop()
        return self.block(tail) if tail and result is _FALLS_THROUGH else result

    def _asked(self, step: Step) -> Any:
        value = self._evaluated(step.expression, step)
        return value if value is UNKNOWN else bool(value)

    def _evaluated(self, expression: str, step: Step) -> Any:
        try:
            return value_of(expression, self)
        except Refused:
            raise
        except Exception as error:
            raise Refused(type(error).__name__, str(error), self._source(step)) from None

    def _source(self, step: Step) -> str:
        return f"{self.one.file}:{step.line}"

    def _both(self, node: _Node, rest: tuple[_Node, ...]) -> Any:
        """Both ways from an unknown condition; the rest of the procedure once where both ways lead to it."""
        apart = _ends(node.body) or _ends(node.orelse)
        if apart and self.ways >= _MOST_WAYS:
            return UNKNOWN
        self.ways += apart
        tail = rest if apart else ()
        run, start, names = self.run, self.run.state, self.names
        depth = run.depth
        outcomes: list[tuple[State, dict[str, Any], Any]] = []
        refusals: list[Refused] = []
        conditions = list(self.conditions)
        for test in (True, False):
            run.state, self.names, run.depth = start.copy(), dict(names), depth
            self.conditions = list(conditions)
            try:
                result = self._way(node, test, tail)
                outcomes.append((run.state, self.names, result))
            except Refused as refusal:
                refusals.append(refusal)
        run.depth, self.conditions = depth, conditions
        if not outcomes:
            run.state, self.names = start, names
            raise refusals[0]
        if refusals:  # the way on is the other one, and it may not be reached
            state, self.names, result = outcomes[0]
            first, when = refusals[0], node.step.expression
            state.events.append(Event("refuse", first.kind, first.message, None, first.source, when, False))
            run.state = state
        else:
            run.state, self.names = _merged(outcomes[0], outcomes[1], len(start.events))
            first, second = outcomes[0][2], outcomes[1][2]
            result = first if first is second or _same(first, second) else UNKNOWN
        return result if apart or result is not _FALLS_THROUGH else self.block(rest)

    def _step(self, step: Step) -> Any:
        if step.kind == "return":
            return self._evaluated(step.expression, step)
        if step.kind == "set":
            self._set(step.subject.split(", "), self._evaluated(step.expression, step), step)
        elif step.kind == "forget":
            for name in step.subject.split(", "):
                self._assign(name, UNKNOWN, step)
        elif step.kind == "declare":
            declared = self._evaluated(step.expression, step)
            for name, value in (declared if isinstance(declared, Mapping) else self._may(step)).items():
                self._assign(f"args.{name}", value, step)
        elif step.kind == "do":
            self._evaluated(step.expression, step)
        elif step.kind == "say":
            text = self._evaluated(step.expression, step)
            self._note("say", step.subject, "…" if text is UNKNOWN else text, None, step)
        elif step.kind == "refuse":
            text = self._evaluated(step.expression, step) if step.expression else ""
            said = "…" if text is UNKNOWN else str(text)
            raise Refused(step.subject, said, self._source(step), " and ".join(self.conditions))
        elif step.kind == "check":
            self._check(step)
        return _FALLS_THROUGH

    def _may(self, step: Step) -> dict[str, Any]:
        """The arguments that a procedure may declare, where it is not known what it does."""
        one = self.run.rules.procedures.get(step.expression.partition("(")[0])
        text = "\n".join(f"{inner.subject} {inner.expression}" for inner in one.steps) if one else ""
        names = set(re.findall(r"'(\w+)'\]|'(\w+)':", text))
        return {name: UNKNOWN for pair in names for name in pair if name in self.run.state.fields}

    def _check(self, step: Step) -> None:
        test, _, message = step.expression.partition("\n")
        value = self._evaluated(test, step)
        if value is UNKNOWN:
            self._note("refuse", step.subject, self._evaluated(message, step), None, step, certain=False)
        elif not value:
            when = " and ".join((*self.conditions, f"not ({test})"))
            raise Refused(step.subject, str(self._evaluated(message, step)), self._source(step), when)

    def _set(self, names: list[str], value: Any, step: Step) -> None:
        if len(names) == 1:
            self._assign(names[0], value, step)
            return
        known = isinstance(value, tuple | list) and len(value) == len(names)
        for number, name in enumerate(names):
            self._assign(name, value[number] if known else UNKNOWN, step)

    def _assign(self, name: str, value: Any, step: Step) -> None:
        if "[" in name:
            holder, _, key = name.partition("[")
            known = self.names.get(holder)
            if isinstance(known, Mapping):
                self.names[holder] = {**known, key.strip("'\"]"): value}
            return
        field_name = name.removeprefix("args.")
        if field_name == name:
            self.names[name] = value
            return
        if field_name in self.run.pinned:
            return
        before = self.run.state.fields.get(field_name, UNKNOWN)
        self.run.state.fields[field_name] = value
        if not _same(before, value):
            self._note("set", field_name, value, before, step)

    def _note(
        self, kind: str, subject: str, value: Any, before: Any, step: Step, certain: bool = True
    ) -> None:
        when = self.conditions[-1] if self.conditions else ""
        self.run.state.events.append(Event(kind, subject, value, before, self._source(step), when, certain))


def is_mla(config: Mapping[str, Any] | None) -> Any:
    """Whether a model's attention is MLA: its config, or that of its language model, has a latent rank."""
    if config is None:
        return UNKNOWN
    inner = config.get("text_config")
    configs = [config, *([inner] if isinstance(inner, Mapping) else [])]
    return any(isinstance(one.get("kv_lora_rank"), int) for one in configs)


def _ends(nodes: tuple[_Node, ...]) -> bool:
    return any(n.step.kind == "return" or _ends(n.body) or _ends(n.orelse) for n in nodes)


def _same(one: Any, other: Any) -> bool:
    if one is UNKNOWN or other is UNKNOWN:
        return one is other
    return type(one) is type(other) and bool(one == other)


def _merged(
    one: tuple[State, dict[str, Any], Any], other: tuple[State, dict[str, Any], Any], before: int
) -> tuple[State, dict[str, Any]]:
    """Two states in one: what they agree on, and what happened on either way."""

    def _either(first: Any, second: Any) -> Any:
        if isinstance(first, dict) and isinstance(second, dict):
            return both(first, second)
        return first if _same(first, second) else UNKNOWN

    def both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: _either(first.get(key, UNKNOWN), second.get(key, UNKNOWN))
            for key in (*first, *(key for key in second if key not in first))
        }

    first, second = one[0].events[before:], other[0].events[before:]
    events = [
        *one[0].events[:before],
        *(event if event in second else replace(event, certain=False) for event in first),
        *(replace(event, certain=False) for event in second if event not in first),
    ]
    return State(both(one[0].fields, other[0].fields), events), both(one[1], other[1])
