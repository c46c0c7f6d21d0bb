"""Reading a server's log: what it is doing now, and what went wrong first."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.acceptance.tracebacks import read_deaths
from eagle3lab.text import printable

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ?")

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


def first_traceback(log: Path | None) -> str:
    """The traceback that a server died of, by its log, safe to show; empty if the log holds none, or there is no log.

    A rank that fails is followed by others that fail because of it, and by the signal that ends the rest: only the
    first says what happened.
    """
    if log is None or not log.is_file():
        return ""
    death, _ = read_deaths(log)
    if death is None or not death.raised:
        return ""
    worker = f"[{death.worker}] " if death.worker else ""
    return printable(worker) + "\n".join(printable(line) for line in death.printed).strip()


def tail(lines: Iterable[str], count: int = 15) -> str:
    """The last `count` lines that say something, safe to show."""
    rows = [shown(line, 400) for line in lines]
    return "\n".join([row for row in rows if row][-count:])
