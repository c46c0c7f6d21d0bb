"""What the guard says: one plain block in the server's log, and the end of the server where that is asked for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Literal

from eagle3lab.runs.events import Attached, Configured, Guarded
from eagle3lab.serving.guard.judge import GuardFault
from eagle3lab.serving.probe.careful import Refused
from eagle3lab.serving.probe.recorder import Recorder, now
from eagle3lab.serving.probe.settings import GuardMode
from eagle3lab.text import printable

_RULE = "-" * 100


def speak(
    faults: Sequence[GuardFault],
    stage: Literal["start", "steps"],
    attached: Attached,
    recorder: Recorder,
    mode: GuardMode,
) -> None:
    """Say what was found, once for the whole server, and stop it in the mode `refuse`.

    Raises:
        Refused: In that mode, if one of the faults is certain.
    """
    if not faults or attached.tp_rank != 0 or attached.dp_rank:
        return
    stops = mode == "refuse" and any(fault.certain for fault in faults)
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
