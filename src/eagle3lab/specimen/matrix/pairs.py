"""Two faults at once: what is seen of the second while the first is there, and in which order to repair them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from eagle3lab.diagnosis import diagnose
from eagle3lab.specimen.faults import FAULTS, Served, inject, write_healthy
from eagle3lab.specimen.matrix.measure import LAUNCH
from eagle3lab.specimen.trial import Trial

COMMON = (
    "names.dropped/layers.0",
    "capture.algorithm/EAGLE",
    "vocab.double-offset",
    "head.tied",
    "names.missing/fc",
    "capture.ids-convention/inputs-for-outputs",
)
"""Six faults that people report, in the order in which they act."""

_ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Pair:
    """Two faults put into one head.

    Attributes:
        first: Name of the one put in first.
        second: Name of the other; equal to `first` for a fault by itself.
        accept_length: Tokens per verify step, in the reference.
        named: Slugs of the diagnosis' findings, first one first.
        order: Slugs in the order in which it says to repair them.
    """

    first: str
    second: str
    accept_length: float
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
        faults: Names, in the order in which they are put in.
        max_new_tokens: Length at which an answer is cut.
    """
    healthy = write_healthy(scratch / "healthy")
    alone = [(name, name) for name in faults]
    return [
        _pair(trial, engine, healthy, scratch / str(number), first, second, max_new_tokens)
        for number, (first, second) in enumerate([*alone, *combinations(faults, 2)])
    ]


def hider(pair: Pair, alone: Mapping[str, float]) -> str | None:
    """The fault of a pair that hides the other: with both, acceptance is what it is with this one by itself.

    None where they add up, or where each by itself is as bad as both.

    Args:
        pair: Two faults.
        alone: Accept length with each by itself.
    """
    alike = [name for name in (pair.first, pair.second) if abs(pair.accept_length - alone[name]) < _ALIKE]
    return alike[0] if len(alike) == 1 else None


def _pair(
    trial: Trial, engine: str, healthy: Served, folder: Path, first: str, second: str, max_new_tokens: int
) -> Pair:
    from eagle3lab.specimen.reference import load_as_served, load_reference_target, speculate

    served = inject(FAULTS[first], healthy, folder / "1")
    if second != first:
        served = inject(FAULTS[second], served, folder / "2")
    launch: dict[str, Any] = LAUNCH | dict(served.launch)
    target = load_reference_target(served.target)
    loaded = load_as_served(served.drafter, target, engine, algorithm=str(launch["algorithm"]))
    run = speculate(
        target,
        loaded.drafter,
        trial.prompts,
        steps=launch["steps"],
        topk=launch["topk"],
        draft_tokens=launch["draft_tokens"],
        max_new_tokens=max_new_tokens,
        stop_ids=trial.stop_ids,
    )
    said = diagnose(
        served.drafter, target=served.target, engine=engine, launch=_command(served, launch["algorithm"])
    )
    by_code = {one.code: one.fault for one in said.findings}
    return Pair(
        first,
        second,
        run.accept_length,
        tuple(dict.fromkeys(one.fault for one in said.findings)),
        tuple(dict.fromkeys(by_code[code] for code in said.repair_order)),
    )


def _command(served: Served, algorithm: str) -> str:
    return (
        f"python -m sglang.launch_server --model-path {served.target} --speculative-algorithm {algorithm} "
        f"--speculative-draft-model-path {served.drafter} --speculative-num-steps {LAUNCH['steps']} "
        f"--speculative-eagle-topk {LAUNCH['topk']} --speculative-num-draft-tokens {LAUNCH['draft_tokens']}"
    )
