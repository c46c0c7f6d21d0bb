"""A server's log as evidence: what acceptance looks like, and what the server died of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.model import Observed

if TYPE_CHECKING:
    from eagle3lab.acceptance.log import LogReading, Server
    from eagle3lab.acceptance.report import ServerReport
    from eagle3lab.acceptance.tracebacks import Death

_PLOTTED = 200
# Measurements in a row that make a stretch.
_STRETCH = 3
_REPEATED = re.compile(r"'text': '(.)\1{24,}")


@dataclass(frozen=True, slots=True)
class Log:
    """A log, read.

    Attributes:
        path: The file.
        server: The run that the diagnosis is about: the last one that measured anything, else the last.
        report: Its account of acceptance.
        reading: Everything read.
        death: What the log's last server died of; None while it lives.
        repeated: The character that an output consists of, and its 1-based line; None where no output collapsed.
        notes: What the reader and the account remark.
    """

    path: str
    server: Server | None
    report: ServerReport | None
    reading: LogReading
    death: Death | None
    repeated: tuple[str, int] | None
    notes: tuple[str, ...]

    @property
    def served(self) -> bool:
        """Whether the run decoded anything: it had started then."""
        return self.report is not None and self.report.lines > 0

    @property
    def observed(self) -> Observed:
        """What it shows, in the terms of a diagnosis."""
        crash = self.death.error if self.death else ""
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

    @property
    def dip(self) -> tuple[float, float, float] | None:
        """Mean accept lengths before, in and after a stretch in which acceptance was lost and came back; else None."""
        values = [value for value in self._lengths() if value == value]
        if len(values) < 3 * _STRETCH:
            return None
        border = (min(values) + max(values)) / 2
        runs = [list(run) for _, run in groupby(values, key=lambda value: value >= border)]
        for before, low, after in zip(runs, runs[1:], runs[2:], strict=False):
            if before[0] >= border and min(map(len, (before, low, after))) >= _STRETCH:
                means = _mean(before), _mean(low), _mean(after)
                if means[1] - 1 < (min(means[0], means[2]) - 1) / 2:
                    return means
        return None

    def _history(self) -> tuple[float, ...]:
        values = self._lengths()
        stride = -(-len(values) // _PLOTTED) or 1
        return tuple(round(value, 3) for value in values[::stride] if value == value)

    def _lengths(self) -> list[float]:
        """Accept lengths over time, NaN where nothing was drafted."""
        if self.report is None or not self.report.columns["lines"]:
            return []
        columns = self.report.columns
        return [total / lines for total, lines in zip(columns["length_sum"], columns["lines"], strict=True)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


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
    from eagle3lab.acceptance.log import read_logs
    from eagle3lab.acceptance.report import Given, account
    from eagle3lab.acceptance.tracebacks import read_deaths
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
    if len(reading.servers) > 1:
        notes.append(f"the log holds {len(reading.servers)} server runs; the last that measured counts")
    death, earlier = read_deaths(path)
    if death is not None:  # it is a finding of its own, and said there
        notes = [note for note in notes if not note.endswith(death.error)]
    if earlier:
        notes.append(f"a server of this log died and was started again: {earlier[-1].error}")
    repeated = _repeated(path) if report and report.signature.name == "collapse" else None
    return Log(path, server, report, reading, death, repeated, tuple(notes))


def _repeated(path: str) -> tuple[str, int] | None:
    from eagle3lab.acceptance.lines import read_lines

    for line in read_lines(path):
        if match := _REPEATED.search(line.text):
            return match[1], line.number
    return None
