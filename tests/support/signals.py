"""Signals of the processes that tests start."""

from __future__ import annotations

import signal


def interruptible() -> None:
    """For a child to run first: one of a background job would inherit that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
