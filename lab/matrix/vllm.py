"""A cell measured by vLLM itself: its engine run offline, in an environment of its own, on this machine's CPU.

Every fault is put into the head that SGLang's cells start from. vLLM counts layers without SGLang's shift by one and
reads more of config.json, so what is a fault there may be none here, and the other way round: such cells are measured
like all others. What is a fault of SGLang's command alone does not apply.
"""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import msgspec

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.ground_truth.process import EngineProcessError, engine_process
from eagle3lab.errors import InputError
from lab.faults import Served
from lab.matrix.cell import Prepared, described, one_line, put_in, unmeasured, with_figures
from lab.matrix.records import Cell
from lab.specimen.trial import Trial

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
    faults, cell = described(name, ENGINE, "server", trial, max_new_tokens)
    prepared = put_in(faults, cell, scratch)
    if prepared.served is not None and prepared.served.launch:
        return unmeasured(cell, "not applicable", _COMMAND_ONLY)
    return prepared


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
    return read_reply(cell, reply, served, trial, seconds=time.monotonic() - began)


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


def command(prepared: Prepared) -> str:
    """The launch command that serves it alike."""
    assert prepared.served is not None
    speculative = {
        "method": "eagle3",
        "model": str(prepared.served.drafter),
        "num_speculative_tokens": prepared.cell.steps,
    }
    words = ["vllm", "serve", str(prepared.served.target), "--speculative-config", json.dumps(speculative)]
    return shlex.join(words)
