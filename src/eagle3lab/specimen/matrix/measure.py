"""One cell: a fault put in, served (by the reference or by a real server), counted and diagnosed."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.specimen.faults import FAULTS, Fault, Served, inject, write_healthy
from eagle3lab.specimen.faults.train import trained_head
from eagle3lab.specimen.matrix.records import HEALTHY, Cell, Diagnosed, Way
from eagle3lab.specimen.trial import Trial

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
        return LAUNCH | dict(self.served.launch if self.served else {})


def prepare(name: str, engine: str, way: Way, trial: Trial, max_new_tokens: int, scratch: Path) -> Prepared:
    """Put the fault in and say what there is to measure.

    Args:
        name: Of the fault; `healthy` for none.
        engine: `sglang==0.5.9`.
        way: Who will measure.
        trial: Target and prompts.
        max_new_tokens: Length at which an answer is cut.
        scratch: An empty folder of this cell's own.
    """
    from eagle3lab.engines.atlas.resolve import resolve_release

    one = FAULTS.get(name)
    if one is None and name != HEALTHY:
        raise InputError(f"there is no fault called {name!r}")
    cell = Cell(
        fault=name,
        slug=one.slug if one else HEALTHY,
        engine=engine,
        way=way,
        outcome="measured",
        change=one.change if one else "Nothing: the specimen's own head.",
        expected=one.expected if one else "a working head",
        prompts=len(trial.prompts),
        max_new_tokens=max_new_tokens,
        made=datetime.now(UTC).date().isoformat(),
    )

    def without(outcome: str, detail: str) -> Prepared:
        return Prepared(msgspec.structs.replace(cell, outcome=outcome, detail=detail), None)

    if one is not None and (reason := one.applies(resolve_release(engine).facts)) is not None:
        return without("not applicable", reason)
    try:
        served = _served(one, scratch)
    except InputError as error:
        if one is None or one.training is None:
            raise
        return without("not made", error.problem)
    if one is not None and way == "reference" and not one.modelled:
        return without("not modelled", "the reference does not compute what this changes")
    launch = LAUNCH | dict(served.launch)
    cell = msgspec.structs.replace(
        cell, steps=launch["steps"], topk=launch["topk"], draft_tokens=launch["draft_tokens"]
    )
    return Prepared(cell, served)


def _served(one: Fault | None, scratch: Path) -> Served:
    source = trained_head(one.training) if one is not None and one.training is not None else None
    healthy = write_healthy(scratch / "healthy", source)
    return healthy if one is None else inject(one, healthy, scratch / "faulty")


def inputs_digest(prepared: Prepared, trial: Trial, code: str) -> str:
    """Digest of everything the cell depends on: files, launch, prompts, and the code that measures."""
    parts = [
        prepared.served.digest() if prepared.served else prepared.cell.detail,
        json.dumps(prepared.launch, sort_keys=True, default=str),
        json.dumps([trial.prompts, trial.stop_ids, prepared.cell.max_new_tokens]),
        prepared.cell.outcome,
        prepared.cell.change + prepared.cell.expected,
        code,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def by_reference(prepared: Prepared, trial: Trial) -> Cell:
    """Measure in plain torch."""
    from eagle3lab.specimen.reference import (
        EngineStops,
        load_as_served,
        load_reference_target,
        speculate,
    )

    assert prepared.served is not None
    began, launch, cell = time.monotonic(), prepared.launch, prepared.cell
    target = load_reference_target(prepared.served.target)
    try:
        loaded = load_as_served(
            prepared.served.drafter,
            target,
            cell.engine,
            algorithm=str(launch["algorithm"]),
            attention_backend=plan_of(prepared).backends.get("attention", ""),
        )
        cell = msgspec.structs.replace(cell, dropped=loaded.dropped, uninitialised=loaded.uninitialised)
        run = speculate(
            target,
            loaded.drafter,
            trial.prompts,
            steps=launch["steps"],
            topk=launch["topk"],
            draft_tokens=launch["draft_tokens"],
            max_new_tokens=cell.max_new_tokens,
            stop_ids=trial.stop_ids,
        )
    except (EngineStops, InputError) as stop:
        return msgspec.structs.replace(cell, outcome="stops", detail=one_line(stop))
    return with_figures(cell, run.rounds, run.outputs, trial, seconds=time.monotonic() - began)


def with_figures(
    cell: Cell,
    rounds: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    trial: Trial,
    *,
    seconds: float,
) -> Cell:
    """The cell with its figures, from the accepted drafts of each verification and the answers of each prompt."""
    deepest = max(cell.steps, *(max(one, default=0) for one in rounds))
    counts = [Counter(one) for one in rounds]
    histograms = tuple(tuple(count[k] for k in range(deepest + 1)) for count in counts)
    return with_histograms(
        msgspec.structs.replace(cell, rounds=tuple("".join(map(str, one)) for one in rounds)),
        histograms,
        outputs,
        trial,
        seconds=seconds,
    )


def with_histograms(
    cell: Cell,
    histograms: tuple[tuple[int, ...], ...],
    outputs: Sequence[Sequence[int]],
    trial: Trial,
    *,
    seconds: float,
) -> Cell:
    """The same where only each prompt's histogram of accepted drafts is known."""
    total = [sum(column) for column in zip(*histograms, strict=True)]
    accepted = tuple(sum(total[k:]) for k in range(1, len(total)))
    steps = sum(total)
    mean, low, high = _interval(histograms)
    return msgspec.structs.replace(
        cell,
        histograms=histograms,
        verify_steps=steps,
        accepted=accepted,
        accept_length=mean,
        low=low,
        high=high,
        answers=answers_digest(outputs),
        same_answers=answers_digest(outputs) == answers_digest(_plain(trial, cell.max_new_tokens)),
        seconds=round(seconds, 1),
    )


def _interval(histograms: tuple[tuple[int, ...], ...]) -> tuple[float, float | None, float | None]:
    """Accept length with its 95% interval; prompts are what varies, each weighted by its verifications."""
    from eagle3lab.acceptance.statistics import student_quantile

    counted = [(sum(one), sum(k * n for k, n in enumerate(one))) for one in histograms if sum(one)]
    steps, accepted = sum(w for w, _ in counted), sum(a for _, a in counted)
    mean, n = 1 + accepted / steps, len(counted)
    if n < 2:
        return round(mean, 4), None, None
    # The standard error of a ratio of two sums.
    squares = sum((a - (mean - 1) * w) ** 2 for w, a in counted)
    wide = student_quantile(0.975, n - 1) * (squares * n / (n - 1)) ** 0.5 / steps
    return round(mean, 4), round(max(1.0, mean - wide), 4), round(mean + wide, 4)


def answers_digest(outputs: Sequence[Sequence[int]]) -> str:
    """First 12 hex digits of the SHA-256 of all answers."""
    text = json.dumps([list(output) for output in outputs])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_PLAIN: dict[tuple[int, int], Sequence[Sequence[int]]] = {}


def _plain(trial: Trial, max_new_tokens: int) -> Sequence[Sequence[int]]:
    """The target's answers without a drafter."""
    from eagle3lab.specimen.reference import generate

    key = (len(trial.prompts), max_new_tokens)
    if key not in _PLAIN:
        _PLAIN[key] = generate(trial.target, trial.prompts, max_new_tokens, trial.stop_ids)
    return _PLAIN[key]


def diagnosed(prepared: Prepared, log: Path | None = None) -> Diagnosed | None:
    """What the diagnosis says of the faulty folder, the command, and the log where there is one."""
    from eagle3lab.diagnosis import diagnose

    if prepared.served is None:
        return None
    cell = prepared.cell
    try:
        said = diagnose(
            prepared.served.drafter,
            target=prepared.served.target,
            engine=cell.engine,
            launch=plan_of(prepared).command(),
            log=log,
        )
    except Eagle3labError as error:
        return Diagnosed(verdict="unknown", title=one_line(error))
    place = next((n for n, found in enumerate(said.findings, 1) if found.fault == cell.slug), None)
    if not said.findings:
        return Diagnosed(verdict=str(said.verdict), named=cell.slug == HEALTHY)
    first = said.findings[0]
    return Diagnosed(
        verdict=str(said.verdict),
        first=first.fault,
        code=first.code,
        confidence=round(first.confidence, 3),
        title=first.title,
        named=place == 1,
        place=place,
    )


def plan_of(prepared: Prepared) -> Any:
    """The launch plan of a real server on this machine's CPU."""
    from eagle3lab.serving.launch import cpu

    assert prepared.served is not None
    release = prepared.cell.engine.partition("==")[2]
    return cpu(str(prepared.served.target), str(prepared.served.drafter), release=release, **prepared.launch)


def one_line(error: Exception) -> str:
    """An exception as one line without a path of this machine."""
    text = error.problem if isinstance(error, InputError) else str(error)
    return " ".join(text.split())[:300]


Measure = Callable[[Prepared, Trial, Path], Cell]
"""Measures a prepared cell; the folder is for whatever a server leaves."""
