"""What is wrong with a drafter as it is served, judged from the events of a server's start and its first steps.

Only what was seen in this process counts, and what was not seen is not judged: a guard that cries wolf is switched
off. A fault is *certain* where nothing but a fault looks like this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from eagle3lab.runs.events import Built, Captured, Configured, Event, Loaded, Shared, TokenMap
from eagle3lab.text import printable

FIRST_STEPS = 100
"""Verifications after which nothing accepted is told."""

_SHOWN = 6
# Names that every EAGLE-3 loader leaves aside by design: the inverse map, and what is computed from the config.
_LEFT_ASIDE = ("t2d", "inv_freq")
_SCALES = ("_scale", "_scale_inv", "_zero_point", "scales", "qzeros", "g_idx")
_MAP_FAULTS = {
    "absolute": "vocab.absolute",
    "double-offset": "vocab.double-offset",
    "zero-by-mistake": "vocab.zero",
    "missing": "vocab.missing",
    "out-of-range": "vocab.range",
    "repeating": "vocab.range",
    "wrong-dtype": "vocab.dtype",
}
_E = TypeVar("_E", bound=Event)


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
    """What is wrong, from the events until the server was ready; nothing for a drafter that is no EAGLE-3 head.

    The drafters of other methods (multi-token prediction layers) take a few of the target's own tensors and drop the
    rest by design: nothing can be said about those.
    """
    drafter = next((event for event in _of(events, Built) if event.role == "drafter"), None)
    configured = next(iter(_of(events, Configured)), None)
    if drafter is None or configured is None or "eagle3" not in drafter.cls.lower():
        return []
    loaded, token_map = next(iter(_of(events, Loaded)), None), next(iter(_of(events, TokenMap)), None)
    shared = list(_of(events, Shared))
    without_states = configured.use_aux_hidden_state is False
    return [
        *_states(configured, drafter, loaded, shared, list(_of(events, Captured))),
        *([] if loaded is None else _names(loaded, shared, without_states)),
        *([] if token_map is None else _map(token_map)),
    ]


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


def _states(
    configured: Configured,
    drafter: Built,
    loaded: Loaded | None,
    shared: list[Shared],
    captured: list[Captured],
) -> Iterable[GuardFault]:
    """Whether the drafter gets the auxiliary hidden states that its fc was trained on."""
    has_fc = loaded is not None and any("fc.weight" in place for to in loaded.placed.values() for place in to)
    if not has_fc or captured:
        return
    states = f"fc takes {drafter.fc_in} values, {drafter.hidden_size} will arrive, and fc will be skipped"
    if configured.algorithm.upper() != "EAGLE3":
        yield GuardFault(
            "capture.algorithm",
            f"an EAGLE-3 drafter is served as {printable(configured.algorithm)}: it gets no auxiliary hidden states",
            (
                states,
                *(
                    ["the target's lm_head has replaced the drafter's"]
                    if any(call.head for call in shared)
                    else []
                ),
            ),
            "start the server with --speculative-algorithm EAGLE3",
        )
    elif configured.use_aux_hidden_state is False:
        yield GuardFault(
            "capture.disabled",
            "use_aux_hidden_state is false in the drafter's eagle_config: it gets no auxiliary hidden states",
            (states,),
            "set use_aux_hidden_state to true in the drafter's config.json",
        )


def _names(loaded: Loaded, shared: list[Shared], without_states: bool) -> Iterable[GuardFault]:
    """Whether every parameter was written and every name went somewhere."""

    def matters(parameter: str) -> bool:
        return not parameter.endswith(_SCALES) and not (without_states and "fc." in parameter)

    unwritten = [name for name in loaded.never_written if matters(name)]
    partly = [
        name
        for name in loaded.partly_written
        if matters(name) and "embed_tokens" not in name and "lm_head" not in name
    ]
    dropped = [name for name in loaded.dropped if not _replaceable(name, shared)]
    if unwritten or partly:
        lines = []
        if unwritten:
            lines.append(f"never written ({len(unwritten)}): {_list(unwritten)}")
        if partly:
            lines.append(f"written in part ({len(partly)}): {_list(partly)}")
        if dropped:
            lines.append(f"dropped from the checkpoint ({len(dropped)}): {_list(dropped)}")
        count = len(unwritten) + len(partly)
        yield GuardFault(
            "names.dropped" if dropped else "names.missing",
            f"{count} parameter{'s' * (count > 1)} of the drafter hold{'s' * (count == 1)} no trained values",
            tuple(lines),
            "rename the tensors to what this release loads: eagle3lab repair"
            if dropped
            else "export the missing tensors with the checkpoint",
        )
    elif dropped:
        yield GuardFault(
            "names.unsupported-tensor",
            f"{len(dropped)} tensor{'s' * (len(dropped) > 1)} of the checkpoint went nowhere",
            (f"dropped ({len(dropped)}): {_list(dropped)}",),
            "see whether the drafter was trained with them: eagle3lab load-plan",
            certain=False,
        )


def _replaceable(name: str, shared: list[Shared]) -> bool:
    """Whether a dropped name does not matter: left aside by design, or the target provides the matrix."""
    return (
        name.endswith(_LEFT_ASIDE)
        or ("embed_tokens" in name and any(call.embed for call in shared))
        or ("lm_head" in name and any(call.head for call in shared))
    )


def _map(token_map: TokenMap) -> Iterable[GuardFault]:
    code = _MAP_FAULTS.get(token_map.kind)
    if code is None and token_map.out_of_range:
        code = "vocab.range"
    if code is not None:
        meaning = {
            "vocab.absolute": "d2t holds absolute ids, to which the engine has added their positions",
            "vocab.double-offset": "d2t had its positions subtracted twice",
            "vocab.zero": "d2t is all zeros with a reduced draft vocabulary",
            "vocab.missing": "the draft vocabulary is reduced and there is no d2t",
            "vocab.range": "d2t leads to ids that are not distinct tokens of the target",
            "vocab.dtype": "d2t does not hold integers",
        }[code]
        yield GuardFault(
            code,
            f"drafts are translated to wrong tokens: {meaning}",
            tuple(printable(line) for line in token_map.evidence[:3]),
            "write d2t as target id minus draft id, int64: eagle3lab vocab",
        )


def _of(events: Sequence[Event], kind: type[_E]) -> Iterable[_E]:
    return (event for event in events if isinstance(event, kind))


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, 80) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"
