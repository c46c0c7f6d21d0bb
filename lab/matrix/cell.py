"""One cell: the fault put in, served by the reference or a real server, counted and diagnosed."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eagle3lab.acceptance.grammar import HISTOGRAMS
from eagle3lab.acceptance.statistics import student_quantile
from eagle3lab.diagnosis import diagnose
from eagle3lab.engines.atlas.resolve import resolve_release
from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.runs.events import Verified
from eagle3lab.runs.folder import EVENTS, RunFolder
from eagle3lab.serving.account import Measurement
from eagle3lab.serving.client import ServerError, ServerTimeout
from eagle3lab.serving.engine import find_engine
from eagle3lab.serving.measure import measure
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.profiles import cpu
from eagle3lab.serving.workload import Workload
from lab.faults import FAULTS, Fault, Served, inject, write_healthy
from lab.faults.train import trained_head
from lab.matrix.ranking import fitted_without
from lab.matrix.records import AND, HEALTHY, Cell, Diagnosed, Outcome, Way
from lab.reference import (
    Drafter,
    EngineStops,
    Speculation,
    Target,
    generate,
    load_as_served,
    load_reference_target,
    speculate,
)
from lab.specimen.trial import Trial

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


def inputs_digest(prepared: Prepared, trial: Trial) -> str:
    """Digest of all that is measured: files, launch, prompts."""
    parts = [
        prepared.served.digest() if prepared.served else prepared.cell.detail,
        json.dumps(LAUNCH, sort_keys=True),
        json.dumps([trial.prompts, trial.stop_ids, prepared.cell.max_new_tokens]),
        prepared.cell.outcome,
        prepared.cell.change + prepared.cell.expected,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def by_reference(prepared: Prepared, trial: Trial) -> Cell:
    """Measure in plain torch."""
    assert prepared.served is not None
    began, served, cell = time.monotonic(), prepared.served, prepared.cell
    target = load_reference_target(served.target)
    try:
        loaded = load_as_served(
            served.drafter,
            target,
            cell.engine,
            algorithm=str(prepared.launch["algorithm"]),
            attention_backend=plan_of(served, cell.engine).backends.get("attention", ""),
        )
        cell = msgspec.structs.replace(cell, dropped=loaded.dropped, uninitialised=loaded.uninitialised)
        run = speculated(served, target, loaded.drafter, trial, cell.max_new_tokens)
    except (EngineStops, InputError) as stop:
        return msgspec.structs.replace(cell, outcome="stops", detail=one_line(stop))
    return with_figures(cell, run.rounds, run.outputs, trial, seconds=time.monotonic() - began)


def speculated(
    served: Served, target: Target, drafter: Drafter, trial: Trial, max_new_tokens: int
) -> Speculation:
    """All prompts answered in the reference with the numbers of the launch.

    Raises:
        EngineStops: The release would stop.
    """
    launch = launch_of(served)
    return speculate(
        target,
        drafter,
        trial.prompts,
        steps=launch["steps"],
        topk=launch["topk"],
        draft_tokens=launch["draft_tokens"],
        max_new_tokens=max_new_tokens,
        stop_ids=trial.stop_ids,
    )


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
    """The cell with its figures, where only each prompt's histogram of accepted drafts is known."""
    total = [sum(column) for column in zip(*histograms, strict=True)]
    accepted = tuple(sum(total[k:]) for k in range(1, len(total)))
    steps = sum(total)
    mean, low, high = _interval(histograms)
    answers = answers_digest(outputs)
    return msgspec.structs.replace(
        cell,
        histograms=histograms,
        verify_steps=steps,
        accepted=accepted,
        accept_length=mean,
        low=low,
        high=high,
        answers=answers,
        same_answers=answers == answers_digest(_plain(trial, cell.max_new_tokens)),
        seconds=round(seconds, 1),
    )


def _interval(histograms: tuple[tuple[int, ...], ...]) -> tuple[float, float | None, float | None]:
    """Accept length with its 95% interval; prompts are what varies, each weighted by its verifications."""
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
    key = (len(trial.prompts), max_new_tokens)
    if key not in _PLAIN:
        _PLAIN[key] = generate(trial.target, trial.prompts, max_new_tokens, trial.stop_ids)
    return _PLAIN[key]


def diagnosed(
    prepared: Prepared, log: Path | None = None, command: Callable[[Prepared], str] = sglang_command
) -> Diagnosed | None:
    """What the diagnosis says of the faulty folder, the command, and the log where there is one.

    Of a server that answered it is given the line of the log that the cell keeps, and its ranking is fitted to the
    other half of the cells: so it can be asked again, and is not asked about what it was made from.

    Args:
        prepared: The cell; None comes back where nothing of it is served.
        log: Of a server that did not answer.
        command: Makes the launch command.
    """
    if prepared.served is None:
        return None
    cell = prepared.cell
    with tempfile.TemporaryDirectory(prefix="eagle3lab-cell-") as scratch, fitted_without(cell):
        if log is None and cell.log_line:
            log = Path(scratch, "server.log")
            log.write_text(cell.log_line + "\n", encoding="utf-8")
        try:
            said = diagnose(
                prepared.served.drafter,
                target=prepared.served.target,
                engine=cell.engine,
                launch=command(prepared),
                log=log,
            )
        except Eagle3labError as error:
            return Diagnosed(verdict="unknown", title=one_line(error))
    if not said.findings:
        return Diagnosed(verdict=str(said.verdict), named=cell.slug == HEALTHY)
    first, slugs, named = said.findings[0], cell.slug.split(AND), [one.fault for one in said.findings]
    place = max(map(named.index, slugs)) + 1 if set(slugs) <= set(named) else None
    return Diagnosed(
        verdict=str(said.verdict),
        first=first.fault,
        code=first.code,
        confidence=round(first.confidence, 3),
        title=first.title,
        named=first.fault in slugs,
        place=place,
    )


def one_line(error: Exception) -> str:
    """An exception as one line without a path of this machine."""
    text = error.problem if isinstance(error, InputError) else str(error)
    return " ".join(text.split())[:300]


# Where a cell's files lie while it is measured says nothing to a reader.
_SCRATCH = re.compile(r"/\S*eagle3lab-cell-[^/\s]+/")
_START_S, _STALL_S = 120.0, 60.0
#: More verify steps than a cell has: each is to be reported.
_FULL_STEPS = 5000


def by_server(prepared: Prepared, trial: Trial, run_dir: Path) -> Cell:
    """Serve and measure; a server that does not start, dies or hangs is a result too."""
    assert prepared.served is not None
    cell, began = prepared.cell, time.monotonic()
    workload = Workload(
        [list(prompt) for prompt in trial.prompts],
        max_new_tokens=cell.max_new_tokens,
        concurrency=4,
        source="the specimen's held-out prompts",
    )
    try:
        found = measure(
            plan_of(prepared.served, cell.engine),
            find_engine(cell.engine),
            workload,
            run_dir,
            probe=False,
            overlay=probe_overlay(events=run_dir / EVENTS, full_steps=_FULL_STEPS),
            start_timeout_s=_START_S,
            stall_s=_STALL_S,
        )
    except ServerTimeout as error:
        cell = msgspec.structs.replace(cell, outcome="timeout", detail=one_line(error))
    except (ServerError, Eagle3labError) as error:
        cell = msgspec.structs.replace(cell, outcome="stops", detail=_reason(error))
    else:
        cell = _counted(cell, found, trial, time.monotonic() - began)
    seconds, log = round(time.monotonic() - began, 1), run_dir / "server.log"
    if cell.outcome != "measured":
        said = diagnosed(prepared, log if log.is_file() else None)
        cell = msgspec.structs.replace(cell, diagnosis=said)
    return msgspec.structs.replace(cell, seconds=seconds)


def _reason(error: Exception) -> str:
    """The last line of the first traceback in the log, or what is said without one."""
    traceback = str(getattr(error, "traceback", None) or "").strip().splitlines()
    text = " ".join(traceback[-1].split())[:300] if traceback else one_line(error)
    return _SCRATCH.sub("", text)


def _counted(cell: Cell, found: Measurement, trial: Trial, seconds: float) -> Cell:
    folder = RunFolder(found.run_dir)
    steps = max(cell.steps, found.draft_tokens - 1) if cell.topk == 1 else cell.steps
    if found.seen is not None:
        cell = msgspec.structs.replace(
            cell,
            dropped=found.seen.dropped,
            uninitialised=found.seen.never_written,
            widths={f"{one.phase}:{one.width}": one.passes for one in found.seen.boundary},
        )
    cell = msgspec.structs.replace(cell, steps=steps, log_line=found.last_decode_line or "")
    asked = [one for one in folder.requests() if one.phase == "measured"]
    asked.sort(key=lambda one: one.index)
    by_id = _rounds(folder)
    rounds = [by_id.get(str(one.meta_info.get("id"))) for one in asked]
    whole = [row for row, one in zip(rounds, asked, strict=True) if _complete(row, one.meta_info)]
    if len(whole) == len(asked):
        return with_figures(cell, [row or [] for row in whole], found.outputs, trial, seconds=seconds)
    told = [next((one.meta_info[n] for n in HISTOGRAMS if n in one.meta_info), ()) for one in asked]
    histograms = tuple((*row, *[0] * (steps + 1 - len(row))) for row in told)
    return with_histograms(cell, histograms, found.outputs, trial, seconds=seconds)


def _complete(rounds: list[int] | None, meta: dict[str, object]) -> bool:
    return rounds is not None and len(rounds) == meta.get("spec_verify_ct")


def _rounds(folder: RunFolder) -> dict[str, list[int]]:
    """Accepted drafts of each verification by request, as the probe saw them in the first rank."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in folder.events()[:1]:
        for event in rank.of(Verified):
            for request, count in zip(event.requests, event.accepted, strict=False):
                found[request].append(count)
    return found
