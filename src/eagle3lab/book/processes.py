"""Processes that end with the one that started them: kernels, and whatever a chapter started in one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

import psutil

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


def stop(processes: Sequence[psutil.Process], grace: float) -> None:
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
