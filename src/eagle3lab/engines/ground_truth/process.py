"""The release's process: started once, kept, asked in JSON lines, and gone with its children when we are."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.ground_truth.locate import find_installation
from eagle3lab.errors import Eagle3labError, InputError

START_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 600.0
_WORKERS = {
    "sglang": Path(__file__).with_name("worker.py"),
    "vllm": Path(__file__).with_name("vllm_worker.py"),
}
_TAIL = 4000


class EngineProcessError(Eagle3labError):
    """The release's own code failed in a way that is not part of loading a checkpoint."""


class EngineProcess:
    """A process in which one release is imported.

    Args:
        engine: The release.
        worker: The script that it runs; the one that loads checkpoints by default.

    Raises:
        InputError: The release or torch is not on this machine.
        EngineProcessError: It does not start.
    """

    def __init__(self, engine: EngineFacts, worker: Path | None = None) -> None:
        if engine.kind == "sglang" and find_spec("torch") is None:
            raise InputError(
                "torch is not installed, so the engine's own loader cannot be run",
                advice="Run `make setup` in the project.",
            )
        self._engine = engine
        installation = find_installation(engine)
        self._folder = installation.folder
        worker = worker or _WORKERS[engine.kind]
        self._lock = threading.Lock()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [str(installation.python or sys.executable), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environment(),
            start_new_session=True,
        )
        self._buffer = b""
        ready = self._read_line(START_TIMEOUT_S)
        if engine.root is not None:
            # A checkout need not know its number; that it is the one asked for shows in where it lies.
            # Its files may be links, as some installers make them.
            if self._folder != Path(str(ready.get("file"))).parent.resolve().parent:
                self.close()
                raise EngineProcessError(f"{engine.root} was asked for, but {ready.get('file')} was imported")
        elif ready.get("ready") != engine.release:
            self.close()
            raise EngineProcessError(f"{engine.spec} was asked for, but {ready.get('ready')} was imported")

    def ask(self, request: dict[str, Any], timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Raises:
            EngineProcessError: No reply in time, or the process failed.
        """
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._failure("has stopped") from None
            reply = self._read_line(timeout_s)
        if "failure" in reply:
            raise self._failure(f"failed: {reply['failure']}\n{reply.get('traceback', '')}")
        return reply

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Kill the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",  # loading is watched on the CPU, whatever the machine has
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "false",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
        }
        # With it set, the release takes its CPU engine's paths through the weight loaders, not a GPU's.
        environment.pop("SGLANG_USE_CPU_ENGINE", None)
        if self._folder is not None:
            paths = [str(self._folder), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return environment

    def _read_line(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                failure = self._failure(f"gave no answer within {timeout_s:.0f} s")
                self.close()
                raise failure
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise self._failure("has stopped")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _failure(self, what: str) -> EngineProcessError:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _TAIL))
        tail = self._stderr.read().decode(errors="replace").strip()
        return EngineProcessError(
            f"the process of {self._engine.spec} {what}" + (f"\n{tail}" if tail else "")
        )


_PROCESSES: dict[tuple[str, str | None, Path | None], EngineProcess] = {}


def engine_process(engine: EngineFacts, worker: Path | None = None) -> EngineProcess:
    """The process of this release that runs `worker`, started at the first call."""
    key = (engine.spec, engine.root, worker)
    process = _PROCESSES.get(key)
    if process is None or not process.alive:
        process = _PROCESSES[key] = EngineProcess(engine, worker)
    return process


@atexit.register
def close_all() -> None:
    """End every process that was started here."""
    while _PROCESSES:
        _PROCESSES.popitem()[1].close()


LIMIT_SECONDS = 300.0


def ask_release(release: str, worker: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of a worker script in which this release of SGLang can be imported, on the CPU and offline.

    Args:
        release: A release in the atlas that is installed here.
        worker: The script: speaks as `worker.py` does.
        request: What it is asked, as JSON values.

    Raises:
        InputError: The release is not on this machine.
        EngineProcessError: The process failed or took longer than `LIMIT_SECONDS`.
    """
    from eagle3lab.engines.atlas.data import release_facts

    try:
        engine = release_facts(release).engine_facts()
    except KeyError:
        raise InputError(f"there is no release {release} of SGLang in the atlas") from None
    with closing(EngineProcess(engine, worker)) as process:
        return process.ask(dict(request), LIMIT_SECONDS)
