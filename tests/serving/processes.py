"""Finding what a run left behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.serving.ports import is_free


@dataclass(frozen=True)
class Process:
    """One process; its start distinguishes it from a later one of the same number."""

    pid: int
    started: str
    title: str


def _stat(pid: int) -> list[str]:
    # After the command's name, which may hold anything: state, parent, …; the start time is the twentieth.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def processes_of(run_dir: Path) -> list[Process]:
    """The supervisor that writes this run's log, all its descendants, and whoever was given the run's overlay.

    The environment alone will not do: SGLang's ranks rename themselves, which overwrites it.
    """
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError):
            children.setdefault(int(_stat(pid)[1]), []).append(pid)
            if str(run_dir).encode() in Path(entry.path, "environ").read_bytes():
                found.add(pid)
            for descriptor in Path(entry.path, "fd").iterdir():
                if descriptor.readlink() == run_dir / "server.log":
                    found.add(pid)
    front = list(found)
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        found |= set(front)
    result = []
    for pid in found - {os.getpid()}:
        with contextlib.suppress(OSError):
            if _stat(pid)[0] == "Z":  # gone, and holding nothing; its parent has not asked yet
                continue
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            result.append(Process(pid, _stat(pid)[19], title))
    return result


def _alive(process: Process) -> bool:
    try:
        stat = _stat(process.pid)
        return stat[19] == process.started and stat[0] != "Z"
    except OSError:
        return False


def assert_nothing_left(run_dir: Path, port: int | None = None, known: Iterable[Process] = ()) -> None:
    """No process of the run is left, those `known` from its life included, and its port is free."""
    left = [*processes_of(run_dir), *(process for process in known if _alive(process))]
    assert not left, left
    assert port is None or is_free(port), f"port {port} is still held"


def wait_until_gone(run_dir: Path, port: int | None, known: Iterable[Process], seconds: float = 15.0) -> None:
    """Wait for the end of a run whose owner is gone, and assert it; a start that was under way may still come up."""
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        try:
            assert_nothing_left(run_dir, port, known)
            quiet += 1
        except AssertionError:
            quiet = 0
        time.sleep(0.15)
    assert_nothing_left(run_dir, port, known)
