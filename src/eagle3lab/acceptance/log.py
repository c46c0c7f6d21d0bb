"""A log, or several, as servers with their measurements: in one pass and in bounded memory, or as the log grows.

Lines go through one unwrapping stage (`lines`) and one grammar (`grammar`); SGLang's common decode line, which is read
by the million, is taken from whole chunks at once (`bulk`). One start of a server is one `Server`; so is the result of
a benchmark or script that stands in the same file.
"""

from __future__ import annotations

import os
import re
import select
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from eagle3lab.acceptance.bulk import LONGEST_PLAIN_LINE, PAD, Chunk
from eagle3lab.acceptance.counts import MAX_POSITIONS, Series
from eagle3lab.acceptance.documents import Contents, ServerInfo, parse, search
from eagle3lab.acceptance.grammar import (
    SEPARATOR,
    Said,
    cells,
    error_of_traceback,
    figures_line,
    looks_like_length,
    parse_line,
    said,
    table_columns,
)
from eagle3lab.acceptance.lines import (
    CHUNK,
    COMPRESSED,
    LONGEST_LINE,
    Damage,
    Line,
    Unwrapper,
    chunks,
    document_lines,
    messages,
    open_log,
    whole_document,
)
from eagle3lab.acceptance.observations import (
    ACCEPTED,
    LENGTH,
    PROPOSED,
    SHARES,
    STEPS,
    Event,
    Figures,
    Observation,
    Unparsed,
    measurement,
)
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eagle3lab.acceptance.bulk import Rows

SMALL = 1 << 16
"""Bytes of a chunk that is read line by line: that takes less time than numpy, which reads more at once, to import."""

EXAMPLES = 5
"""Unparsed lines kept to be shown."""

MOST_SERIES = 256
"""Ranks and processes kept apart for one server; a hostile log cannot make more."""

MOST_SERVERS = 256
"""Servers kept apart in one file; what starts later counts as the last of them."""

MOST_ROLES = 64
"""Containers and services kept apart in one file."""

MOST_EVENTS = 200
"""Events, and tracebacks, kept for one server."""

TRACEBACK_LINES = 2000
"""Lines after "Traceback" searched for the exception that ends it."""

BLOCK_LINES = 40
"""Lines between two figures of one benchmark's report."""

# A line without any of these says nothing about acceptance or about the server. Searched for in the lines that are
# neither common decode lines nor prefill nor access lines.
_MARKS = (
    b"Decode batch",
    b"ccept",  # accept, acceptance, Accepted; in JSON spec_accept_rate, which stands beside spec_verify_ct
    b" metrics: ",  # SpecDecoding, Speculative
    b"speculative",  # server_args, draft tokens adjusted, auxiliary layers
    b"embed_tokens",
    b"fired up and ready",
    b"LLM engine (v",
    b"cc_len",  # acc_length
    b"cc Len",
    b"[AR] AVERAGE",
    b"raft",  # Drafts, Draft tokens, num_draft_tokens
    b"osition",
    b"Traceback (most recent",
)
_TRACEBACK = _MARKS[-1]
# Prefill and access lines, which cannot carry acceptance; what they quote is the user's.
_PLAIN = re.compile(
    rb"(?:(?:\([^\[]{0,77}\) )?\[.{19}[^\]]{0,39}\] (?:Prefill batch|INFO:     )|INFO:     )", re.DOTALL
)
_WRAPPED = re.compile(rb"\s*(?:\{|\[\s*[\[{\"])|\S{20,40} std(?:out|err) [FP] ")
_PIECE = re.compile(rb'\{"log":(?!.*\\n")|\S{20,40} std(?:out|err) P |.*"MESSAGE" ?: ?\[', re.DOTALL)

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
    """One run of one server, from its start to the next start or the end of the file; or one result of a benchmark.

    path: the log it stands in; first_line: 1-based line of its first sign.
    arguments: what its start line names, as the server resolved it (the rewritten draft tokens included), by the names
        of SGLang's `server_args`; "release" where the engine prints it (vLLM, `/server_info`).
    source: which reader understood its lines ("sglang", "vllm", "summary" …), empty while none did.
    start: which start of the file it belongs to; role: the container or service, empty where none is named.
    adjusted: the server said that it rewrote the draft tokens to steps + 1.
    plain_decode: decode lines without accept fields.
    tracebacks: (rank label, exception line) in the order of the file; went_on: it decoded after one of them.
    shares: of the verify steps by position, where they are printed without a count of steps.
    remarks: what is odd about its figures.
    """

    path: str
    first_line: int
    arguments: dict[str, object] = field(default_factory=dict)
    source: str = ""
    start: int = 0
    role: str = ""
    ready: bool = False
    adjusted: bool = False
    plain_decode: int = 0
    series: dict[str, Series] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    tracebacks: list[tuple[str, str]] = field(default_factory=list)
    went_on: bool = False
    shares: tuple[float, ...] = ()
    remarks: list[str] = field(default_factory=list)
    counters: dict[str, Observation] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether it has said nothing about decoding yet."""
        return not (self.series or self.plain_decode or self.shares)

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
    `examples`; bytes: uncompressed size; overlong: lines too long to be read as lines; broken: files that broke off;
    keys: keys of JSON that look like speculation where nothing was understood.
    """

    servers: list[Server] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    unparsed: int = 0
    examples: list[Example] = field(default_factory=list)
    overlong: int = 0
    broken: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        """The events of all servers, in order."""
        return [event for server in self.servers for event in server.events]


def read_logs(paths: Sequence[str | PathLike[str]], draft_tokens: int | None = None) -> LogReading:
    """Read logs, or JSON that holds acceptance, in the order given; each file begins with a server of its own.

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


def _plain(line: bytes) -> bool:
    return len(line) <= LONGEST_PLAIN_LINE and _PLAIN.match(line) is not None


@dataclass(slots=True)
class _Block:
    """Figures of one benchmark's report, as far as they were read."""

    first: int
    last: int
    named: dict[str, object] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    percent: bool = False

    @property
    def whole(self) -> bool:
        """Whether it says an accept length, or counts that give one."""
        counted = ACCEPTED in self.named and bool({STEPS, PROPOSED} & self.named.keys())
        return counted or LENGTH in self.named or bool(self.shares)


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
        self.begun = 1
        self._starts = 0
        self._roles: dict[str, Server] = {"": self.server}
        self._siblings: dict[str, dict[str, Server]] = {}
        self._tracing: dict[str, tuple[Server, str, int]] = {}
        self._unwrapper = Unwrapper()
        self._wrapped: bool | None = None
        self._block: _Block | None = None
        self._columns: list[str | None] | None = None
        self._streamed: tuple[object, int] | None = None
        reading.servers.append(self.server)

    # --- The file -----------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the whole file."""
        if self.path != "-" and self._read_document():
            return
        damage = Damage()
        with open_log(self.path) as file:
            for data in chunks(file, damage, pad=PAD):
                self.take(data, len(data) - PAD)
        self.close()
        self.reading.overlong += damage.overlong
        if damage.broken:
            self.reading.broken.append(self.path)

    def _read_document(self) -> bool:
        """Read a file that is one JSON value; False where it is not."""
        document = whole_document(self.path)
        if document is None:
            return False
        self.reading.bytes += Path(self.path).stat().st_size
        records = messages(document)
        if records is None:
            self.reading.lines += 1
            self._contents(search(document), 1)
        else:
            for line in document_lines(records):
                self.reading.lines += 1
                self._take_line(line, cut_off=False)
        self.close()
        return True

    def take(self, data: bytes, size: int | None = None) -> None:
        """Read the next lines; a last one without a newline is one that the file breaks off in.

        Args:
            data: The bytes.
            size: How many of them are lines, where `PAD` bytes follow them; all if None.
        """
        if self._wrapped is None:
            marked = data.startswith(b"\xef\xbb\xbf")
            data, size = (data[3:], size and size - 3) if marked else (data, size)
            self._wrapped = _WRAPPED.match(data) is not None
        lines = len(data) if size is None else size
        if self._wrapped or lines <= SMALL:
            self._take_singly(data[:lines])
        else:
            self._take_at_once(Chunk(data + bytes(PAD) if size is None else data, lines))

    def close(self) -> None:
        """Nothing more will be read: count what was still open."""
        self._close_block()
        self._close_stream()

    def _take_singly(self, data: bytes) -> None:
        """Every line by itself."""
        base = self.reading.lines
        complete = data.endswith(b"\n")
        lines = (data[:-1] if complete else data).split(b"\n")
        for number, raw in enumerate(lines, 1):
            cut_off = not complete and number == len(lines)
            line = raw.rstrip(b"\r")
            if (
                self._tracing
                or self._columns
                or self._unwrapper.waiting
                or any(mark in line for mark in _MARKS)
                or (self._wrapped and _PIECE.match(line))
            ) and (cut_off or not _plain(line)):
                self._line(line, base + number, cut_off=cut_off)
        self.reading.lines += len(lines)
        self.reading.bytes += len(data)

    def _take_at_once(self, chunk: Chunk) -> None:
        """The common decode lines as columns, and what they leave line by line."""
        from eagle3lab.acceptance import bulk

        base = self.reading.lines
        rows, left = bulk.scan(chunk)
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
        heads = [index for index in wanted if _TRACEBACK in chunk.line(index)]
        picked = np.zeros(len(left), dtype=bool)
        picked[left.searchsorted(np.array(wanted, dtype=np.int64))] = True
        for head in [-1, *heads] if self._tracing else heads:
            begin, end = left.searchsorted([head, head + TRACEBACK_LINES], side="right").tolist()
            picked[begin:end] = True
        return list(left[picked].tolist())

    def _search(self, chunk: Chunk, left: NDArray[np.int64]) -> list[int]:
        import numpy as np

        # Neighbouring lines are cut out as one piece; `offsets` says where each line ends in the joined text.
        starts, ends = chunk.starts[left], chunk.ends[left] + 1
        breaks = np.flatnonzero(np.diff(left) > 1)
        first, last = starts[np.append(0, breaks + 1)], ends[np.append(breaks, len(left) - 1)]
        data = chunk.buffer
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

    def _add_rows(self, chunk: Chunk, rows: Rows, start: int, stop: int) -> None:
        if start == stop:
            return
        self._close_block()
        self.server = self._roles[""]
        if self.server.source not in _DECODING:  # the columns do not tell the two apart; a line does
            first = parse_line(chunk.line(int(rows.line[start])).decode("utf-8", "replace"))
            self._source(first.source if isinstance(first, Observation) else "sglang", "")
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
            self.server = self._roles[""]
            if self.server.source not in _DECODING:
                self._source("sglang", "")
            self.server.went_on |= bool(self.server.tracebacks)
            self.server.plain_decode += stop - start
        return stop

    # --- A line -------------------------------------------------------------------------------------------------

    def _line(self, raw: bytes, number: int, *, cut_off: bool) -> None:
        for line in self._unwrapper.unwrap(raw.decode("utf-8", "replace"), number):
            self._take_line(line, cut_off=cut_off)

    def _take_line(self, line: Line, *, cut_off: bool) -> None:
        role = line.role if line.role in self._roles or len(self._roles) < MOST_ROLES else ""
        if role not in self._roles:
            first = self._roles[""]  # what nothing is known of yet becomes the first that has a name
            self._roles[role] = first if not first.seen and not first.role else self._begin(line.number, role)
            self._roles[role].role = role
        self.server = self._roles[role]
        if line.stream in self._tracing:
            self._trace(line)
        text = line.text.strip()
        if text.startswith("data: "):  # an answer in pieces, each of which holds the counts so far
            self._stream(parse(text[6:]), line.number)
            return
        self._close_stream()
        if text.startswith(("{", "[{", '["')) and (document := parse(text)) is not None:
            if not cut_off or text.endswith(("}", "]")):
                self._contents(search(document), line.number)
            return
        found = said(line)
        if self._columns is not None and found is None and self._row(text, line.number):
            return
        if found is None and (columns := table_columns(text)) is not None:
            self._close_block()
            self._columns = columns
            return
        if found is None:
            found = self._figures(text, line.number, cut_off=cut_off)
        elif cut_off and isinstance(found, Observation) and not _whole(found, text):
            found = Unparsed("the last line breaks off")
        if isinstance(found, Observation | Event):
            self._close_block()
        self._take(found, line)

    def _trace(self, line: Line) -> None:
        server, label, remaining = self._tracing.pop(line.stream)
        error = error_of_traceback(line.text)
        if error is None:
            if remaining > 1:
                self._tracing[line.stream] = (server, label, remaining - 1)
            return
        if len(server.tracebacks) < MOST_EVENTS:
            server.tracebacks.append((label, error))
        self._event(server, Event("error", float("nan"), label, detail=error))

    def _take(self, found: Said, line: Line) -> None:
        if isinstance(found, Unparsed):
            self._unparsed(found, line.number, line.head + line.text)
        elif isinstance(found, Event):
            self._happened(found, line)
        elif isinstance(found, Observation):
            self._observe(found)

    def _unparsed(self, found: Unparsed, number: int, text: str) -> None:
        self.reading.unparsed += 1
        if len(self.reading.examples) < EXAMPLES:
            self.reading.examples.append(Example(self.path, number, found.reason, text.strip()[:2000]))

    def _happened(self, event: Event, line: Line) -> None:
        server = self.server
        begins = (
            # Workers of one start may each print their arguments; what ran or failed before is another start.
            (
                event.kind in ("server_args", "engine_start")
                and (server.ready or bool(server.tracebacks) or not server.empty)
            )
            or (event.kind == "ready" and (server.ready or not server.empty))
            or (event.kind == "draft_tokens_adjusted" and not server.empty)
        )
        if begins and self.begun < MOST_SERVERS:
            self._starts += 1
            server = self._roles[server.role] = self.server = self._begin(line.number, server.role)
            self._siblings[server.role] = {}
        if event.kind in ("server_args", "engine_start"):
            server.arguments.update(event.values)
        elif event.kind == "ready":
            server.ready = True
        elif event.kind == "draft_tokens_adjusted":
            server.adjusted = True
        elif event.kind == "traceback" and len(self._tracing) < MOST_ROLES:
            self._tracing[line.stream] = (server, event.label, TRACEBACK_LINES)
        self._event(server, event)

    def _event(self, server: Server, event: Event) -> None:
        if len(server.events) < MOST_EVENTS:
            server.events.append(event)

    def _begin(self, number: int, role: str) -> Server:
        for series in self.server.series.values():
            series.close()
        self.begun += 1
        begun = Server(self.path, number, start=self._starts, role=role)
        self.reading.servers.append(begun)
        return begun

    def _source(self, source: str, role: str) -> None:
        """Turn to the server whose lines these are: two engines, or an engine and its clients, may share a log."""
        server, siblings = self.server, self._siblings.setdefault(role, {})
        if server.source in ("", source):
            server.source = source
            siblings[source] = server
        elif source in siblings:
            self.server = siblings[source]
        elif self.begun < MOST_SERVERS:
            self.server = siblings[source] = self._begin(self.reading.lines + 1, role)
            self.server.source = source
        self._roles[role] = self.server

    def _observe(self, seen: Observation, arguments: dict[str, object] | None = None) -> None:
        self._source(seen.source, self.server.role)
        self.server.went_on |= bool(self.server.tracebacks)
        for name, value in (arguments or {}).items():
            if name not in ("phase", "time"):
                self.server.arguments.setdefault(name, value)
        add_observation(self.server, seen, self.draft_tokens)

    # --- Figures of scripts, benchmarks and JSON --------------------------------------------------------------------

    def _row(self, text: str, number: int) -> bool:
        """Read a row of the table whose head was read; False where the table has ended."""
        assert self._columns is not None
        if (SEPARATOR.match(text) and text) or re.fullmatch(r"[\s|+:=-]+|[─-╿\s]+", text):
            return True
        values = cells(text)
        if len(values) != len(self._columns):
            self._columns = None
            return False
        named = {name: value for name, value in zip(self._columns, values, strict=True) if name is not None}
        figures = Figures.of(
            {name: value for name, value in named.items() if value not in ("", "-", "n/a", "None")}
        )
        found = figures if isinstance(figures, Unparsed) else measurement(figures)
        if isinstance(found, Unparsed):
            self._unparsed(found, number, text)
        elif found is not None:
            self._summary(found, number, {})
        return True

    def _stream(self, document: object, number: int) -> None:
        if document is None:
            self._close_stream()
            return
        if self._streamed is not None and _answer_id(self._streamed[0]) != _answer_id(document):
            self._close_stream()
        if self._streamed is None or search(document).understood:
            self._streamed = (document, number)

    def _close_stream(self) -> None:
        streamed, self._streamed = self._streamed, None
        if streamed is not None:
            self._contents(search(streamed[0]), streamed[1])

    def _figures(self, text: str, number: int, *, cut_off: bool) -> Unparsed | None:
        """Add what a line prints as `label: number` to the report that it is part of."""
        found = figures_line(text)
        if found is None:
            if looks_like_length(text):
                return Unparsed("an accept length that cannot be read")
            if not SEPARATOR.match(text):
                self._close_block()
            return None
        if cut_off and not re.search(r"\.\d\d+\s*%?\s*$|[\])]\s*$", text):
            return Unparsed("the last line breaks off") if LENGTH in found else None
        if not found:
            return None
        block = self._block
        places = {int(name): value for name, value in found.items() if name.isdecimal()}
        again = block is not None and (
            bool(block.named.keys() & found.keys())
            or bool(block.shares.keys() & places.keys())
            or (bool(block.shares) and bool(found.keys() & {STEPS, ACCEPTED, PROPOSED}))
            or number - block.last > BLOCK_LINES
        )
        if again:
            self._close_block()
        block = self._block = self._block or _Block(number, number)
        block.last = number
        block.percent |= found.pop("percent", False) is True
        block.shares.update({place: float(str(share)) for place, share in places.items()})
        block.named.update({name: value for name, value in found.items() if not name.isdecimal()})
        return None

    def _close_block(self) -> None:
        block, self._block = self._block, None
        if block is None or not block.whole:
            return
        named = dict(block.named)
        if block.shares and SHARES not in named:
            first = min(block.shares)
            places = range(first, first + len(block.shares))
            if first <= 1 and all(place in block.shares for place in places) and len(places) <= MAX_POSITIONS:
                shares = [block.shares[place] for place in places]
                scale = 100 if block.percent or max(shares) > 1 else 1
                named[SHARES] = [share / scale for share in shares]
        if LENGTH not in named and SHARES in named and ACCEPTED not in named:
            return
        figures = Figures.of(named)
        found = figures if isinstance(figures, Unparsed) else measurement(figures)
        if isinstance(found, Unparsed):
            self._unparsed(found, block.first, "; ".join(f"{name} {value}" for name, value in named.items()))
        elif found is not None:
            self._summary(found, block.first, {})

    def _summary(self, found: Observation, number: int, arguments: dict[str, object]) -> None:
        """A measurement of its own, beside the server whose lines stand around it."""
        server = self.server
        if server.seen and self.begun < MOST_SERVERS:
            server = self._begin(number, self.server.role)
        server.source, server.first_line = "summary", number
        server.arguments.update(arguments)
        add_observation(server, found, self.draft_tokens)
        if server is self.server:  # the next one is another
            self.server = self._roles[server.role] = self._begin(number, server.role)

    def _contents(self, found: Contents, number: int) -> None:
        self._close_block()
        for seen, arguments in found.measured:
            if isinstance(seen, Unparsed):
                self._unparsed(seen, number, "JSON: " + ", ".join(found.keys))
            elif seen.source == "summary":
                known = {name: value for name, value in arguments.items() if name not in ("phase", "time")}
                self._summary(seen, number, known)
            else:
                self._observe(seen, arguments)
        for info in found.infos:
            server = server_of_info(info, self.path, number)
            server.start, server.role = self._starts, self.server.role
            self.reading.servers.append(server)
        if found.samples:
            from eagle3lab.acceptance.metrics import of_samples, server_of_pages

            try:
                page = of_samples(found.samples, self.path)
            except InputError:
                found.keys += [name for name, _, _ in found.samples[:6]]
            else:
                self.reading.servers.append(server_of_pages([page], self.path).server)
                return
        if not found.measured and not found.infos and len(self.reading.keys) < EXAMPLES:
            self.reading.keys += [key for key in found.keys if key not in self.reading.keys]


def _answer_id(document: object) -> object:
    """Which answer a piece of a streamed one belongs to."""
    if not isinstance(document, dict):
        return None
    meta = document.get("meta_info")
    return document.get("id") or (meta.get("id") if isinstance(meta, dict) else None)


def server_of_info(info: ServerInfo, path: str, number: int = 1) -> Server:
    """The server that an answer of `/server_info` is about: its settings, and its accept length, one a DP rank."""
    server = Server(path, number, dict(info.arguments), source="sglang-info")
    if info.release is not None:
        server.arguments["release"] = info.release
    for rank, length in enumerate(info.accept_lengths):
        label = f"DP{rank}" if len(info.accept_lengths) > 1 else ""
        server.series_of(label).append(time=float("nan"), length=length)
    return server


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
    server.remarks += [
        note for note in seen.notes if note not in server.remarks and len(server.remarks) < EXAMPLES
    ]
    if seen.idle:
        series.idle += 1
        return
    length, steps = seen.accept_length, seen.verify_steps
    if steps is None and seen.proposed and draft_tokens and draft_tokens > 1 and seen.source == "vllm":
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
    elif seen.per_position:
        server.shares = seen.per_position


def _whole(seen: Observation, text: str) -> bool:
    """Whether a last line without a newline can be trusted to be whole: its last number might go on."""
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


class LogFollower:
    """Reads a growing log piece by piece. A line counts once its newline is there.

    A file that another one replaces (rotation) is read to its end first; one that is cut short is read anew from
    its beginning. Either way what follows is another server, and what was read before stays.

    Args:
        path: The file, which need not be there yet, or "-" for standard input.
        draft_tokens: D when known.
    """

    def __init__(self, path: str, draft_tokens: int | None = None) -> None:
        self.path = path
        self.begun_anew = 0
        self.ended = False
        self._draft_tokens = draft_tokens
        self._reading = LogReading()
        self._reader = Reader(self._reading, path, draft_tokens)
        self._file: BinaryIO | None = None
        self._pending = bytearray()
        self._skipping = False

    @property
    def reading(self) -> LogReading:
        """Everything read so far."""
        return replace(self._reading, servers=[server for server in self._reading.servers if server.seen])

    def poll(self) -> bool:
        """Read what was added; whether there was anything.

        Raises:
            InputError: The file cannot be read, is no regular file, or is compressed.
        """
        if self.path == "-":
            return self._poll_input()
        try:
            return self._poll_file()
        except PermissionError:
            raise InputError("this file may not be read", path=self.path) from None
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot be read: {getattr(error, 'strerror', None) or error}", path=self.path
            ) from None

    def close(self) -> None:
        """Stop: count a last line without its newline, as far as it can be trusted."""
        if self._pending and not self._skipping:
            self._reader.take(bytes(self._pending))
        self._reader.close()
        self._pending.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _poll_file(self) -> bool:
        try:
            now = Path(self.path).stat()
        except FileNotFoundError:  # not yet there, or moved away and not yet made again
            return self._read_on()
        if not stat.S_ISREG(now.st_mode):
            what = "this is a folder, not a log" if stat.S_ISDIR(now.st_mode) else "is no regular file"
            raise InputError(
                what, path=self.path, advice="Pipe it in: COMMAND | eagle3lab acceptance - --follow"
            )
        if self._file is None:
            self._open()
        found = False
        assert self._file is not None
        ours = os.fstat(self._file.fileno())
        if (ours.st_dev, ours.st_ino) != (now.st_dev, now.st_ino):
            found = self._read_on()
            self.close()
            self._anew()
            self._open()
        elif now.st_size < self._file.tell():
            self._file.seek(0)
            self._pending.clear()
            self._anew()
        return self._read_on() or found

    def _open(self) -> None:
        self._file = Path(self.path).open("rb")  # noqa: SIM115 (kept open until `close`)
        if self._file.read(4).startswith((*COMPRESSED, b"\xff\xfe", b"\xfe\xff")):
            raise InputError(
                "a compressed log, or one in UTF-16, is not followed",
                path=self.path,
                advice="Read it without --follow",
            )
        self._file.seek(0)

    def _anew(self) -> None:
        self.begun_anew += 1
        for series in self._reader.server.series.values():
            series.close()
        self._reader = Reader(self._reading, self.path, self._draft_tokens)
        del self._reading.servers[:-MOST_SERVERS]

    def _read_on(self) -> bool:
        found = False
        while self._file is not None and (data := self._file.read(CHUNK)):
            self._add(data)
            found = True
        return found

    def _poll_input(self) -> bool:
        found = False
        while not self.ended and select.select([0], [], [], 0)[0]:
            data = os.read(0, CHUNK)
            self.ended = not data
            if data:
                self._add(data)
                found = True
        return found

    def _add(self, data: bytes) -> None:
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            self._pending += data
            if len(self._pending) > LONGEST_LINE:
                self._reading.overlong += not self._skipping
                self._skipping = True
                self._pending.clear()
            return
        if self._skipping:  # the rest of a line that was too long
            head = head.partition(b"\n")[2]
            self._skipping = False
        whole = bytes(self._pending) + head + newline
        self._pending = bytearray(tail)
        self._reader.take(whole)
