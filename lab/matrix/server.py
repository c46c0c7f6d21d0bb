"""A cell measured by the release itself: a server started on this machine's CPU, asked, stopped, read."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from eagle3lab.acceptance.logs.summaries import HISTOGRAMS
from eagle3lab.errors import Eagle3labError
from eagle3lab.runs.events import Verified
from eagle3lab.runs.folder import EVENTS, RunFolder
from eagle3lab.serving.account import Measurement
from eagle3lab.serving.engine import find_engine
from eagle3lab.serving.errors import ServerError, ServerTimeout
from eagle3lab.serving.measure import measure
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.workload import Workload
from lab.matrix.measure import diagnosed, one_line, with_figures, with_histograms
from lab.matrix.prepare import Prepared, plan_of
from lab.matrix.records import Cell
from lab.specimen.trial import Trial

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
    log = run_dir / "server.log"
    said = diagnosed(prepared, log if log.is_file() else None)
    seconds = round(time.monotonic() - began, 1)
    return msgspec.structs.replace(cell, diagnosis=said, seconds=seconds)


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
