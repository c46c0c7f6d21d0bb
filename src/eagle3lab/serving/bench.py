"""SGLang's own serving benchmark as a workload: `python -m sglang.bench_serving` against the running server.

It says how fast the server is. What it keeps of each answer holds no counts of drafts, so acceptance comes from the
probe's totals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.launch.secrets import redact_arguments
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import BENCH, BENCH_LOG, OVERLAY
from eagle3lab.serving.errors import ServerError
from eagle3lab.serving.logs import tail
from eagle3lab.serving.server import Server

_MODULE = "sglang.bench_serving"
_DEFAULT = (
    *("--dataset-name", "random-ids"),
    *("--num-prompts", "16"),
    *("--random-input-len", "64"),
    *("--random-output-len", "64"),
    *("--random-range-ratio", "1"),
    *("--max-concurrency", "4"),
)
_OURS = ("--backend", "--base-url", "--host", "--port", "--model", "--output-file")
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark with its own arguments.

    Attributes:
        arguments: As its `--help` lists them; address, model and output are added. Random token ids unless given.
    """

    arguments: Sequence[str] = _DEFAULT

    def __post_init__(self) -> None:
        for word in self.arguments:
            if word.partition("=")[0] in _OURS:
                raise InputError(f"{word} is set by the measurement", advice="Leave it out")

    @property
    def source(self) -> str:
        """What is asked, in words."""
        return f"{_MODULE} {' '.join(redact_arguments(self.arguments))}"

    def as_json(self) -> dict[str, Any]:
        """The workload as plain values, without secrets."""
        return {"kind": "bench", "arguments": redact_arguments(self.arguments)}


def run_bench(server: Server, bench: Bench, *, timeout_s: float = 7200.0) -> None:
    """Run the benchmark to its end; its result and its output are kept in the server's run folder.

    Raises:
        ServerDied: The server ended meanwhile.
        ServerError: The benchmark fails, or takes too long.
    """
    run_dir = server.run_dir
    words = [server.engine.python, "-m", _MODULE, "--backend", "sglang", "--base-url", server.url]
    words += ["--model", server.plan.model, "--output-file", str(run_dir / BENCH), *bench.arguments]
    path = [str(run_dir / OVERLAY), *map(str, server.engine.path), os.environ.get("PYTHONPATH", "")]
    environment = (
        os.environ | dict(server.plan.environment) | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    )
    if server.api_key is not None:
        environment["OPENAI_API_KEY"] = server.api_key
    output = run_dir / BENCH_LOG
    with output.open("wb") as file:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            _wait(server, process, time.monotonic() + timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for kept in (output, run_dir / BENCH):
                if kept.is_file():
                    text = kept.read_text(encoding="utf-8", errors="replace")
                    kept.write_text(server.redacted(text), encoding="utf-8")
    if process.returncode:
        server.wait_for_its_end()
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        raise ServerError(f"{_MODULE} ended with exit status {process.returncode}", tail=tail(lines))


def _wait(server: Server, process: subprocess.Popen[bytes], deadline: float) -> None:
    while process.poll() is None:
        server.check()
        if time.monotonic() > deadline:
            raise ServerError(f"{_MODULE} is not done in time")
        time.sleep(_POLL_S)
