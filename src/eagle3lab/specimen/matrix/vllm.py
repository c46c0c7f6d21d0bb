"""A cell measured by vLLM itself: its engine run offline, in an environment of its own, on this machine's CPU.

Every fault is put into the head that SGLang's cells start from. vLLM counts layers without SGLang's shift by one and
reads more of config.json, so what is a fault there may be none here, and the other way round: such cells are measured
like all others. What is a fault of SGLang's command alone does not apply.
"""

from __future__ import annotations

import json
import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from eagle3lab.engines import resolve_engine
from eagle3lab.engines.ground_truth.process import EngineProcessError, engine_process
from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.specimen.faults import FAULTS, Served, inject, write_healthy
from eagle3lab.specimen.faults.train import trained_head
from eagle3lab.specimen.matrix.measure import LAUNCH, Prepared, one_line, with_figures
from eagle3lab.specimen.matrix.records import HEALTHY, Cell, Diagnosed
from eagle3lab.specimen.trial import Trial

ENGINE = "vllm==0.32.0"
WORKER = Path(__file__).with_name("vllm_worker.py")
#: Seconds until a cell counts as hanging, and until its process counts as dead.
LIMIT_S, GIVE_UP_S = 120.0, 150.0
_COMMAND_ONLY = (
    "a fault of SGLang's command: vLLM is told a method and a number of drafts, and drafts chains alone"
)


def prepare(name: str, trial: Trial, max_new_tokens: int, scratch: Path) -> Prepared:
    """Put the fault in and say what there is to measure.

    Args:
        name: Of the fault; `healthy` for none.
        trial: Target and prompts.
        max_new_tokens: Length at which an answer is cut.
        scratch: An empty folder of this cell's own.

    Raises:
        InputError: There is no such fault, or its injector changed nothing.
    """
    one = FAULTS.get(name)
    if one is None and name != HEALTHY:
        raise InputError(f"there is no fault called {name!r}")
    cell = Cell(
        fault=name,
        slug=one.slug if one else HEALTHY,
        engine=ENGINE,
        way="server",
        outcome="measured",
        change=one.change if one else "Nothing: the specimen's own head.",
        expected=one.expected if one else "a working head",
        prompts=len(trial.prompts),
        max_new_tokens=max_new_tokens,
        made=datetime.now(UTC).date().isoformat(),
    )

    def without(outcome: str, detail: str) -> Prepared:
        return Prepared(msgspec.structs.replace(cell, outcome=outcome, detail=detail), None)

    source = None
    if one is not None and one.training is not None:
        try:
            source = trained_head(one.training)
        except InputError as error:
            return without("not made", error.problem)
    served = write_healthy(scratch / "healthy", source)
    if one is not None:
        served = inject(one, served, scratch / "faulty")
    if served.launch:
        return without("not applicable", _COMMAND_ONLY)
    figures = {"steps": LAUNCH["steps"], "topk": LAUNCH["topk"], "draft_tokens": LAUNCH["draft_tokens"]}
    return Prepared(msgspec.structs.replace(cell, **figures), served)


def by_vllm(prepared: Prepared, trial: Trial) -> Cell:
    """Load, answer and count; an engine that stops or hangs is a result too.

    Raises:
        InputError: The release is not on this machine, or nothing is to be served.
        EngineProcessError: Its environment does not start.
    """
    if prepared.served is None:
        raise InputError(f"there is nothing to serve for {prepared.cell.fault}")
    cell, served, began = prepared.cell, prepared.served, time.monotonic()
    process = engine_process(resolve_engine(cell.engine), WORKER)
    try:
        reply = process.ask(
            {
                "target": str(served.target),
                "drafter": str(served.drafter),
                "steps": cell.steps,
                "prompts": trial.prompts,
                "stop_ids": trial.stop_ids,
                "max_new_tokens": cell.max_new_tokens,
                "limit_s": LIMIT_S,
            },
            GIVE_UP_S,
        )
    except EngineProcessError as error:
        reply = {"stops": str(error).partition("\n")[0]}
    cell = read_reply(cell, reply, served, trial, seconds=time.monotonic() - began)
    return msgspec.structs.replace(cell, diagnosis=diagnosed(prepared))


def read_reply(cell: Cell, reply: dict[str, Any], served: Served, trial: Trial, *, seconds: float) -> Cell:
    """The cell with what the worker said of it: figures, or why there are none."""
    cell = msgspec.structs.replace(cell, versions=reply.get("versions", {}), seconds=round(seconds, 1))
    for outcome in ("stops", "timeout"):
        if outcome in reply:
            text = (
                reply[outcome].replace(str(served.drafter), "drafter").replace(str(served.target), "target")
            )
            return msgspec.structs.replace(cell, outcome=outcome, detail=one_line(ValueError(text)))
    return with_figures(cell, reply["rounds"], reply["outputs"], trial, seconds=seconds)


def command(served: Served, steps: int) -> str:
    """The launch command that serves it alike."""
    speculative = {"method": "eagle3", "model": str(served.drafter), "num_speculative_tokens": steps}
    words = ["vllm", "serve", str(served.target), "--speculative-config", json.dumps(speculative)]
    return shlex.join(words)


def diagnosed(prepared: Prepared) -> Diagnosed | None:
    """What the diagnosis says of the faulty folder and the command; None where nothing is served."""
    from eagle3lab.diagnosis import diagnose

    if prepared.served is None:
        return None
    cell, served = prepared.cell, prepared.served
    try:
        said = diagnose(
            served.drafter, target=served.target, engine=ENGINE, launch=command(served, cell.steps)
        )
    except Eagle3labError as error:
        return Diagnosed(verdict="unknown", title=one_line(error))
    if not said.findings:
        return Diagnosed(verdict=str(said.verdict), named=cell.slug == HEALTHY)
    first = said.findings[0]
    place = next((n for n, found in enumerate(said.findings, 1) if found.fault == cell.slug), None)
    return Diagnosed(
        verdict=str(said.verdict),
        first=first.fault,
        code=first.code,
        confidence=round(first.confidence, 3),
        title=first.title,
        named=place == 1,
        place=place,
    )
