"""Two faults at once: what is seen of the second while the first is there, and in which order to repair them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from eagle3lab.diagnosis import diagnose
from eagle3lab.engines.atlas.resolve import resolve_release
from lab.faults import FAULTS
from lab.matrix.cell import by_reference, prepare, sglang_command
from lab.matrix.records import AND
from lab.specimen.trial import Trial

COMMON = (
    "names.dropped/layers.0",
    "capture.algorithm/EAGLE",
    "vocab.double-offset",
    "head.tied",
    "names.missing/fc",
    "capture.ids-convention/inputs-for-outputs",
)
"""Six faults that people report, in the order in which they act."""

SERVED = tuple(
    AND.join(pair) for pair in (COMMON[:2], *combinations((COMMON[1], COMMON[2], COMMON[3], COMMON[5]), 2))
)
"""The pairs that real servers are measured with, in `SERVED_BY`: that of the case study, and every two of the four
that leave no parameter unwritten, so that reference and server must agree at every step."""
SERVED_BY = "sglang==0.5.9"

_ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Pair:
    """Two faults put into one head.

    Attributes:
        first: Name of the one put in first.
        second: Name of the other; equal to `first` for a fault by itself.
        accept_length: Tokens per verify step, in the reference; None where the engine stops.
        named: Slugs of the diagnosis' findings, first one first.
        order: Slugs in the order in which it says to repair them.
    """

    first: str
    second: str
    accept_length: float | None
    named: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the diagnosis names both."""
        return {FAULTS[name].slug for name in (self.first, self.second)} <= set(self.named)


def pairs(
    trial: Trial, engine: str, scratch: Path, faults: Sequence[str] = COMMON, max_new_tokens: int = 48
) -> list[Pair]:
    """Each fault by itself, then every two together, in the reference as `engine` would serve them.

    Args:
        trial: Target and prompts.
        engine: `sglang==0.5.9`.
        scratch: An empty folder.
        faults: Names, in the order in which they are put in; those that the release is not affected by are left out.
        max_new_tokens: Length at which an answer is cut.
    """
    facts = resolve_release(engine).facts
    faults = [name for name in faults if FAULTS[name].applies(facts) is None]
    alone = [(name, name) for name in faults]
    return [
        _pair(trial, engine, scratch / str(number), first, second, max_new_tokens)
        for number, (first, second) in enumerate([*alone, *combinations(faults, 2)])
    ]


def hider(pair: Pair, alone: Mapping[str, float]) -> str | None:
    """The fault of a pair that hides the other: with both, acceptance is what it is with this one by itself.

    None where they add up, where each by itself is as bad as both, or where the engine stops at both together.

    Args:
        pair: Two faults.
        alone: Accept length with each by itself.
    """
    if pair.accept_length is None:
        return None
    alike = [name for name in (pair.first, pair.second) if abs(pair.accept_length - alone[name]) < _ALIKE]
    return alike[0] if len(alike) == 1 else None


def _pair(trial: Trial, engine: str, folder: Path, first: str, second: str, max_new_tokens: int) -> Pair:
    name = first if first == second else AND.join((first, second))
    prepared = prepare(name, engine, "reference", trial, max_new_tokens, folder)
    cell = by_reference(prepared, trial)
    assert prepared.served is not None
    said = diagnose(
        prepared.served.drafter,
        target=prepared.served.target,
        engine=engine,
        launch=sglang_command(prepared),
    )
    by_code = {one.code: one.fault for one in said.findings}
    return Pair(
        first,
        second,
        cell.accept_length,
        tuple(dict.fromkeys(one.fault for one in said.findings)),
        tuple(dict.fromkeys(by_code[code] for code in said.repair_order)),
    )
