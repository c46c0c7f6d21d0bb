"""Where a rank's events go: into its file if there is one, and those of the start into memory for the guard."""

from __future__ import annotations

import os
import sys
import time
from typing import TypeVar

from eagle3lab.runs.events import Attached, Boundary, Counters, Event, EventWriter, Verified, rank_file
from eagle3lab.serving.probe import Settings

_E = TypeVar("_E", bound=Event)
# A capture or a sharing that is repeated for every batch size is told this often at most.
_MOST_AT_START = 64


class Recorder:
    """One rank's events.

    Attributes:
        writer: The file; None before `begin`, without an events folder, and once the disk refuses.
        start: The events of the start, in order.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.writer: EventWriter | None = None
        self.start: list[Event] = []

    def begin(self, attached: Attached) -> None:
        """Open the rank's file; the first event is `attached`."""
        if self._settings.events is not None:
            self.writer = EventWriter(rank_file(self._settings.events, attached.tp_rank, os.getpid()))
        self.emit(attached)

    def emit(self, event: Event) -> None:
        """Write one event. The first failure is told on stderr and is the last attempt."""
        if not isinstance(event, Boundary | Verified | Counters):
            if len(self.start) >= _MOST_AT_START:
                return
            self.start.append(event)
        if self.writer is None:
            return
        try:
            self.writer.write(event)
        except OSError as error:
            self.writer = None
            print(
                f"eagle3lab probe: no more events, the server goes on ({error.strerror})",
                file=sys.stderr,
                flush=True,
            )

    def last(self, kind: type[_E]) -> _E | None:
        """The last event of the start that is of this type."""
        return next((event for event in reversed(self.start) if isinstance(event, kind)), None)


def now() -> float:
    """Seconds since the epoch."""
    return time.time()
