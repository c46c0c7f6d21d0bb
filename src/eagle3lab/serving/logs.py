"""Reading a server's log: what it is doing now, and what went wrong first."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.acceptance.tracebacks import SERVES
from eagle3lab.text import printable

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ?")
_MOST_LINES = 80

_STAGES = (
    ("answering", re.compile(r"fired up and ready to roll")),
    ("warming up", re.compile(r"Uvicorn running on|Prefill batch|Application startup complete")),
    ("capturing CUDA graphs", re.compile(r"[Cc]aptur\w+ .*graph|Capturing batches")),
    ("making room for the key/value cache", re.compile(r"KV Cache is allocated|Memory pool end")),
    ("loading weights", re.compile(r"[Ll]oad(?:ing)? weight|(?:checkpoint|loading) shards")),
    ("connecting its ranks", re.compile(r"Init torch distributed begin")),
    ("reading its arguments", re.compile(r"server_args=|ServerArgs\(")),
)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a starting server is doing.

    Attributes:
        stage: In a few words: `loading weights`.
        detail: The line of the log that says so, without its timestamp, made safe to show.
        elapsed_s: Seconds since the start.
    """

    stage: str
    detail: str
    elapsed_s: float


class Tail:
    """A log that is being written, read once, line by line.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._pending = ""
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def new_lines(self) -> list[str]:
        """The lines completed since the last time; each state of a progress bar is one."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._pending = (self._pending + self._decoder.decode(data)).replace("\r", "\n").split("\n")
        return lines


def stage_of(line: str) -> str | None:
    """What a line of the log says the server is doing, or None if it says nothing of that."""
    for stage, pattern in _STAGES:
        if pattern.search(line):
            return stage
    return None


def shown(line: str, limit: int = 160) -> str:
    """A line of the log without its timestamp, safe to show."""
    return printable(_PREFIX.sub("", line).strip(), limit)


def first_traceback(lines: Iterable[str]) -> str:
    """The first traceback after which the server served no more, with those it led to; empty if there is none.

    A rank that fails is followed by others that fail because of it, and by the signal that ends the rest: only the
    first says what happened. Ranks write whole tracebacks at once, so their lines are not mixed. A healthy server
    writes tracebacks too, for optional parts that are not installed (0.5.9 at every start), and goes on.
    """
    rows = [line.rstrip("\r\n") for line in lines]
    served = max((place for place, row in enumerate(rows) if SERVES.search(row)), default=-1)
    start = next((place for place in range(served + 1, len(rows)) if _TRACEBACK in rows[place]), None)
    if start is None:
        return ""
    block = list(_block(rows, start))
    if len(block) > _MOST_LINES:
        block = [*block[: _MOST_LINES // 2], "  …", *block[-_MOST_LINES // 2 :]]
    return "\n".join(printable(line) for line in block)


def _block(rows: list[str], start: int) -> Iterator[str]:
    """A traceback's lines, its exception and the tracebacks chained to it included."""
    yield rows[start]
    at, inside = start + 1, True
    while at < len(rows):
        row = rows[at]
        if inside:
            yield row
            # The exception's own line is the first that is not indented; its message may run on.
            inside = not row or row[0].isspace() or row.startswith(("+", "|"))
        elif row in _CHAINED:
            yield from ("", row, "")
            at = next((later for later in range(at + 1, len(rows)) if _TRACEBACK in rows[later]), len(rows))
            if at < len(rows):
                yield rows[at]
            inside = True
        elif row.strip() and (_PREFIX.match(row) or _TRACEBACK in row or _sets_off(rows, at)):
            return
        elif row.strip():
            yield row
        at += 1


def _sets_off(rows: list[str], at: int) -> bool:
    """Whether an empty line stands before this one: what follows is no longer the exception's message."""
    return not rows[at - 1].strip()


def tail(lines: Iterable[str], count: int = 15) -> str:
    """The last `count` lines that say something, safe to show."""
    rows = [shown(line, 400) for line in lines]
    return "\n".join([row for row in rows if row][-count:])
