"""What the guard says is wrong with a drafter, from the events of a server's start and its first steps.

What is wrong is judged in `eagle3lab.runs.judgement`. A guard that cries wolf is switched off: a fault is *certain*
where nothing but a fault looks like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3lab.runs.events import Event
from eagle3lab.runs.judgement import (
    Misloaded,
    OneState,
    Start,
    WrongMap,
    judge_loading,
    judge_map,
    judge_states,
)
from eagle3lab.text import printable

FIRST_STEPS = 100
"""Verifications after which nothing accepted is told."""

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class GuardFault:
    """Something that keeps drafts from being accepted.

    Attributes:
        code: The fault's slug, as in the book: `names.dropped`.
        title: What is wrong, one line.
        lines: What was seen.
        fix: What to change.
        certain: Whether a server may be stopped for it.
    """

    code: str
    title: str
    lines: tuple[str, ...]
    fix: str
    certain: bool = True


def judge_start(events: Sequence[Event]) -> list[GuardFault]:
    """What is wrong, from the events until the server was ready; nothing for a drafter that is no EAGLE-3 head."""
    start = Start.of(events)
    if start.algorithm is None:
        return []
    states, loading, token_map = judge_states(start), judge_loading(start), judge_map(start)
    found = [
        None if states is None else _states(states, start),
        None if loading is None else _names(loading),
        None if token_map is None else _map(token_map),
    ]
    return [fault for fault in found if fault is not None]


def judge_steps(verifications: int, accepted: int) -> list[GuardFault] | None:
    """Whether the first verifications accepted anything; None while there were too few to say."""
    if accepted > 0:
        return []
    if verifications < FIRST_STEPS:
        return None
    return [
        GuardFault(
            "none-accepted",
            f"of the drafts in the first {verifications} verifications not one was accepted",
            ("each verification costs more than a plain decode step and yields the same single token",),
            "find the cause with the commands below, or serve without speculation",
        )
    ]


def _states(found: OneState, start: Start) -> GuardFault:
    states = f"fc takes {found.fc_in} values, {found.width} will arrive, and fc will be skipped"
    if found.fault == "capture.disabled":
        return GuardFault(
            found.fault,
            "use_aux_hidden_state is false in the drafter's eagle_config: it gets no auxiliary hidden states",
            (states,),
            "set use_aux_hidden_state to true in the drafter's config.json",
        )
    replaced = any(call.head for call in start.shared)
    return GuardFault(
        found.fault,
        f"an EAGLE-3 drafter is served as {printable(start.algorithm or '')}: it gets no auxiliary hidden states",
        (states, *(["the target's lm_head has replaced the drafter's"] if replaced else [])),
        "start the server with --speculative-algorithm EAGLE3",
    )


def _names(found: Misloaded) -> GuardFault:
    count, dropped = found.unfilled, len(found.dropped)
    if not count:
        return GuardFault(
            found.fault,
            f"{dropped} tensor{'s' * (dropped > 1)} of the checkpoint went nowhere",
            (f"dropped ({dropped}): {_list(found.dropped)}",),
            "see whether the drafter was trained with them: eagle3lab load-plan",
            certain=False,
        )
    seen = {
        "never written": found.never_written,
        "written in part": found.partly_written,
        "dropped from the checkpoint": found.dropped,
    }
    return GuardFault(
        found.fault,
        f"{count} parameter{'s' * (count > 1)} of the drafter hold{'s' * (count == 1)} no trained values",
        tuple(f"{what} ({len(names)}): {_list(names)}" for what, names in seen.items() if names),
        "rename the tensors to what this release loads: eagle3lab repair"
        if dropped
        else "export the missing tensors with the checkpoint",
    )


def _map(found: WrongMap) -> GuardFault:
    meaning = found.kind.meaning.rstrip(".")
    return GuardFault(
        found.fault,
        f"drafts are translated to wrong tokens: {meaning[0].lower()}{meaning[1:]}",
        tuple(printable(line) for line in found.held.evidence[:3]),
        "write d2t as target id minus draft id, int64: eagle3lab vocab",
        certain=not found.guessed,
    )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 80) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"
