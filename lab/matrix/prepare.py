"""A cell before it is measured: the fault put in, and what is to be served and how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eagle3lab.errors import InputError
from lab.faults import FAULTS, Fault, Served, inject, write_healthy
from lab.faults.train import trained_head
from lab.matrix.records import AND, HEALTHY, Cell, Outcome, Way
from lab.specimen.trial import Trial

if TYPE_CHECKING:
    from eagle3lab.serving.launch import LaunchPlan

#: As every cell is launched unless its fault says otherwise.
LAUNCH: dict[str, Any] = {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cell before it is measured.

    Attributes:
        cell: Everything that is known already; `outcome` is "measured" unless it will not be.
        served: What is to be served; None where nothing will be.
    """

    cell: Cell
    served: Served | None

    @property
    def launch(self) -> dict[str, Any]:
        """Fields of `LaunchPlan`."""
        return launch_of(self.served) if self.served else dict(LAUNCH)


def launch_of(served: Served) -> dict[str, Any]:
    """Fields of `LaunchPlan`: as every cell is launched, but for what the fault says."""
    return LAUNCH | dict(served.launch)


def plan_of(served: Served, engine: str) -> LaunchPlan:
    """The launch plan of a real server of this release on this machine's CPU; a fault may have left the drafter out."""
    from eagle3lab.serving.launch import cpu

    release = engine.partition("==")[2]
    fields = {"drafter": str(served.drafter)} | launch_of(served)
    return cpu(str(served.target), release=release, **fields)


def sglang_command(prepared: Prepared) -> str:
    """The launch command of what is served."""
    assert prepared.served is not None
    return plan_of(prepared.served, prepared.cell.engine).command()


def prepare(name: str, engine: str, way: Way, trial: Trial, max_new_tokens: int, scratch: Path) -> Prepared:
    """Put the fault in and say what there is to measure.

    Args:
        name: Of the fault; `healthy` for none; two with `AND` between them.
        engine: `sglang==0.5.9`.
        way: Who will measure.
        trial: Target and prompts.
        max_new_tokens: Length at which an answer is cut.
        scratch: An empty folder of this cell's own.

    Raises:
        InputError: There is no such fault, its injector changed nothing, or two faults want a trained head each.
    """
    from eagle3lab.engines.atlas.resolve import resolve_release

    faults, cell = described(name, engine, way, trial, max_new_tokens)
    for one in faults:
        if (reason := one.applies(resolve_release(engine).facts)) is not None:
            return unmeasured(cell, "not applicable", reason)
        if way == "reference" and not one.modelled:
            return unmeasured(cell, "not modelled", "the reference does not compute what this changes")
    return put_in(faults, cell, scratch)


def faults_of(name: str) -> tuple[Fault, ...]:
    """The faults of a cell in the order in which they are put in; none for `healthy`.

    Raises:
        InputError: There is no fault of such a name.
    """
    names = () if name == HEALTHY else tuple(name.split(AND))
    if unknown := [one for one in names if one not in FAULTS]:
        raise InputError(f"there is no fault called {unknown[0]!r}", advice=f"There are {', '.join(FAULTS)}")
    return tuple(FAULTS[one] for one in names)


def described(
    name: str, engine: str, way: Way, trial: Trial, max_new_tokens: int
) -> tuple[tuple[Fault, ...], Cell]:
    """The faults (none for `healthy`) and their cell with all that is known before anything is written.

    Raises:
        InputError: There is no such fault.
    """
    faults = faults_of(name)
    return faults, Cell(
        fault=name,
        slug=AND.join(one.slug for one in faults) or HEALTHY,
        engine=engine,
        way=way,
        outcome="measured",
        change=" ".join(one.change for one in faults) or "Nothing: the specimen's own head.",
        expected="; ".join(one.expected for one in faults) or "a working head",
        prompts=len(trial.prompts),
        max_new_tokens=max_new_tokens,
        made=datetime.now(UTC).date().isoformat(),
    )


def unmeasured(cell: Cell, outcome: Outcome, detail: str) -> Prepared:
    """A cell that will have no figures, and why."""
    return Prepared(msgspec.structs.replace(cell, outcome=outcome, detail=detail), None)


def put_in(faults: Sequence[Fault], cell: Cell, scratch: Path) -> Prepared:
    """The cell with what is to be served, written into `scratch`; nothing is where its head has not been trained.

    Raises:
        InputError: An injector changed nothing, or two faults want a trained head each.
    """
    trainings = [one.training for one in faults if one.training is not None]
    if len(trainings) > 1:
        raise InputError(f"one head cannot be trained in two ways: {cell.fault}")
    try:
        source = trained_head(trainings[0]) if trainings else None
    except InputError as error:
        return unmeasured(cell, "not made", error.problem)
    served = write_healthy(scratch / "healthy", source)
    for number, one in enumerate(faults, 1):
        served = inject(one, served, scratch / str(number))
    launch = launch_of(served)
    numbers = {name: launch[name] for name in ("steps", "topk", "draft_tokens")}
    return Prepared(msgspec.structs.replace(cell, **numbers), served)


def inputs_digest(prepared: Prepared, trial: Trial, code: str) -> str:
    """Digest of everything the cell depends on: files, launch, prompts, and the code that measures."""
    parts = [
        prepared.served.digest() if prepared.served else prepared.cell.detail,
        json.dumps(LAUNCH, sort_keys=True),
        json.dumps([trial.prompts, trial.stop_ids, prepared.cell.max_new_tokens]),
        prepared.cell.outcome,
        prepared.cell.change + prepared.cell.expected,
        code,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
