"""What a server died of, by its log: one open traceback a worker, chained exceptions, and what is said without one.

A server that lives writes tracebacks too (SGLang 0.5.9 one at every start where an optional package is not installed):
only what stands after the last line that a living server writes is a death. A log that breaks off inside a traceback,
or begins inside one, still says that the server died.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from os import PathLike

from eagle3lab.acceptance.lines import Line, open_log, parse_prefix, read_lines

SERVES = re.compile(
    r"fired up and ready to roll|Application startup complete|Decode batch|HTTP/1\.1\" 200"
    r"|Avg generation throughput: (?!0\.0 )|SpecDecoding metrics: Mean"
)
"""A line that only a living server writes, whichever rank died before: it became ready, or it answered."""

STARTS = re.compile(r"server_args=|ServerArgs\(|Initializing a V1 LLM engine|vLLM API server version")
"""A line that a server writes once when it starts."""

_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(
    r'\s*File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7})(?:, in (?P<function>.{1,200}))?$'
)
_ERROR = re.compile(
    r"(?P<error>(?:[A-Za-z_]\w*\.){0,8}(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Errors|Iteration)|[A-Z]\w*))"
    r"(?:: (?P<text>.*))?$"
)
_ALONE = re.compile(r"(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception): \S")
_GROUP = re.compile(r"^\s*(?:\+[-+ ]*(?:\d+ -+)?|\| ?)")
_MARKERS = re.compile(r"[\s~^]*[~^]{2,}[\s~^]*")
_BAR = re.compile(r"\d{1,3}%(?: Completed)? ?\|")
_CLOCKS = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_ASSERT = re.compile(r"Assertion `.{1,400}` failed|device-side assert|out of bounds: ")
_END = re.compile(
    r"^Killed\b|\bKilled process \d|Out of memory: Kill|oom-kill|Received sigquit from a child process"
    r"|(?:exit(?:ed|ing)?(?: with)?(?: exit)? ?code|exitcode)[:= ]+-?(?!0\b)\d+|Segmentation fault|Fatal Python error"
    r"|terminate called after throwing|scheduler is dead|EngineCore (?:failed to start|died|encountered a fatal error)"
    r"|WorkerProc failed to start|Worker proc \S+ died|Signal (?:6|7|9|11)\b|^Aborted\b|SIGKILL|SIGSEGV"
    r"|^\S+: error: (?:unrecognized arguments|argument --|ambiguous option|the following arguments)"
)
# Exceptions that say only that another process died.
_FOLLOWS = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineGenerateError|WorkerProc initialization failed"
    r"|Connection (?:closed|reset) by peer|^(?:BrokenPipe|EOF|ConnectionReset|ChildFailed)Error|scheduler is dead"
    r"|scheduler died during init|^(?:SystemExit|KeyboardInterrupt)|CancelledError|cancelled|Failed core proc"
    r"|One or more worker|[Pp]lease see the error messages above|[Ss]ee (?:the )?(?:stack trace|root cause) above"
)
_HINTS = (
    b"Traceback", b"Error", b"illed", b"sigquit", b"xit code", b"exitcode", b"SIG", b"atal", b": error: ",
    b"Segmentation", b'File "', b'"MESSAGE":[', b'"MESSAGE": [',
)  # fmt: skip
_NAN = float("nan")
_SAME_DEATH_S = 120
_MOST_FRAMES, _MOST_LINES, _MOST_TEXT, _MOST_KEPT = 400, 80, 12, 64


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a traceback: file and function as printed, 1-based line, and its line of source ("" if not shown)."""

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.code}"


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception of a traceback.

    Attributes:
        error: Its type as printed, "torch.OutOfMemoryError".
        text: Its message, further lines included; "" where there is none.
        frames: Outermost first.
        line: 1-based line of the log with the exception.
    """

    error: str
    text: str
    frames: tuple[Frame, ...]
    line: int

    def __str__(self) -> str:
        return f"{self.error}: {self.text}" if self.text else self.error


@dataclass(frozen=True, slots=True)
class Death:
    """What a server died of.

    Attributes:
        raised: The exceptions of the first traceback that says more than that another process died, in the order of
            print: the root first. () where the log holds no exception.
        worker: Rank, process or container that wrote it; "" where none is named.
        line: 1-based line where it begins.
        cut: Whether the log breaks off before the exception of this traceback.
        said: Where there is no exception, the line that says that the server died.
        asserts: Assertions on the device before it, each once, with their lines.
        served: Whether the server had served before.
        served_s: Seconds between the first sign of serving and the death; NaN where the log has no times.
        printed: The lines of the traceback.
        others: Further tracebacks of the same death.
    """

    raised: tuple[Raised, ...]
    worker: str
    line: int
    cut: bool = False
    said: str = ""
    asserts: tuple[tuple[int, str], ...] = ()
    served: bool = False
    served_s: float = _NAN
    printed: tuple[str, ...] = ()
    others: int = 0

    @property
    def error(self) -> str:
        """The last exception of the chain on one line, or what is said instead."""
        return str(self.raised[-1]).partition("\n")[0] if self.raised else self.said


@dataclass
class _Open:
    """A traceback that is being read."""

    worker: str
    line: int
    time: float
    served_at: float | None = None  # first sign of serving of the run that it belongs to
    shape: str | None = None  # what stands before its lines, times apart; None until the first of them
    raised: list[Raised] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    text: list[str] = field(default_factory=list)  # of the exception, once its line was read
    error: tuple[str, int] | None = None
    ended: bool = False
    chained: bool = False
    printed: list[str] = field(default_factory=list)

    def close(self) -> None:
        if self.error is not None:
            text = "\n".join(self.text).strip()
            self.raised.append(Raised(self.error[0], text, tuple(self.frames), self.error[1]))
            self.frames, self.text, self.error = [], [], None
        self.ended = True

    def keep(self, *texts: str) -> None:
        """Keep lines to be shown: of very many the first and the last."""
        self.printed += texts
        while len(self.printed) > _MOST_LINES:
            self.printed[_MOST_LINES // 2 : _MOST_LINES // 2 + 2] = ["  …"]

    @property
    def follows(self) -> bool:
        """Whether it only says that another process died."""
        return bool(self.raised) and all(_FOLLOWS.search(str(one)) for one in self.raised)


class Reader:
    """Reads lines one after the other and knows, at any time, what the server has died of."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._found: list[_Open] = []
        self._before: list[_Open] = []  # tracebacks after which a line of a living server came
        self._ends: list[Line] = []
        self._alone: list[tuple[Line, str]] = []
        self._asserts: dict[str, tuple[int, str]] = {}
        self._served_at: float | None = None
        self.earlier: list[Death] = []
        """Deaths of servers that had served, and were started again and served."""

    def read(self, line: Line) -> None:
        """One more line."""
        text = line.text
        if _BAR.search(text[:200]):
            return
        if SERVES.search(text):
            self._restart()
            if self._served_at is None:
                self._served_at = parse_prefix(line.head).time
            return
        if STARTS.search(text) and self._served_at is not None:
            self._served_at = None
        shape = _CLOCKS.sub("", line.head)
        open_ = self._open.get(line.stream)
        at = text.find(_TRACEBACK)
        if at >= 0:
            self._begin(line, open_)
        elif open_ is not None and self._continues(open_, line, shape):
            return
        elif _FRAME.match(text):  # the log begins inside a traceback
            self._begin(line, None)
            self._continues(self._open[line.stream], line, shape)
        else:
            self._outside(line)

    def _outside(self, line: Line) -> None:
        if _ASSERT.search(line.text):
            key = re.sub(r"\d+", "0", line.text.partition("Assertion")[2] or line.text)
            if len(self._asserts) < _MOST_KEPT:
                self._asserts.setdefault(key, (line.number, line.text.strip()))
        if _END.search(line.text) and len(self._ends) < _MOST_KEPT:
            self._ends.append(line)
        elif (match := _ALONE.search(line.text[:400])) and len(self._alone) < _MOST_KEPT:
            self._alone.append((line, line.text[match.start() :]))

    def _restart(self) -> None:
        if any(one.served_at is not None for one in self._found) and (death := self.death()) is not None:
            self.earlier.append(death)
        self._before = [one for one in self._found if one.raised and not one.follows] or self._before
        self._open.clear()
        self._found.clear()
        self._ends.clear()
        self._alone.clear()
        self._asserts.clear()

    def _begin(self, line: Line, open_: _Open | None) -> None:
        if open_ is not None and open_.chained:
            open_.ended = open_.chained = False
            open_.keep(line.text)
            return
        if open_ is not None:
            open_.close()
        prefix = parse_prefix(line.head)
        worker = prefix.label or line.stream.strip("()")
        began = _Open(worker, line.number, prefix.time, self._served_at)
        began.printed.append(line.text)
        self._open[line.stream] = began
        if len(self._found) < _MOST_KEPT:
            self._found.append(began)

    def _continues(self, open_: _Open, line: Line, shape: str) -> bool:
        """Take a line into an open traceback; False where it is none of its lines."""
        text = line.text
        if any(text.startswith(words) for words in _CHAINED):
            open_.close()
            open_.chained = True
            open_.keep("", text, "")
            return True
        if open_.ended:
            return not text.strip() or self._drop(line.stream, open_)
        if open_.shape is None:
            open_.shape = shape
        if shape != open_.shape:
            open_.close()
            return self._drop(line.stream, open_)
        open_.keep(text)
        text = _GROUP.sub("", text) if text.lstrip().startswith(("|", "+")) else text
        if open_.error is not None:
            return self._says_more(open_, line, text)
        if match := _FRAME.match(text):
            if len(open_.frames) < _MOST_FRAMES:
                open_.frames.append(
                    Frame(match["file"], int(match["line"]), (match["function"] or "").strip())
                )
        elif not text.strip() or text[0].isspace():
            if open_.frames and text.strip() and not open_.frames[-1].code and not _MARKERS.fullmatch(text):
                open_.frames[-1] = replace(open_.frames[-1], code=text.strip()[:400])
        elif match := _ERROR.match(text):
            open_.error = (match["error"], line.number)
            open_.text = [match["text"] or ""]
        else:
            open_.printed.pop()
            open_.close()
            return self._drop(line.stream, open_)
        return True

    def _drop(self, stream: str, open_: _Open) -> bool:
        if open_.ended and not open_.chained:
            self._open.pop(stream, None)
        return False

    def _says_more(self, open_: _Open, line: Line, text: str) -> bool:
        """A line after that of the exception: its message goes on until a blank line or another kind of line."""
        if not text.strip():
            open_.close()
        elif len(open_.text) > _MOST_TEXT or _END.search(text) or _ASSERT.search(text) or _ALONE.match(text):
            open_.printed.pop()
            open_.close()
            return self._drop(line.stream, open_)
        else:
            open_.text.append(text.rstrip())
        return True

    def death(self) -> Death | None:
        """What the server died of, by the lines so far; None while nothing says that it died."""
        for one in self._open.values():
            if not one.chained:
                one.close()
        asserts = tuple(self._asserts.values())
        if not self._found and self._ends:
            # A rank that has not heard yet, or a health check, can write between a traceback and the end.
            end = parse_prefix(self._ends[0].head).time
            self._found = [one for one in self._before if abs(end - one.time) <= _SAME_DEATH_S]
        if self._found:
            first = next((one for one in self._found if one.raised and not one.follows), None)
            first = first or next((one for one in self._found if not one.raised), self._found[0])
            cut = bool(first.frames) or not first.raised
            return Death(
                tuple(first.raised), first.worker, first.line, cut, first.printed[-1].strip() if cut else "",
                asserts, first.served_at is not None, first.time - first.served_at if first.served_at else _NAN,
                tuple(first.printed), len(self._found) - 1,
            )  # fmt: skip
        served = self._served_at is not None
        if not self._ends and not (self._alone and (asserts or not served)):
            return None
        known = [(line, text) for line, text in self._alone if not _FOLLOWS.search(text)]
        line, text = known[0] if known else (self._ends[0], "") if self._ends else self._alone[-1]
        match = _ERROR.match(text) if text else None
        raised = (Raised(match["error"], match["text"] or "", (), line.number),) if match else ()
        prefix = parse_prefix(line.head)
        return Death(
            raised, prefix.label or line.stream.strip("()"), line.number, False,
            "" if raised else line.text.strip(), asserts, served,
            prefix.time - self._served_at if self._served_at else _NAN, (line.text,),
        )  # fmt: skip


def death_in(lines: Iterable[Line]) -> Death | None:
    """What the server died of that wrote these lines; None where they do not say that it died."""
    reader = Reader()
    for line in lines:
        reader.read(line)
    return reader.death()


def read_deaths(path: str | PathLike[str]) -> tuple[Death | None, tuple[Death, ...]]:
    """What the last server of a log died of, and what servers before it died of that had served.

    A server that died and was started again, and has not served since, is dead still.

    Args:
        path: The log, as for `read_lines`.

    Raises:
        InputError: The log cannot be opened.
    """
    if not _hints(path):
        return None, ()
    reader = Reader()
    for line in read_lines(path):
        reader.read(line)
    return reader.death(), tuple(reader.earlier)


def _hints(path: str | PathLike[str]) -> bool:
    """Whether any word that a death needs stands in the file: most logs hold none, and are long."""
    with open_log(path) as file:
        before = b""
        while data := file.read(1 << 20):
            if any(word in before + data for word in _HINTS):
                return True
            before = data[-16:]
    return False


def in_engine(frames: tuple[Frame, ...]) -> Iterator[Frame]:
    """The frames in an engine's own files, innermost first."""
    return (one for one in reversed(frames) if re.search(r"/(?:sglang|vllm)/", one.file))
