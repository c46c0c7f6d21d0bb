"""Run chapters in parallel processes, each by papermill; report every failure; collect the claims."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from eagle3lab.book import digest
from eagle3lab.book.chapters import ChapterRun, Failure, Layout, collect_claims, read_record
from eagle3lab.book.collection import write_claims
from eagle3lab.book.pool import Pool, Worker


class Observer(Protocol):
    """Told how the run goes, from one thread."""

    def started(self, chapter: str, cells: int) -> None:
        """The chapter's kernel is about to run `cells` code cells."""

    def cell(self, chapter: str, number: int) -> None:
        """The chapter's cell `In [number]` starts."""

    def finished(self, run: ChapterRun) -> None:
        """The chapter is done, by running or from the cache."""


class Silent:
    """An observer that does nothing."""

    def started(self, chapter: str, cells: int) -> None:
        """Do nothing."""

    def cell(self, chapter: str, number: int) -> None:
        """Do nothing."""

    def finished(self, run: ChapterRun) -> None:
        """Do nothing."""


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
    observer = observer or Silent()
    for folder in (layout.executed, layout.failed, layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    around = digest.surroundings(layout.root)
    runs: dict[str, ChapterRun] = {}
    todo: list[tuple[Path, str, Mapping[str, Any]]] = []
    for notebook in notebooks:
        given = (parameters or {}).get(notebook.stem, {})
        known = digest.of_chapter(notebook, given, around)
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
    (layout.executed / f"{chapter}.json").write_text(result.to_json(), encoding="utf-8")
    return result


def _cells(notebook: Path) -> list[dict[str, Any]]:
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    return cells if isinstance(cells, list) else []
