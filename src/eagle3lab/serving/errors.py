"""What can go wrong with a live server."""

from __future__ import annotations

from eagle3lab.errors import Eagle3labError


class ServerError(Eagle3labError):
    """A server did not start, did not answer, or could not be watched.

    Attributes:
        traceback: The first traceback that any of its processes wrote, or an empty string.
        tail: The log's last lines.
    """

    def __init__(self, problem: str, *, traceback: str = "", tail: str = "") -> None:
        self.problem = problem
        self.traceback = traceback
        self.tail = tail
        if traceback:
            super().__init__(f"{problem}. The first traceback in its log:\n{traceback}")
        elif tail:
            super().__init__(f"{problem}. The end of its log:\n{tail}")
        else:
            super().__init__(problem)


class ServerDied(ServerError):
    """The server's process ended while it was needed."""


class ServerRefused(ServerError):
    """The server answered a request with an error: it lives."""


class ServerTimeout(ServerError):
    """The server was not ready, or did not answer, in the time it was given."""
