"""Runs of real servers that several chapters show: each served once in a build of the book.

A run is known by what decides its outcome: the content of target and drafter, the rest of the plan, the release, the
workload, what was put into the engine. The first chapter that asks for it starts the server; another that asks for
the same reads the run folder that the first one left. The folder belongs to the build (`RUNS_VARIABLE` names it) and
is gone with it, so nothing is older than the page that shows it; a notebook run by hand has a folder of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.book.runner import RUNS_VARIABLE
from eagle3lab.repair.journal import JOURNAL
from eagle3lab.runs.folder import MEASUREMENT, RunFolder
from eagle3lab.serving.account import Measurement, account
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.measure import measure
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.workload import Workload


def shared_run(
    plan: LaunchPlan, engine: Engine, workload: Workload, *, overlay: Overlay | None = None
) -> Measurement:
    """The measurement of this very run, made now or earlier in the same build.

    Args:
        plan: What to serve and how.
        engine: The release.
        workload: What to ask.
        overlay: What else to put into the engine, beside the probe.

    Raises:
        InputError, ServerError: As `eagle3lab.serving.measure.measure`; the next chapter then tries again.
    """
    folder = _folder() / _key(plan, engine, workload, overlay)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The lock is the kernel's: it ends with the chapter that holds it, however that ends.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / MEASUREMENT).is_file():
            return account(RunFolder(folder))
        shutil.rmtree(folder, ignore_errors=True)
        return measure(plan, engine, workload, folder, overlay=overlay)


def _folder() -> Path:
    named = os.environ.get(RUNS_VARIABLE)
    return Path(named) if named else Path(_own_folder().name)


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """For a notebook run by hand; removed as its kernel ends."""
    return tempfile.TemporaryDirectory(prefix="eagle3lab-runs-")


def _key(plan: LaunchPlan, engine: Engine, workload: Workload, overlay: Overlay | None) -> str:
    described: dict[str, Any] = plan.as_json()
    for name in ("model", "drafter"):
        path = described[name]
        if path is not None and Path(path).is_dir():
            described[name] = _content(Path(path))
    parts = [described, engine.release, engine.python, asdict(workload), asdict(overlay or Overlay())]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _content(folder: Path) -> dict[str, str]:
    """Digests of a checkpoint's files by name; what a repair notes about itself, path and date included, is none."""
    digests = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in (JOURNAL, "README.md"):
            with file.open("rb") as opened:
                digests[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return digests
