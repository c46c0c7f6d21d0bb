"""A server's log as evidence: what acceptance looks like, and what the server died of."""

from __future__ import annotations

import re
import tomllib
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.diagnosis.model import Observed

if TYPE_CHECKING:
    from eagle3lab.acceptance.logs.reader import LogReading, Server
    from eagle3lab.acceptance.report import ServerReport

_FRAMES = 400
_BEFORE = 4
_PLOTTED = 200
_REPEATED = re.compile(r"'text': '(.)\1{24,}")


@dataclass(frozen=True, slots=True)
class Crash:
    """The first traceback of a server.

    Attributes:
        error: The line with the exception.
        rank: Label of the rank that wrote it; empty where none is printed.
        line: 1-based line of the traceback's head.
        explains: Slugs it can come from, the likeliest first; empty where the exception says nothing.
        alone: Whether the first of them is said without other evidence.
        meaning: What the exception means.
        fix: What to do about it.
    """

    error: str
    rank: str
    line: int
    explains: tuple[str, ...] = ()
    alone: bool = False
    meaning: str = "the exception is not one that eagle3lab knows"
    fix: str = "Read the first traceback; later ones and signals follow from it."


@dataclass(frozen=True, slots=True)
class Log:
    """A log, read.

    Attributes:
        path: The file.
        server: The run that the diagnosis is about: the last one that measured anything, else the last.
        report: Its account of acceptance.
        reading: Everything read.
        crash: What that run died of; None while it lived.
        repeated: The character that an output consists of, and its 1-based line; None where no output collapsed.
        notes: What the reader and the account remark.
    """

    path: str
    server: Server | None
    report: ServerReport | None
    reading: LogReading
    crash: Crash | None
    repeated: tuple[str, int] | None
    notes: tuple[str, ...]

    @property
    def served(self) -> bool:
        """Whether the run decoded anything: it had started then."""
        return self.report is not None and self.report.lines > 0

    @property
    def observed(self) -> Observed:
        """What it shows, in the terms of a diagnosis."""
        crash = self.crash.error if self.crash else ""
        if self.report is None:
            return Observed("no-data", 0.95, "no line reports acceptance", crash=crash)
        found, length = self.report.signature, self.report.accept_length
        shares = self.report.per_position
        return Observed(
            found.name,
            found.confidence,
            found.reason,
            None if length is None else length.mean,
            self.report.accept_rate,
            shares.unconditional if shares else (),
            self._history(),
            crash,
        )

    def _history(self) -> tuple[float, ...]:
        if self.report is None or not self.report.columns["lines"]:
            return ()
        columns = self.report.columns
        values = [total / lines for total, lines in zip(columns["length_sum"], columns["lines"], strict=True)]
        stride = -(-len(values) // _PLOTTED)
        return tuple(round(value, 3) for value in values[::stride] if value == value)


def read_log(path: str, engine: str | None, draft_tokens: int | None, steps: int | None) -> Log:
    """Read one log file.

    Args:
        path: The file, plain or compressed.
        engine: `sglang==0.5.9`, or only the engine; None when not known.
        draft_tokens: D as the engine uses it; None when not known.
        steps: Draft steps; None when not known.

    Raises:
        InputError: The file cannot be opened.
    """
    from eagle3lab.acceptance.logs import read_logs
    from eagle3lab.acceptance.report import Given, account
    from eagle3lab.engines.release import parse_release
    from eagle3lab.errors import InputError

    reading = read_logs([path], draft_tokens)
    try:
        release = parse_release(engine) if engine else None
    except InputError:
        release = None
    accounts = account(reading, Given(release, draft_tokens, steps))
    report = accounts.main
    server = None
    if report is not None:
        server = next((s for s in reading.servers if s.first_line == report.first_line), None)
    notes = [*accounts.notes, *(report.notes if report else ())]
    dead = [one for one in reading.servers if one.tracebacks]
    if len(reading.servers) > 1:
        notes.append(f"the log holds {len(reading.servers)} server runs; the last that measured counts")
    crash = None
    if dead and (server is None or dead[-1].first_line >= server.first_line):
        crash = _crash(path, dead[-1].first_line)
    repeated = _repeated(path) if report and report.signature.name == "collapse" else None
    return Log(path, server, report, reading, crash, repeated, tuple(notes))


def _lines(path: str) -> Any:
    from eagle3lab.acceptance.logs.source import open_log

    with open_log(path) as stream:
        for number, raw in enumerate(stream, 1):
            yield number, raw[: 1 << 16].decode("utf-8", "replace").rstrip("\r\n")


def _repeated(path: str) -> tuple[str, int] | None:
    for number, line in _lines(path):
        if match := _REPEATED.search(line):
            return match[1], number
    return None


def _crash(path: str, first_line: int) -> Crash | None:
    """The traceback that a server died of: the first from `first_line` on after which it served no more.

    A server that lives writes tracebacks too: SGLang 0.5.9 prints one at every start where an optional package is
    not installed. The lines before the traceback come with it: asserts on the device are printed there.
    """
    from eagle3lab.acceptance.logs.events import SERVES, error_of_traceback
    from eagle3lab.acceptance.logs.prefix import strip_colours

    before: deque[str] = deque(maxlen=_BEFORE)
    frames: list[str] = []
    head, rank = 0, ""  # of the traceback whose end has not been read
    first: Crash | None = None
    for number, raw in _lines(path):
        line = strip_colours(raw)
        if number < first_line:
            continue
        if SERVES.search(line):
            head, first = 0, None
        elif first is not None:
            continue
        elif not head:
            if "Traceback (most recent call last)" in line:
                head, rank, frames = number, _rank(line), []
            else:
                before.append(line)
        else:
            error = error_of_traceback(line)
            if error is not None:
                first = _classify(error, rank, head, "\n".join([*before, *frames, line]))
                head = 0
            else:
                frames.append(line)
                if len(frames) > _FRAMES:
                    first, head = Crash("", rank, head), 0
    return first or (Crash("", rank, head) if head else None)


def _rank(line: str) -> str:
    match = re.search(r"\b((?:DP\d+ )?(?:PP\d+ )?TP\d+(?: EP\d+)?)\b", line[:200])
    return match[1] if match else ""


@cache
def _crashes() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("crashes.toml").read_text("utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["crash"]
    return rows


def _classify(error: str, rank: str, line: int, text: str) -> Crash:
    for row in _crashes():
        if not re.search(row["error"], error):
            continue
        if "frames" in row and not re.search(row["frames"], text):
            continue
        return Crash(error, rank, line, tuple(row["explains"]), row["alone"], row["meaning"], row["fix"])
    return Crash(error, rank, line)
