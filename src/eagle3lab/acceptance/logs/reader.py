"""A log, or several, as servers with their measurements, in one pass and in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING

from eagle3lab.acceptance.counts import MAX_POSITIONS, Series
from eagle3lab.acceptance.logs.events import error_of_traceback, event_line
from eagle3lab.acceptance.logs.observations import Event, Observation, Unparsed
from eagle3lab.acceptance.logs.prefix import strip_colours
from eagle3lab.acceptance.logs.sglang import decode_line
from eagle3lab.acceptance.logs.source import LONGEST_PLAIN_LINE, Chunk, Damage, chunks, open_log
from eagle3lab.acceptance.logs.summaries import json_line, llama_line, position_line, summary_line
from eagle3lab.acceptance.logs.vllm import metrics_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eagle3lab.acceptance.logs.fast import FastRows

SMALL = 1 << 16
"""Bytes of a chunk that is read line by line: that takes less time than numpy, which reads more at once, to import."""

EXAMPLES = 5
"""Unparsed lines kept to be shown."""

MOST_SERIES = 256
"""Ranks and processes kept apart for one server; a hostile log cannot make more."""

MOST_SERVERS = 256
"""Servers kept apart in one file; what starts later counts as the last of them."""

MOST_EVENTS = 200
"""Events, and tracebacks, kept for one server."""

TRACEBACK_LINES = 2000
"""Lines after "Traceback" searched for the exception that ends it."""

# A line without any of these says nothing about acceptance or about the server. Searched for in the lines that are
# neither common decode lines nor prefill nor access lines.
_MARKS = (
    b"Decode batch",
    b"ccept",  # accept, acceptance, Accepted; in JSON spec_accept_rate, which stands beside spec_verify_ct
    b" metrics: ",  # SpecDecoding, Speculative
    b"speculative",  # server_args, draft tokens adjusted, auxiliary layers
    b"embed_tokens",
    b"fired up and ready",
    b"Traceback (most recent",
)
# Prefill and access lines, which cannot carry acceptance; what they quote is the user's.
_PLAIN = re.compile(
    rb"(?:(?:\([^\[]{0,77}\) )?\[.{19}[^\]]{0,39}\] (?:Prefill batch|INFO:     )|INFO:     )", re.DOTALL
)

_DECODING = ("sglang", "sglang-jax")
"""Sources that print SGLang's decode line."""


@dataclass(frozen=True, slots=True)
class Example:
    """A line that looks like speculation and could not be read."""

    path: str
    line: int
    reason: str
    text: str


@dataclass(slots=True)
class Server:
    """One run of one server, from its start to the next start or the end of the file.

    path: the log it stands in; first_line: 1-based line of its first sign.
    arguments: what `server_args=` names, as the server resolved it (the rewritten draft tokens included).
    source: which reader understood its lines ("sglang", "vllm", …), empty while none did.
    adjusted: the server said that it rewrote the draft tokens to steps + 1.
    plain_decode: decode lines without accept fields.
    tracebacks: (rank label, exception line) in the order of the file; went_on: it decoded after one of them.
    summary: the last accept length printed at the end of a benchmark or script, of `summaries` in all.
    """

    path: str
    first_line: int
    arguments: dict[str, object] = field(default_factory=dict)
    source: str = ""
    ready: bool = False
    adjusted: bool = False
    plain_decode: int = 0
    series: dict[str, Series] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    tracebacks: list[tuple[str, str]] = field(default_factory=list)
    went_on: bool = False
    summary: float | None = None
    summaries: int = 0
    shares: dict[int, float] = field(default_factory=dict)
    counters: dict[str, Observation] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether it has said nothing about decoding yet."""
        return not (self.series or self.plain_decode or self.summaries or self.shares)

    @property
    def seen(self) -> bool:
        """Whether it has left any sign of itself; a traceback is an event too."""
        return not self.empty or bool(self.events or self.arguments)

    def series_of(self, label: str) -> Series:
        """The series of a rank label, made on first use."""
        if label not in self.series and len(self.series) >= MOST_SERIES:
            label = "others"
        return self.series.setdefault(label, Series(label))


@dataclass(slots=True)
class LogReading:
    """Everything read.

    lines: lines in all; unparsed: lines that look like speculation and could not be read, the first of them in
    `examples`; bytes: uncompressed size; overlong: lines too long to be read as lines; broken: files whose
    compression broke off.
    """

    servers: list[Server] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    unparsed: int = 0
    examples: list[Example] = field(default_factory=list)
    overlong: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        """The events of all servers, in order."""
        return [event for server in self.servers for event in server.events]


def read_logs(paths: Sequence[str | PathLike[str]], draft_tokens: int | None = None) -> LogReading:
    """Read logs in the order given; each file begins with a server of its own.

    Args:
        paths: files (plain, gzip or zstd), or "-" for standard input.
        draft_tokens: D when known, for the one vLLM layout (0.8) that prints no accept length.

    Raises:
        InputError: a file cannot be opened.
    """
    reading = LogReading()
    for path in paths:
        Reader(reading, str(path), draft_tokens).read()
    reading.servers = [server for server in reading.servers if server.seen]
    return reading


def parse_line(text: str) -> Observation | Event | Unparsed | None:
    """What a single line says, without the context of its log; None when it says nothing about acceptance."""
    text = strip_colours(text)
    for read in (decode_line, metrics_line, llama_line, summary_line, event_line):
        if (found := read(text)) is not None:
            return found
    if text.lstrip().startswith(("{", "[{")) and ("spec_verify_ct" in text or '"accept_length"' in text):
        found_all = json_line(text)
        return found_all[0] if found_all else None
    return None


def _plain(line: bytes) -> bool:
    return len(line) <= LONGEST_PLAIN_LINE and _PLAIN.match(line) is not None


class Reader:
    """One pass over one file, or over as much of it as there is.

    Args:
        reading: Where everything read is added.
        path: The file's name.
        draft_tokens: D when known.
    """

    def __init__(self, reading: LogReading, path: str, draft_tokens: int | None) -> None:
        self.reading = reading
        self.path = path
        self.draft_tokens = draft_tokens
        self.server = Server(path, 1)
        self.tracing: tuple[str, int] | None = None
        self.steps: float | None = None
        self.siblings: dict[str, Server] = {}
        self.begun = 1
        reading.servers.append(self.server)

    def read(self) -> None:
        """Read the whole file."""
        damage = Damage()
        with open_log(self.path) as file:
            for chunk in chunks(file, damage):
                self.take(chunk)
        self.reading.overlong += damage.overlong
        if damage.broken:
            self.reading.broken.append(self.path)

    def take(self, chunk: Chunk) -> None:
        """Read the lines of the next chunk."""
        if chunk.size <= SMALL:
            self._take_singly(chunk)
        else:
            self._take_at_once(chunk)

    def _take_singly(self, chunk: Chunk) -> None:
        """Every line by the careful reader."""
        base = self.reading.lines
        lines = chunk.lines()
        for number, line in enumerate(lines, 1):
            cut_off = not chunk.complete and number == len(lines)
            if (self.tracing or any(mark in line for mark in _MARKS)) and (cut_off or not _plain(line)):
                self._line(line, base + number, cut_off=cut_off)
        self.reading.lines += len(lines)
        self.reading.bytes += chunk.size

    def _take_at_once(self, chunk: Chunk) -> None:
        """The common lines as columns, and what they leave by the careful reader."""
        from eagle3lab.acceptance.logs import fast

        base = self.reading.lines
        rows, left = fast.scan(chunk)
        taken = silent = 0
        for index in self._marked(chunk, left):
            upto = int(rows.line.searchsorted(index))
            self._add_rows(chunk, rows, taken, upto)
            taken = upto
            silent = self._add_silent(rows.silent, silent, int(rows.silent.searchsorted(index)))
            cut_off = not chunk.complete and index == len(chunk.starts) - 1
            self._line(chunk.line(index), base + index + 1, cut_off=cut_off)
        self._add_rows(chunk, rows, taken, len(rows.line))
        self._add_silent(rows.silent, silent, len(rows.silent))
        self.reading.lines += len(chunk.starts)
        self.reading.bytes += chunk.size

    def _marked(self, chunk: Chunk, left: NDArray[np.int64]) -> list[int]:
        """Which of the lines left over hold a mark, and those that follow the head of a traceback."""
        import numpy as np

        if not len(left):
            return []
        if len(left) * 8 < len(chunk.starts):  # few: look at each
            wanted = [int(i) for i in left if any(mark in chunk.line(int(i)) for mark in _MARKS)]
        else:
            wanted = self._search(chunk, left)
        heads = [index for index in wanted if _MARKS[-1] in chunk.line(index)]
        picked = np.zeros(len(left), dtype=bool)
        picked[left.searchsorted(np.array(wanted, dtype=np.int64))] = True
        for head in [-1, *heads] if self.tracing else heads:
            begin, end = left.searchsorted([head, head + TRACEBACK_LINES], side="right").tolist()
            picked[begin:end] = True
        return list(left[picked].tolist())

    def _search(self, chunk: Chunk, left: NDArray[np.int64]) -> list[int]:
        import numpy as np

        # Neighbouring lines are cut out as one piece; `offsets` says where each line ends in the joined text.
        starts, ends = chunk.starts[left], chunk.ends[left] + 1
        breaks = np.flatnonzero(np.diff(left) > 1)
        first, last = starts[np.append(0, breaks + 1)], ends[np.append(breaks, len(left) - 1)]
        data = bytes(chunk.buffer[: chunk.size])
        text = b"".join([data[s:e] for s, e in zip(first.tolist(), last.tolist(), strict=True)])
        offsets = np.cumsum(ends - starts)
        found: set[int] = set()
        for mark in _MARKS:
            at = text.find(mark)
            while at >= 0:
                row = int(offsets.searchsorted(at, side="right"))
                found.add(int(left[row]))
                at = text.find(mark, int(offsets[row]))
        return sorted(found)

    def _add_rows(self, chunk: Chunk, rows: FastRows, start: int, stop: int) -> None:
        if start == stop:
            return
        if self.server.source not in _DECODING:  # the columns do not tell the two apart; a line does
            first = parse_line(chunk.line(int(rows.line[start])).decode("utf-8", "replace"))
            self._source(first.source if isinstance(first, Observation) else "sglang")
        self.server.went_on |= bool(self.server.tracebacks)
        labels = rows.label[start:stop]
        for index, label in enumerate(rows.labels):
            which = slice(None) if len(rows.labels) == 1 else labels == index
            if len(rows.labels) > 1 and not which.any():  # type: ignore[union-attr]
                continue
            running = rows.running[start:stop][which]
            self.server.series_of(label).extend(
                time=rows.time[start:stop][which],
                length=rows.length[start:stop][which],
                rate=rows.rate[start:stop][which],
                steps=running.clip(min=1),  # it was printed, so a request ran
                running=running,
                context=rows.context[start:stop][which],
            )

    def _add_silent(self, lines: NDArray[np.int64], start: int, stop: int) -> int:
        if stop > start:
            if self.server.source not in _DECODING:
                self._source("sglang")
            self.server.went_on |= bool(self.server.tracebacks)
            self.server.plain_decode += stop - start
        return stop

    def _line(self, raw: bytes, number: int, *, cut_off: bool) -> None:
        text = strip_colours(raw.decode("utf-8", "replace"))
        if self.tracing:
            self._trace(text)
        stripped = text.strip()
        if stripped.startswith(("{", "[{")) and ("spec_verify_ct" in text or '"accept_length"' in text):
            for item in json_line(stripped):
                self._take(item, number, text)
            return
        if (position := position_line(stripped)) is not None:
            if not cut_off:
                self.server.source = self.server.source or "summary"
                self.server.shares[position[0]] = position[1]
            return
        found = parse_line(text)
        if cut_off and isinstance(found, Observation) and not _whole(found, text):
            found = Unparsed("the last line breaks off")
        self._take(found, number, text)

    def _trace(self, text: str) -> None:
        assert self.tracing is not None
        label, remaining = self.tracing
        error = error_of_traceback(text)
        if error is not None:
            if len(self.server.tracebacks) < MOST_EVENTS:
                self.server.tracebacks.append((label, error))
            self._event(Event("error", float("nan"), label, detail=error))
        self.tracing = None if error is not None or remaining <= 1 else (label, remaining - 1)

    def _take(self, found: Observation | Event | Unparsed | None, number: int, text: str) -> None:
        if isinstance(found, Unparsed):
            self.reading.unparsed += 1
            if len(self.reading.examples) < EXAMPLES:
                self.reading.examples.append(Example(self.path, number, found.reason, text.strip()))
        elif isinstance(found, Event):
            self._happened(found, number)
        elif isinstance(found, Observation):
            self._observe(found)

    def _happened(self, event: Event, number: int) -> None:
        server = self.server
        begins = (
            # Workers of one start may each print their arguments; what ran or failed before is another start.
            (event.kind == "server_args" and (server.ready or bool(server.tracebacks) or not server.empty))
            or (event.kind == "ready" and (server.ready or not server.empty))
            or (event.kind == "draft_tokens_adjusted" and not server.empty)
        )
        if begins and self.begun < MOST_SERVERS:
            server = self._begin(number)
            self.siblings = {}
        if event.kind == "server_args":
            server.arguments.update(event.values)
        elif event.kind == "ready":
            server.ready = True
        elif event.kind == "draft_tokens_adjusted":
            server.adjusted = True
        elif event.kind == "traceback":
            self.tracing = (event.label, TRACEBACK_LINES)
        self._event(event)

    def _event(self, event: Event) -> None:
        if len(self.server.events) < MOST_EVENTS:
            self.server.events.append(event)

    def _begin(self, number: int) -> Server:
        for series in self.server.series.values():
            series.close()
        self.begun += 1
        self.server = Server(self.path, number)
        self.reading.servers.append(self.server)
        return self.server

    def _source(self, source: str) -> None:
        """Turn to the server whose lines these are: two engines, or an engine and its clients, may share a log."""
        server = self.server
        if server.source in ("", "summary", source):  # a summary is about whatever engine ran
            server.source = source
            self.siblings[source] = server
        elif source in self.siblings:
            self.server = self.siblings[source]
        elif self.begun < MOST_SERVERS:
            self.siblings[source] = self._begin(self.reading.lines + 1)
            self.server.source = source

    def _observe(self, seen: Observation) -> None:
        if seen.source == "summary":  # a figure about whatever ran before it
            self.server.source = self.server.source or "summary"
            self.server.summary = seen.accept_length
            self.server.summaries += 1
            return
        self._source(seen.source)
        self.server.went_on |= bool(self.server.tracebacks)
        add_observation(self.server, seen, self.draft_tokens)


def add_observation(server: Server, seen: Observation, draft_tokens: int | None = None) -> None:
    """Count a measurement as the server's, in the series of its rank.

    Args:
        server: Whose it is.
        seen: What was read.
        draft_tokens: D when known, for lines that print neither accept length nor verify steps.
    """
    if not seen.speculating:
        server.plain_decode += 1
        return
    series = server.series_of(seen.label)
    if seen.source == "vllm-v0":
        difference = _since(server.counters.get(series.label), seen)
        server.counters[series.label] = seen
        seen = difference
    if seen.idle:
        series.idle += 1
        return
    length, steps = seen.accept_length, seen.verify_steps
    if steps is None and seen.proposed and draft_tokens and draft_tokens > 1:
        steps = seen.proposed / (draft_tokens - 1)
    if length is None and steps and seen.accepted is not None:
        length = 1 + seen.accepted / steps
    if seen.accepted is not None and seen.proposed is not None:
        series.accepted += seen.accepted
        series.proposed += seen.proposed
    if length is None:
        return
    context = seen.tokens / seen.running if seen.tokens is not None and seen.running else None
    series.append(
        time=seen.time,
        length=length,
        rate=seen.accept_rate,
        steps=steps,
        running=seen.running,
        context=context,
    )
    if seen.per_position and steps:
        series.add_positions([share * steps for share in seen.per_position[:MAX_POSITIONS]], steps)


def _whole(seen: Observation, text: str) -> bool:
    """Whether a last line without a newline can be trusted to be whole: its last number might go on."""
    if seen.source == "summary":
        return False
    return seen.source != "vllm" or text.rstrip().endswith("%")


def _since(before: Observation | None, now: Observation) -> Observation:
    """The interval between two V0 lines; counters that fell were reset, and then count from zero."""
    if before is None or (now.proposed or 0) < (before.proposed or 0) or before.extra["k"] != now.extra["k"]:
        return now
    accepted = (now.accepted or 0) - (before.accepted or 0)
    proposed = (now.proposed or 0) - (before.proposed or 0)
    emitted = now.extra["emitted"] - before.extra["emitted"]
    steps = proposed / now.extra["k"]
    if not steps or accepted < 0 or emitted < steps:
        return Observation(now.source, now.time, now.label, idle=True)
    return Observation(
        now.source, now.time, now.label,
        accept_length=emitted / steps, accept_rate=accepted / proposed,
        verify_steps=steps, accepted=accepted, proposed=proposed,
    )  # fmt: skip
