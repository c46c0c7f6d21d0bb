"""A drafter served and measured: start, ask, stop, sum up; or a server that already runs, asked and summed up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3lab import __version__
from eagle3lab.engines.launch.secrets import redact_text
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import (
    EVENTS,
    LOG,
    MEASUREMENT,
    METRICS_AFTER,
    METRICS_BEFORE,
    PLAN,
    SERVER_INFO,
    VERSIONS,
    RunFolder,
)
from eagle3lab.serving.account import Measurement, account
from eagle3lab.serving.client import RunningServer, ServerError
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.logs import Progress
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import LaunchPlan, plan_of_server
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.report import as_json
from eagle3lab.serving.server import Server, check_is_unused
from eagle3lab.serving.workload import (
    Answered,
    Bench,
    Workload,
    keep_metrics,
    keep_server_info,
    run_bench,
    run_workload,
)

_METRICS = "--enable-metrics"
# What decides, beside the engine itself, which numbers come out.
_PACKAGES = (
    "sglang",
    "torch",
    "transformers",
    "tokenizers",
    "triton",
    "numpy",
    "flashinfer-python",
    "sgl-kernel",
)
_ASK_VERSIONS = """
import importlib.metadata as m, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""


def measure(
    plan: LaunchPlan,
    engine: Engine,
    workload: Workload | Bench,
    run_dir: str | Path,
    *,
    probe: bool = True,
    tensors: int = 0,
    overlay: Overlay | None = None,
    progress: Callable[[Progress], None] | None = None,
    answered: Answered | None = None,
    start_timeout_s: float = 1800.0,
    stall_s: float | None = None,
) -> Measurement:
    """Start a server with its metrics on, put the workload to it, stop it, and sum up what it left behind.

    Args:
        plan: What to serve and how.
        engine: The release.
        workload: What to ask. With SGLang's benchmark acceptance is counted by the probe alone.
        run_dir: A new folder, which keeps everything about the run.
        probe: Watch the drafter from inside; where the release cannot be attached to, the server runs all the same.
        tensors: Passes of the drafter whose tensors the probe keeps, for a comparison with the trainer's forward pass.
        overlay: What else to put into the engine.
        progress: Called with each new thing the starting server is seen to do.
        answered: Called with each answer.
        start_timeout_s: Longest time until the server is ready.
        stall_s: Longest time without a word in the log or an answer; None for no limit.

    Raises:
        InputError: Something that the plan names is missing, or it has no drafter.
        ServerError: The server does not start, ends, does not answer, or does not speculate. What it left behind is
            in the run folder.
    """
    if plan.drafter is None and plan.algorithm is None:
        raise InputError("the plan has no drafter to measure", advice="Set drafter and algorithm")
    if isinstance(workload, Bench) and not probe:
        raise InputError(
            "SGLang's benchmark counts no drafts", advice="Leave the probe in, or give prompts instead"
        )
    run_dir = Path(run_dir).absolute()
    overlay = overlay or Overlay()
    if probe:
        overlay |= probe_overlay(events=run_dir / EVENTS, tensors=tensors)
    if _METRICS not in plan.extra:
        plan = replace(plan, extra=(*plan.extra, _METRICS))
    with _told(run_dir):
        server = Server.start(
            plan,
            run_dir,
            engine,
            overlay=overlay,
            progress=progress,
            timeout_s=start_timeout_s,
            stall_s=stall_s,
        )
        with server:
            folder = RunFolder(run_dir)
            _write_json(run_dir / VERSIONS, _versions(engine))
            if isinstance(workload, Bench):
                keep_metrics(server, run_dir / METRICS_BEFORE)
                run_bench(server, workload)
                keep_metrics(server, run_dir / METRICS_AFTER)
                keep_server_info(server, run_dir / SERVER_INFO)
            else:
                run_workload(server, workload, folder, answered=answered, stall_s=stall_s)
        # Only now are the events complete.
        return _summed_up(folder, workload)


def measure_running(
    server: RunningServer,
    workload: Workload,
    run_dir: str | Path,
    *,
    answered: Answered | None = None,
    stall_s: float | None = None,
) -> Measurement:
    """Put the workload to a server that somebody else started, and sum up. It goes on running.

    Args:
        server: From `attach`.
        workload: What to ask.
        run_dir: A new folder. Of the server's log, the part written meanwhile is copied into it.
        answered: Called with each answer.
        stall_s: Longest time without a word in the log or an answer; None for no limit.

    Raises:
        InputError: The run folder is in use.
        ServerError: The server ends, does not answer, or does not speculate.
    """
    run_dir = Path(run_dir).absolute()
    check_is_unused(run_dir)
    info = server.server_info()
    version = info.get("version")
    release = version if isinstance(version, str) else None
    plan = plan_of_server(info)
    with _told(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(run_dir)
        described = {"kind": "sglang", "release": release, "attached": redact_text(server.url, ())}
        _write_json(run_dir / PLAN, {"engine": described, "plan": plan.as_json()})
        begin = server.log.stat().st_size if server.log is not None else 0
        try:
            run_workload(server, workload, folder, answered=answered, stall_s=stall_s)
        finally:
            _copy_log(server, begin, run_dir / LOG)
        return _summed_up(folder, workload)


def _summed_up(folder: RunFolder, workload: Workload | Bench) -> Measurement:
    measurement = account(folder)
    _write_json(folder.path / MEASUREMENT, as_json(measurement, workload))
    return measurement


@contextmanager
def _told(run_dir: Path) -> Iterator[None]:
    """A run folder on a full or a read-only disk is said as such."""
    try:
        yield
    except OSError as error:
        where = error.filename or run_dir
        raise ServerError(f"the run folder cannot be written: {where}: {error.strerror or error}") from None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _versions(engine: Engine) -> dict[str, str]:
    """Versions by package, as the engine's own environment has them."""
    asked = [engine.python, "-c", _ASK_VERSIONS, *_PACKAGES]
    answer = subprocess.run(asked, capture_output=True, timeout=60, check=False)
    found: dict[str, str] = json.loads(answer.stdout) if answer.returncode == 0 else {}
    # A release that lies beside the environment is not the one that is installed in it.
    return {"eagle3lab": __version__} | found | {"sglang": engine.release}


def _copy_log(server: RunningServer, begin: int, to: Path) -> None:
    if server.log is None:
        return
    with server.log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    to.write_text(server.redacted(text), encoding="utf-8")
