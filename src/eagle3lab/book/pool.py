"""The processes in which chapters run, one each, and how all of them are stopped."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3lab.book import processes
from eagle3lab.book.chapters import Layout

RUNS_VARIABLE = "EAGLE3LAB_BOOK_RUNS"
"""Names the folder in which the chapters of one build share their runs of servers (`shared_runs`)."""

_STOP_GRACE = 8.0  # seconds for a worker to stop its kernel and what the chapter started


@dataclass(slots=True)
class Worker:
    """A chapter's process: what it was given, where it writes, and its `end` event once it has sent it."""

    notebook: Path
    digest: str
    parameters: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    output: Path
    log: Path
    began: float
    end: dict[str, Any] | None = None


@dataclass(slots=True)
class Pool:
    """The workers that run, and one queue of what they report: (chapter, event), None once one has ended."""

    layout: Layout
    scratch: Path
    cell_timeout: int
    threads: int
    events: queue.SimpleQueue[tuple[str, dict[str, Any] | None]] = field(default_factory=queue.SimpleQueue)
    workers: dict[str, Worker] = field(default_factory=dict)

    def start(self, notebook: Path, known: str, parameters: Mapping[str, Any]) -> None:
        """Start a worker for `notebook`, whose run has digest `known`."""
        chapter = notebook.stem
        output = self.scratch / notebook.name
        log = self.layout.logs / f"{chapter}.log"
        read_end, write_end = os.pipe()
        job = {
            "notebook": str(notebook),
            "output": str(output),
            "parameters": parameters,
            "cell_timeout": self.cell_timeout,
            "parent": os.getpid(),
            "pipe": write_end,
        }
        job_file = self.scratch / f"{chapter}.job.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        environment = {
            "OMP_NUM_THREADS": str(self.threads),
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            RUNS_VARIABLE: str(self.scratch / "runs"),
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "eagle3lab.book.worker", str(job_file)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the workers
            )
        os.close(write_end)
        self.workers[chapter] = Worker(notebook, known, parameters, process, output, log, time.monotonic())
        threading.Thread(target=self._listen, args=(chapter, read_end), daemon=True).start()

    def _listen(self, chapter: str, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8") as pipe:
            for line in pipe:
                self.events.put((chapter, json.loads(line)))
        self.events.put((chapter, None))  # the pipe is closed: the worker has ended

    def stop(self) -> None:
        """End every worker, its kernel and what its chapter started."""
        below = [
            process
            for worker in self.workers.values()
            for process in processes.descendants(worker.process.pid)
        ]
        for worker in self.workers.values():
            worker.process.terminate()
        deadline = time.monotonic() + _STOP_GRACE
        for worker in self.workers.values():
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        processes.stop([process for process in below if process.is_running()], 1.0)
