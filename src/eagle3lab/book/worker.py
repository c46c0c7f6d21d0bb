"""One chapter, executed: the process that `runner` starts for each notebook; and how processes are ended.

It runs the notebook by papermill on a kernel of this very interpreter, writes one JSON line per event to a pipe, and
leaves no process behind. Run as `python -m eagle3lab.book.worker JOB_FILE`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from eagle3lab.book.chapters import Failure, collect_claims, numbered
from eagle3lab.book.parameters import declared_in

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def bind_to_parent(parent: int) -> None:
    """On Linux: end with process `parent`, and adopt orphaned descendants so that none is out of reach.

    A kernel starts in a session of its own and a server that a chapter launched may too, so neither process
    groups nor a closed terminal reaches them; parenthood does.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGTERM)


def descendants(pid: int) -> list[psutil.Process]:
    """All living processes below `pid`."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process], grace: float) -> None:
    """Ask `processes` to end, and kill those that have not done so after `grace` seconds."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


KERNEL = "python3"
_GRACE = 3.0  # seconds for a chapter's own processes to end when asked
_SOURCE_LINES = 12
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main(job_file: str) -> None:
    """Run the job that `pool.Pool.start` wrote."""
    job = json.loads(Path(job_file).read_text("utf-8"))
    bind_to_parent(job["parent"])
    signal.signal(signal.SIGTERM, _stop_everything)
    with os.fdopen(job["pipe"], "w", encoding="utf-8") as pipe, tempfile.TemporaryDirectory() as scratch:

        def emit(event: str, **fields: object) -> None:
            print(json.dumps({"event": event, **fields}), file=pipe, flush=True)

        _use_own_kernel(Path(scratch))
        started = time.monotonic()
        try:
            failure = execute(
                Path(job["notebook"]), Path(job["output"]), job["parameters"], job["cell_timeout"], emit
            )
        finally:
            end(descendants(os.getpid()), _GRACE)
        emit(
            "end",
            seconds=time.monotonic() - started,
            failure=asdict(failure) if failure is not None else None,
        )


def execute(
    notebook: Path,
    output: Path,
    parameters: dict[str, Any],
    cell_timeout: int,
    emit: Callable[..., None] = lambda event, **fields: None,
) -> Failure | None:
    """Execute `notebook` into `output` and say what is wrong with the run, if anything is."""
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    try:
        source = nbformat.read(notebook, as_version=4)
    except Exception as error:  # nbformat raises what json and jsonschema raise
        return Failure("unreadable", f"not a notebook ({error})")
    unknown = parameters.keys() - declared_in(source.cells).keys()
    if unknown:
        return Failure("parameter", f"no parameter called {', '.join(sorted(unknown))}")
    emit("start", cells=sum(1 for _ in numbered(source.cells)))
    begun: list[str] = []  # the sources of the cells that were started

    def on_cell_start(cell: Any, cell_index: int) -> None:
        if cell.cell_type == "code" and cell.source.strip():
            begun.append(cell.source)
            emit("cell", number=len(begun))

    def here(kind: str, message: str, traceback: str = "") -> Failure:
        return Failure(kind, message, len(begun) or None, _excerpt(begun[-1]) if begun else "", traceback)

    try:
        papermill.execute_notebook(
            notebook,
            output,
            parameters,
            kernel_name=KERNEL,
            progress_bar=False,
            execution_timeout=cell_timeout,
            cwd=notebook.parent,
            on_cell_start=on_cell_start,
        )
    except PapermillExecutionError as error:
        kind = "claim" if error.ename == "ClaimFailed" else "error"
        return here(kind, f"{error.ename}: {error.evalue}", _COLOUR.sub("", "\n".join(error.traceback)))
    except CellTimeoutError:
        return here("timeout", f"the cell took longer than {cell_timeout} s")
    except DeadKernelError:
        return here("dead-kernel", "the kernel died while it ran the cell")
    except (
        Exception
    ) as error:  # a kernel that does not start, a disk that is full: still one chapter's failure
        return here("crash", f"{type(error).__name__}: {error}")
    return _shortfall(nbformat.read(output, as_version=4).cells)


def _shortfall(cells: list[Any]) -> Failure | None:
    """What papermill lets pass: an exit, cells that never ran, a chapter that claims nothing."""
    never: list[int] = []
    for number, cell in numbered(cells):
        if any(output.get("ename") == "SystemExit" for output in cell["outputs"]):
            return Failure(
                "exit", "the cell left the chapter by SystemExit", number, _excerpt(cell["source"])
            )
        if cell["execution_count"] is None:
            never.append(number)
    if never:
        return Failure("never-ran", f"cells that never ran: {', '.join(map(str, never))}", never[0])
    if not collect_claims(cells):
        return Failure("no-claim", "the chapter makes no claim")
    return None


def _excerpt(source: str) -> str:
    lines = source.splitlines()
    return "\n".join(lines[:_SOURCE_LINES] + (["…"] if len(lines) > _SOURCE_LINES else []))


def _use_own_kernel(scratch: Path) -> None:
    """Make "python3" mean this interpreter, and keep the user's IPython profile out of the chapters.

    A kernelspec of that name registered on the machine may start another environment's Python.
    """
    spec = scratch / "kernels" / KERNEL
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8"
    )
    inherited = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = os.pathsep.join([str(scratch), *([inherited] if inherited else [])])
    os.environ["IPYTHONDIR"] = str(scratch / "ipython")
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"  # figures as data, whatever the user's shell prefers


def _stop_everything(number: int, frame: FrameType | None) -> None:
    end(descendants(os.getpid()), _GRACE)
    os._exit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1])
