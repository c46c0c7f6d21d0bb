"""A launch command as a release would resolve it: what it ends up with, what it changed, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3lab.engines.arguments.context import DraftContext, draft_context
from eagle3lab.engines.arguments.evaluate import UNKNOWN, value_of
from eagle3lab.engines.arguments.machine import Machine, asked
from eagle3lab.engines.arguments.parse import parse
from eagle3lab.engines.arguments.rules import ArgumentRules, LatePlace
from eagle3lab.engines.arguments.run import Event, Refused, Run, State, is_mla

_BACKEND = "attention_backend"
_WITH_A_DRAFTER = ("EAGLE", "EAGLE3")
# What a reader of a launch about speculation wants to see, besides everything that is called speculative_….
_SHOWN = (
    "model_path",
    "device",
    "dtype",
    "quantization",
    "context_length",
    "tp_size",
    "dp_size",
    "pp_size",
    "nnodes",
    "page_size",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "max_running_requests",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "enable_multi_layer_eagle",
    "disable_cuda_graph",
)


@dataclass(frozen=True, slots=True)
class Change:
    """An argument that the release sets otherwise than the command does.

    Attributes:
        field: The argument.
        before: Its value until then: as given, or its default.
        after: Its value from then on; `UNKNOWN` where it cannot be told.
        when: The condition, in the release's own terms; empty where there is none.
        said: What the server logs about it; empty where it says nothing.
        source: `file:line` in the release.
        certain: Whether it is certain to happen.
    """

    field: str
    before: Any
    after: Any
    when: str
    said: str
    source: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """The release does not start.

    Attributes:
        exception: Type of the exception; "SystemExit" where the argument parser gives up.
        message: Its text; an ellipsis stands for what is unknown in it.
        source: `file:line` in the release; empty for the argument parser.
        certain: Whether it is certain; False where a condition is unknown.
        stage: "arguments" while these are read and checked, "load" when the weights are there and the attention
            backends are made, "context" when the drafter is built and its context is too short.
        when: The conditions it stands under, in the release's own terms.
        of_drafter: Whether it comes where the drafter's own backends are made.
    """

    exception: str
    message: str
    source: str
    certain: bool
    stage: Literal["arguments", "load", "context"] = "arguments"
    when: str = ""
    of_drafter: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedLaunch:
    """What becomes of a command.

    Attributes:
        release: The release.
        given: The arguments that the command gives.
        values: Every argument about speculation, and those that its rules depend on; `UNKNOWN` where it cannot be
            told. Of a launch that is refused, as far as it got.
        changes: What was changed, in order.
        messages: What is logged on the way about speculation.
        refusals: While arguments are checked: a certain one, if there is one, is the last; the others may happen.
        late: Those that come after the weights are loaded; none where the arguments are refused.
        unknown: What could not be read of the release.
        draft_context: How long a context the drafter is run with; None without a drafter, or where a config does
            not say. The server refuses later than with the others, when the drafter is built.
    """

    release: str
    given: Mapping[str, Any]
    values: Mapping[str, Any]
    changes: tuple[Change, ...]
    messages: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    unknown: tuple[str, ...]
    draft_context: DraftContext | None = None
    late: tuple[Refusal, ...] = ()

    @property
    def certain(self) -> tuple[Refusal, ...]:
        """Why it does not start, in the order in which it would be said; empty where it may."""
        found = [refusal for refusal in (*self.refusals, *self.late) if refusal.certain]
        context = self.draft_context
        if context is not None and context.length is None and not (found and found[0].stage == "arguments"):
            found.append(Refusal(context.exception, context.message, context.source, True, "context"))
        return tuple(found)

    @property
    def refused(self) -> Refusal | None:
        """The first reason why it does not start; None where it may."""
        return next(iter(self.certain), None)

    def value(self, field: str) -> Any:
        """An argument's value, or `UNKNOWN`."""
        return self.values.get(field, UNKNOWN)


def resolve_launch(
    words: Sequence[str],
    rules: ArgumentRules,
    *,
    target: Mapping[str, Any] | None = None,
    drafter: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    environment: Mapping[str, str] | None = None,
    decided: Mapping[str, Any] | None = None,
) -> ResolvedLaunch:
    """Resolve a launch command's arguments as this release would.

    Args:
        words: Everything after `sglang.launch_server` or `sglang serve`.
        rules: The release's, from `argument_rules`.
        target: The target's config.json; without it, what depends on the target is unknown.
        drafter: The drafter's, likewise.
        machine: Where it runs; without it, what depends on the machine is unknown.
        environment: Variables set for the command.
        decided: Arguments whose final value is known from elsewhere, such as a log's `server_args=` line.
    """
    given = parse(words, rules.options)
    fields = {name: _default(text) for name, text in rules.defaults.items()}
    # A switch that is not given stays off; what else is decided out of sight is not known.
    hidden = (name for name in rules.elsewhere if fields.get(name, False) is not False)
    fields |= dict.fromkeys(hidden, UNKNOWN)
    fields |= given.fields
    fields |= decided or {}
    if given.error:
        refusal = Refusal("SystemExit", given.error, "", certain=True)
        return ResolvedLaunch(rules.release, given.fields, _shown(fields), (), (), (refusal,), rules.unknown)
    run = Run(rules, State(fields), target, drafter, machine, environment or {}, frozenset(decided or ()))
    refused: tuple[Refusal, ...] = ()
    try:
        for entry in rules.entries:
            run.procedure(entry)
    except Refused as stop:
        refused = (Refusal(stop.kind, stop.message, stop.source, certain=True, when=stop.when),)
    asked_for = given.fields.get(_BACKEND, UNKNOWN)
    if asked_for is not UNKNOWN and run.state.fields.get(_BACKEND) is UNKNOWN:
        # Rules for this target that could not be followed decide about it: taken to leave what is asked for.
        return resolve_launch(
            words,
            rules,
            target=target,
            drafter=drafter,
            machine=machine,
            environment=environment,
            decided={**(decided or {}), _BACKEND: asked_for},
        )
    events = run.state.events
    possible = tuple(
        Refusal(event.subject, str(event.value), event.source, certain=False)
        for event in events
        if event.kind == "refuse"
    )
    return ResolvedLaunch(
        release=rules.release,
        given=given.fields,
        values=_shown(run.state.fields),
        changes=tuple(_changes(events)),
        messages=tuple(str(event.value) for event in events if event.kind == "say" and event.certain),
        refusals=(*possible, *refused),
        unknown=rules.unknown,
        draft_context=_context(rules, run, target, drafter, environment or {}),
        late=() if refused else tuple(_late(run)),
    )


class _AtTheBackends:
    """What the conditions of a late rule ask: of one model's attention, one backend, and the launch."""

    def __init__(self, run: Run, mla: Any, backend: Any) -> None:
        self.run = run
        capability = run.machine.capability if run.machine else None
        self.names = {
            "mla": mla,
            "backend": backend,
            "backend_type": backend,
            "major": capability[0] if capability else UNKNOWN,
            "minor": capability[1] if capability else UNKNOWN,
        }

    def name(self, name: str) -> Any:
        return self.names.get(name, UNKNOWN)

    def attribute(self, holder: str, name: str) -> Any:
        return self.run.state.fields.get(name, UNKNOWN) if holder == "args" else UNKNOWN

    def has(self, name: str) -> bool:
        return name in self.run.state.fields

    def call(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        return asked(self.run.machine, name)


def _chosen(own: Any, shared: Any) -> Any:
    return own if own is UNKNOWN or own else shared


def _late(run: Run) -> Iterator[Refusal]:
    """What refuses when the attention backends are made: the target's, the drafter's, and those of its steps."""
    fields = run.state.fields
    shared = fields.get("attention_backend")
    prefill = _chosen(fields.get("prefill_attention_backend"), shared)
    decode = _chosen(fields.get("decode_attention_backend"), shared)
    own = fields.get("speculative_draft_attention_backend")
    target = is_mla(run.target)
    made: list[tuple[LatePlace, Any, Any]] = [("runner", target, one) for one in (prefill, decode)]
    if fields.get("speculative_algorithm") in _WITH_A_DRAFTER:
        paths = (None, fields.get("model_path"))
        same = run.drafter is None and fields.get("speculative_draft_model_path") in paths
        head = target if same else is_mla(run.drafter)
        extend = decode if fields.get("speculative_attention_mode") == "decode" else prefill
        made += [("runner", head, _chosen(own, one)) for one in (prefill, decode)]
        made += [("draft decode", head, _chosen(own, decode)), ("draft extend", head, _chosen(own, extend))]
    said: set[str] = set()
    stopped = {False: False, True: False}  # the target's backends, the drafter's
    for number, (place, mla, backend) in enumerate(made):
        scope = _AtTheBackends(run, mla, backend)
        for rule in run.rules.late if backend is not None else ():  # older releases choose it later
            if rule.place != place or rule.backend not in ("", backend) or rule.source in said:
                continue
            if stopped[number > 1]:
                continue
            held = [UNKNOWN if backend is UNKNOWN else value_of(one, scope) for one in rule.when]
            if any(one is not UNKNOWN and not one for one in held):
                continue
            text = str(value_of(rule.message, scope))
            text = text.replace("{backend_type}", str(backend))
            certain = not any(one is UNKNOWN for one in held)
            said.add(rule.source)
            stopped[number > 1] = certain
            when = " and ".join((f"attention_backend == {backend!r}", *rule.when))
            yield Refusal(rule.exception, text, rule.source, certain, "load", when, of_drafter=number > 1)


def _context(
    rules: ArgumentRules,
    run: Run,
    target: Mapping[str, Any] | None,
    drafter: Mapping[str, Any] | None,
    environment: Mapping[str, str],
) -> DraftContext | None:
    """Of a drafter that is a model of its own."""
    fields = run.state.fields
    algorithm, length = fields.get("speculative_algorithm"), fields.get("context_length")
    if rules.draft_context is None or target is None or drafter is None or algorithm not in _WITH_A_DRAFTER:
        return None
    if length is UNKNOWN:
        return None
    return draft_context(rules.draft_context, target, drafter, length, environment)


class _Nothing:
    """The scope of a default: it can name nothing."""

    def name(self, name: str) -> Any:
        return UNKNOWN

    def attribute(self, holder: str, name: str) -> Any:
        return UNKNOWN

    def has(self, name: str) -> bool:
        return False

    def call(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        return UNKNOWN


def _default(text: str) -> Any:
    return value_of(text, _Nothing())


def _is_shown(field: str) -> bool:
    return field in _SHOWN or field.startswith("speculative_")


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if _is_shown(name)}


def _changes(events: Sequence[Event]) -> list[Change]:
    changes = []
    for number, event in enumerate(events):
        if event.kind != "set" or not _is_shown(event.subject):
            continue
        # The message stands before the change or after it, under the same condition.
        near = events[max(0, number - 1) : number + 2]
        said = next((str(one.value) for one in near if one.kind == "say" and one.when == event.when), "")
        changes.append(
            Change(event.subject, event.before, event.value, event.when, said, event.source, event.certain)
        )
    return changes
