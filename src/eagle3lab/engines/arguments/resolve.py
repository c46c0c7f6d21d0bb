"""A launch command as a release would resolve it: what it ends up with, what it changed, what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.arguments.context import DraftContext, draft_context
from eagle3lab.engines.arguments.evaluate import UNKNOWN, value_of
from eagle3lab.engines.arguments.machine import Machine
from eagle3lab.engines.arguments.parse import parse
from eagle3lab.engines.arguments.rules import ArgumentRules
from eagle3lab.engines.arguments.run import Event, Refused, Run, State

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
    """

    exception: str
    message: str
    source: str
    certain: bool


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
        refusals: A certain one, if there is one, is the last; the others may happen.
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

    @property
    def refused(self) -> Refusal | None:
        """Why it does not start; None where it may."""
        return next((refusal for refusal in self.refusals if refusal.certain), None)

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
        refused = (Refusal(stop.kind, stop.message, stop.source, certain=True),)
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
    )


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
