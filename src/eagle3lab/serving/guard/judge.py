"""What the guard says is wrong with a drafter, from the events of a server's start and its first steps.

What is wrong is judged in `eagle3lab.runs.judgement`. A guard that cries wolf is switched off: a fault is *certain*
where nothing but a fault looks like this, and only before a server takes requests can it be stopped for one.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3lab.runs.events import Attached, Configured, Event, Guarded
from eagle3lab.runs.judgement import (
    Misloaded,
    OneState,
    Recaptured,
    Start,
    WrongMap,
    judge_captures,
    judge_loading,
    judge_map,
    judge_states,
)
from eagle3lab.serving.hooks import Refused
from eagle3lab.serving.probe import GuardMode
from eagle3lab.serving.probe.recorder import Recorder, now
from eagle3lab.text import printable
from eagle3lab.vocabulary.kinds import MapKind

FIRST_STEPS = 100
"""Verifications after which nothing accepted is told."""

_SHOWN = 6
_RULE = "-" * 100


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
    recaptured = judge_captures(start)
    found = [
        None if states is None else _states(states, start),
        None if recaptured is None else _recaptured(recaptured),
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
            certain=False,
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


def _recaptured(found: Recaptured) -> GuardFault:
    return GuardFault(
        found.fault,
        "the layers that the drafter asked for were replaced by the release's own choice",
        (
            f"asked for the inputs of layers {', '.join(map(str, found.asked))}",
            f"captured in the end: {', '.join(map(str, found.held))}",
        ),
        "use a release whose CUDA graphs keep the drafter's layers, or --disable-cuda-graph",
        certain=False,
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
        # A map that is padded with zeros repeats ids too, in rows that are never proposed.
        certain=not found.guessed and found.kind is not MapKind.REPEATING,
    )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 80) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"


def announce(
    faults: Sequence[GuardFault],
    stage: Literal["start", "steps"],
    attached: Attached,
    recorder: Recorder,
    mode: GuardMode,
) -> None:
    """Say what was found, once for the whole server; in the mode `refuse`, stop one that is still starting.

    Raises:
        Refused: In that mode at the start, if one of the faults is certain.
    """
    if not faults or attached.tp_rank != 0 or attached.dp_rank:
        return
    stops = mode == "refuse" and stage == "start" and any(fault.certain for fault in faults)
    text = block(faults, stage, attached, recorder.last(Configured), stops)
    recorder.emit(Guarded(time=now(), stage=stage, faults=[fault.code for fault in faults], text=text))
    # One write, so that no other rank's lines come between.
    sys.stderr.write(f"\n{text}\n")
    sys.stderr.flush()
    if stops:
        titles = "; ".join(fault.title for fault in faults)
        raise Refused(f"eagle3lab guard stops this server (EAGLE3LAB_GUARD=refuse): {titles}")


def block(
    faults: Sequence[GuardFault],
    stage: Literal["start", "steps"],
    attached: Attached,
    configured: Configured | None,
    stops: bool,
) -> str:
    """The block as printed: no markup, no control character but line ends."""
    certain = any(fault.certain for fault in faults)
    verdict = "drafts will not be accepted" if certain else "something is odd about this drafter"
    if stage == "steps":
        verdict = "no draft is accepted"
    lines = [_RULE, f"eagle3lab guard: {verdict}"]
    for number, fault in enumerate(faults, 1):
        lines.append(f"{number}. {fault.title} [{fault.code}]")
        lines += [f"   {line}" for line in fault.lines]
        lines.append(f"   to do: {fault.fix}")
    release = printable(attached.release)
    if configured is not None:
        drafter = configured.drafter or "DRAFTER"
        lines.append(
            f"drafter {printable(drafter)}, algorithm {printable(configured.algorithm)}, SGLang {release}"
        )
        lines.append(
            f"look closer: eagle3lab diagnose {printable(shlex.quote(drafter))}"
            f" --target {printable(shlex.quote(configured.target))} --engine sglang=={release}"
        )
    lines += ["The server is stopped." if stops else "The server goes on.", _RULE]
    return "\n".join(lines)
