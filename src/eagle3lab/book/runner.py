"""Run chapters in parallel processes, each by papermill; report every failure; collect the claims."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from eagle3lab.book.chapters import (
    ChapterRun,
    Failure,
    Layout,
    collect_claims,
    digest_of_chapter,
    read_record,
    surroundings,
    write_claims,
)
from eagle3lab.book.worker import descendants, end

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
        below = [process for worker in self.workers.values() for process in descendants(worker.process.pid)]
        for worker in self.workers.values():
            worker.process.terminate()
        deadline = time.monotonic() + _STOP_GRACE
        for worker in self.workers.values():
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        end([process for process in below if process.is_running()], 1.0)


class Observer:
    """Told how the run goes, from one thread; this one does nothing with it."""

    def started(self, chapter: str, cells: int) -> None:
        """The chapter's kernel is about to run `cells` code cells."""

    def cell(self, chapter: str, number: int) -> None:
        """The chapter's cell `In [number]` starts."""

    def finished(self, run: ChapterRun) -> None:
        """The chapter is done, by running or from the cache."""


def run(
    layout: Layout,
    notebooks: Sequence[Path],
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    jobs: int | None = None,
    force: bool = False,
    cell_timeout: int = 600,
    observer: Observer | None = None,
) -> list[ChapterRun]:
    """Run `notebooks`, skip those whose last run still counts, and write `claims.json`.

    Args:
        layout: The project; executed notebooks and records go to `layout.executed`.
        notebooks: The chapters' files.
        parameters: Chapter to its parameters, already checked against what it declares.
        jobs: How many chapters at once; the number of CPUs by default.
        force: Run even what is unchanged.
        cell_timeout: Seconds that a single cell may take.
        observer: Told about progress.

    Returns:
        One run per notebook, in their order. A run that failed has its `failure`; nothing is raised for it.
    """
    observer = observer or Observer()
    for folder in (layout.executed, layout.failed, layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    around = surroundings(layout.root)
    runs: dict[str, ChapterRun] = {}
    todo: list[tuple[Path, str, Mapping[str, Any]]] = []
    for notebook in notebooks:
        given = (parameters or {}).get(notebook.stem, {})
        known = digest_of_chapter(notebook, given, around)
        record = None if force else _usable_record(layout, notebook.stem, known)
        if record is not None:
            runs[notebook.stem] = record
            observer.finished(record)
        else:
            todo.append((notebook, known, given))
    cpus = os.cpu_count() or 1
    width = max(1, min(jobs or cpus, len(todo)))
    with tempfile.TemporaryDirectory(prefix="eagle3lab-book-") as scratch:
        pool = Pool(layout, Path(scratch), cell_timeout, threads=max(1, cpus // width))
        try:
            while todo or pool.workers:
                while todo and len(pool.workers) < width:
                    pool.start(*todo.pop(0))
                chapter, event = pool.events.get()
                if event is None:
                    finished = _finish(layout, pool.workers.pop(chapter))
                    runs[chapter] = finished
                    observer.finished(finished)
                elif event["event"] == "start":
                    observer.started(chapter, event["cells"])
                elif event["event"] == "cell":
                    observer.cell(chapter, event["number"])
                else:
                    pool.workers[chapter].end = event
        finally:
            pool.stop()
    write_claims(layout)
    return [runs[notebook.stem] for notebook in notebooks]


def _usable_record(layout: Layout, chapter: str, known: str) -> ChapterRun | None:
    """The chapter's last run, if it succeeded, has digest `known` and its notebook is still there."""
    record = read_record(layout, chapter)
    if record is None or record.failure is not None or record.digest != known:
        return None
    return record if (layout.executed / f"{chapter}.ipynb").is_file() else None


def _finish(layout: Layout, worker: Worker) -> ChapterRun:
    """Judge the ended worker, move its notebook where it belongs and keep the record."""
    status = worker.process.wait()
    seconds = time.monotonic() - worker.began
    if worker.end is None:
        tail = "\n".join(worker.log.read_text("utf-8", errors="replace").splitlines()[-30:])
        failure: Failure | None = Failure("crash", f"the worker ended with status {status}", traceback=tail)
    else:
        failure = Failure(**worker.end["failure"]) if worker.end["failure"] else None
        seconds = worker.end["seconds"]
    chapter = worker.notebook.stem
    claims = collect_claims(_cells(worker.output))
    result = ChapterRun(chapter, worker.digest, worker.parameters, round(seconds, 2), claims, failure)
    executed, failed = layout.executed / worker.notebook.name, layout.failed / worker.notebook.name
    executed.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    if worker.output.is_file():
        shutil.move(worker.output, executed if failure is None else failed)
    (layout.executed / f"{chapter}.json").write_bytes(msgspec.json.encode(result))
    return result


def _cells(notebook: Path) -> list[dict[str, Any]]:
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    return cells if isinstance(cells, list) else []
