"""Lines of a log with what stood before them taken off: the one stage that every reader of logs goes through.

People keep logs as their tools hand them out: Docker's json-file, Loki and Kubernetes JSON, CRI, compose, `kubectl`,
journald, Ray, torchrun, with colours, in UTF-16, compressed. `read_lines` opens such a file and gives each line as the
program wrote it, with the name of the process or container that wrote it, so that lines of several workers that stand
between each other can be told apart.

Everything here is bounded: a line longer than `LONGEST_LINE` is skipped and counted, a compressed file may grow to
`MOST_EXPANSION` times its size, and only regular files (or standard input) are read.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from eagle3lab.errors import InputError

CHUNK = 2 << 20
"""Bytes read at a time."""

LONGEST_LINE = 16 << 20
"""Longest line, in bytes, that is read as a line; a longer one is counted and skipped."""

LARGEST_DOCUMENT = 64 << 20
"""Largest file, in bytes, that is parsed as one JSON document."""

MOST_EXPANSION = 500
"""How many times its own size a compressed file may grow to before reading stops; real logs shrink 10 to 50 times."""

FREE_EXPANSION = 256 << 20
"""Decompressed bytes up to which the ratio is not asked for."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BZIP2 = b"BZh"
_XZ = b"\xfd7zXZ\x00"
_AHEAD = 64
COMPRESSED = (_GZIP, _ZSTD, _BZIP2, _XZ)
"""How compressed files begin."""


@dataclass(slots=True)
class Damage:
    """What could not be read: lines skipped for their length, and why a file broke off before its end."""

    overlong: int = 0
    broken: str = ""


@contextmanager
def open_log(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open `path` ("-" is standard input) as UTF-8 bytes: decompressed, and recoded from UTF-16, by its first bytes.

    Raises:
        InputError: no such file, no regular file, no permission, or zstd without a module that reads it.
    """
    if str(path) == "-":
        yield _plain(io.BufferedReader(cast(Any, sys.stdin.buffer)), "-", 0)
        return
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            folder = stat.S_ISDIR(status.st_mode)
            raise InputError(
                "this is a folder, not a log" if folder else "is no regular file",
                path=path,
                advice="Name the log file itself"
                if folder
                else "Pipe it in: COMMAND | eagle3lab acceptance -",
            )
        with Path(path).open("rb") as file:
            yield _plain(file, str(path), status.st_size)
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except PermissionError:
        raise InputError("this file may not be read", path=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    except ValueError:  # a name with a zero byte
        raise InputError("is no file name", path=path) from None


def _plain(file: io.BufferedReader, path: str, size: int) -> IO[bytes]:
    magic = file.peek(_AHEAD)[:_AHEAD]
    opened: IO[bytes] = file
    if magic.startswith(_GZIP):
        opened = cast(IO[bytes], _Bounded(gzip.GzipFile(fileobj=file), size))
    elif magic.startswith(_ZSTD):
        opened = cast(IO[bytes], _Bounded(_zstd(file, path), size))
    elif magic.startswith(_BZIP2):
        import bz2

        opened = cast(IO[bytes], _Bounded(bz2.BZ2File(file), size))
    elif magic.startswith(_XZ):
        import lzma

        opened = cast(IO[bytes], _Bounded(lzma.LZMAFile(file), size))  # noqa: SIM115
    if isinstance(opened, _Bounded):
        magic = opened.peek()
    # Half of the bytes of a log in UTF-16 are zero; anything else that begins with its mark is not.
    if magic.startswith((b"\xff\xfe", b"\xfe\xff")) and 3 * magic.count(0) >= len(magic) - 2:
        return cast(IO[bytes], _Recoded(opened))
    return opened


def _zstd(file: io.BufferedReader, path: str) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14

        return zstd.ZstdFile(file)
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise InputError(
            "this log is compressed with zstd, which needs a module to read",
            path=path,
            advice="pip install zstandard, or pipe it in: zstd -dc LOG | eagle3lab acceptance -",
        ) from None
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)


class _Bounded:
    """A decompressed stream that ends with an error where it grows beyond what a log can."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._most = max(FREE_EXPANSION, size * MOST_EXPANSION) if size else 64 * FREE_EXPANSION
        self._ahead = b""
        self._given = 0

    def peek(self) -> bytes:
        try:
            self._ahead = self._file.read(_AHEAD)
        except (EOFError, OSError, zlib.error, ValueError):
            self._ahead = b""
        return self._ahead

    def read(self, size: int) -> bytes:
        data: bytes = self._ahead or self._file.read(size)
        self._ahead = b""
        self._given += len(data)
        if self._given > self._most:
            raise ValueError(f"expands to more than {self._most >> 20} MB")
        return data


class _Recoded:
    """UTF-16 with a byte-order mark as UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        import codecs

        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")

    def read(self, size: int) -> bytes:
        while data := self._file.read(size):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", "replace")


def chunks(file: IO[bytes], damage: Damage, size: int = CHUNK, pad: int = 0) -> Iterator[bytes]:
    """Whole lines of `file`, a chunk at a time; the last chunk ends without a newline where the file does.

    Memory is bounded by the longest line (`LONGEST_LINE`). `pad` zero bytes follow the lines of each chunk.
    """
    pending: list[bytes] = []
    behind = bytes(pad)
    have, skipping = 0, False
    while True:
        data = _read(file, size, damage)
        if not data:
            break
        if skipping:
            newline = data.find(b"\n")
            if newline < 0:
                continue
            data, skipping = data[newline + 1 :], False
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pending, memoryview(data)[:cut], behind])
            pending, have = [data[cut:]], len(data) - cut
        else:
            pending.append(data)
            have += len(data)
            if have > LONGEST_LINE:
                damage.overlong += 1
                pending, have, skipping = [], 0, True
    if have and not skipping:
        yield b"".join([*pending, behind])


def _read(file: IO[bytes], size: int, damage: Damage) -> bytes:
    try:
        return file.read(size)
    except (EOFError, OSError, zlib.error, ValueError) as error:
        damage.broken = str(error) if isinstance(error, ValueError) else type(error).__name__
    except Exception as error:
        if type(error).__name__ not in ("ZstdError", "LZMAError"):  # those modules' own errors
            raise
        damage.broken = type(error).__name__
    return b""


_ANSI = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]"  # a real escape sequence
    r"|\[(?:\d{1,3}(?:;\d{1,3})*m|m(?![\w.]))"  # one whose escape byte a viewer or a copy dropped
)


def strip_colours(text: str) -> str:
    """`text` without ANSI colour sequences, with their escape byte or without it."""
    if "[" not in text or ("\x1b" not in text and "m" not in text):
        return text
    return _ANSI.sub("", text)


_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_SHORT_TIME = re.compile(r"(?<!\d)(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?!\d)")
_RANK = re.compile(r"(?<![A-Za-z0-9])((?:ATTN_|MOE_)?(?:DP|TP|PP|EP|CP))(\d{1,5})(?![A-Za-z0-9])")
_PID = re.compile(r"\bpid[=:]\s*(\d{1,10})")

YEARLESS = 2000
"""The year given to times that print none (vLLM): a leap year, so that every day of a year is one."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the head of a line says.

    time: seconds since the epoch as if UTC (logs print local time without a zone), NaN when absent.
    ranks: e.g. {"DP": 0, "TP": 1}.
    pid: process id, when printed.
    """

    time: float
    ranks: dict[str, int]
    pid: int | None

    @property
    def label(self) -> str:
        """`DP0 TP1 pid 77`: ranks in the order that SGLang prints, and the process where the line names one."""
        names = [f"{name}{rank}" for name, rank in self.ranks.items()]
        return " ".join([*names, f"pid {self.pid}"] if self.pid is not None else names)


def parse_prefix(head: str) -> Prefix:
    """Time, ranks and process id from the part of a line before its message."""
    ranks: dict[str, int] = {}
    for name, number in _RANK.findall(head.replace("_TP", " TP").replace("_EP", " EP").replace("_PP", " PP")):
        ranks.setdefault(name, int(number))
    pid = _PID.search(head)
    return Prefix(_seconds(head), ranks, int(pid[1]) if pid else None)


def _seconds(head: str) -> float:
    """The last date of a head, the one nearest to the message, with a year or without one."""
    *_, match = [None, *_TIME.finditer(head)]
    *_, short = [None, *_SHORT_TIME.finditer(head, match.end() if match else 0)]
    if match is not None and short is None:
        year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
        micro = int((match[7] or "0").ljust(6, "0"))
    elif short is not None:
        month, day, hour, minute, second = (int(part) for part in short.groups())
        year, micro = YEARLESS, 0
    else:
        return float("nan")
    try:
        return datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC).timestamp()
    except ValueError:
        return float("nan")


class Line(NamedTuple):
    """A line of a program.

    number: 1-based line of the file that it came from; several lines can come from one (JSON, a carriage return).
    stream: the container, process or rank that wrote it, by the names in front of it; empty where none stands there.
    role: the container or service alone, which stays the same when it is started again.
    head: what stood before the text, wrappers and the logger's own prefix, for its time and ranks (`parse_prefix`).
    text: the message, its indentation kept.
    """

    number: int
    stream: str
    head: str
    text: str
    role: str = ""


_CLOCK = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_LEVEL = r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|WARN|TRACE|FATAL)"
_HEAD = re.compile(
    rf"(?P<cri>{_CLOCK}(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) (?P<part>[FP])(?: |$))"  # containerd, CRI-O
    rf"|(?P<sglang>\[{_CLOCK}[^\]\n]{{0,60}}\](?: |$))"
    rf"|(?P<vllm>{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]{{1,80}}:\d{{1,6}}\](?: |$))"
    rf"|(?P<piped>{_CLOCK}(?:Z|[+-]\d\d:?\d\d)? \| )"
    rf"|(?P<logger>{_CLOCK} (?:-? ?{_LEVEL}\b)[ -]{{0,9}}(?:\d{{1,9}} )?(?:\[[\w./-]{{1,80}}:\d{{1,6}}\] )?(?:- |: )?)"
    rf"|(?P<journal>(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d|{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?)"
    r" [\w.-]{1,80} (?P<unit>[\w.@/-]{1,80}\[\d{1,10}\]):(?: |$))"
    rf"|(?P<timestamp>{_CLOCK}(?:Z|[+-]\d\d:?\d\d)(?: |\t|$))"
    r'|(?P<loki>\{(?:[\w.]{1,80}="[^"\n]{0,300}",? ?){1,40}\}(?: |\t))'
    r"|(?P<pod>\[pod/[\w./-]{1,200}\](?: |$))"
    r"|(?P<process>\((?:[A-Za-z_][\w.:-]{0,80} )?(?:rank=\d+ )?pid=\d{1,10}(?:, ip=[\w.:]{1,45})?\)(?: |$))"
    r"|(?P<rank>\[(?:rank|default)\d{1,5}\]:? ?)"
    r"|(?P<task>\d{1,5}: (?=[\[(]|Traceback|\s+File|INFO|ERROR|WARNING))"  # srun --label
    r"|(?P<compose>\[?(?!\d+\s*\|)[A-Za-z0-9][\w.-]{0,80}\]?[ \t]{0,80}\|(?: |$))"
    rf"|(?P<python>{_LEVEL}:[\w.]{{1,120}}:)"
    r"|(?P<tensorrt>\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] (?:\[[\w -]{1,20}\] ?){1,4}|\[TensorRT-LLM\]\[\w+\] )"
    r"|(?P<words>(?:[\w./:@+=>#~-]{1,80} {1,20}){1,4}"  # what no tool here is known by, before a head that is
    rf"(?=\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d|\([A-Za-z_][\w.:-]{{0,80}} pid=\d|{_LEVEL} \d\d-\d\d \d\d:))"
)
_NAMES = ("pod", "process", "rank", "task", "compose", "words")
"""Kinds of heads that say who wrote a line."""

_OUTERMOST = 12
_BAR = re.compile(
    r"[^|\n]{0,200}\d{1,3}%(?: Completed)? ?\|(?:[^|\n]{0,200}\|)? ?\d{1,9}(?:/\d{1,9})? \[[^\]\n]{0,80}\]"
)
_REPEATED = re.compile(r"\s*\[repeated \d{1,9}x across cluster\][^\n]{0,200}$")
_LOGFMT = re.compile(
    r'(?:\w{1,20}=(?:"[^"]{0,200}"|\S{1,200}) ){1,20}msg="(?P<text>(?:[^"\\]|\\.){0,100000})"'
)
_TRACEBACK = "Traceback (most recent call last)"

_MESSAGE_KEYS = ("log", "line", "MESSAGE", "message", "msg", "textPayload", "body", "content", "@message")
_SURE = {"log", "line", "MESSAGE", "textPayload", "@message"}
_BESIDE = {
    "time", "timestamp", "ts", "@timestamp", "level", "severity", "stream", "labels", "kubernetes", "container_name",
    "_source", "logger", "name", "host", "hostname", "date", "fields", "pod", "namespace", "tag", "ingestionTime",
}  # fmt: skip
_WHO = ("container_name", "container", "pod", "pod_name", "instance", "_SYSTEMD_UNIT", "name")


def messages(document: object) -> list[tuple[str, str]] | None:
    """(who wrote it, text) of each log record in a JSON value; None where it is no record of a log.

    Docker's json-file, Kubernetes and Loki records and answers, journald's and the common cloud exports are known.
    A text may hold several lines; one without a newline at its end was written without it.
    """
    if isinstance(document, list):
        found = [messages(item) for item in document[:1_000_000]]
        known = [record for one in found if one for record in one]
        return known if known and all(one is not None for one in found) else None
    if not isinstance(document, dict):
        return None
    for inner in ("data", "result", "hits", "_source", "events", "streams", "jsonPayload"):
        if isinstance(document.get(inner), dict | list) and (known_inside := messages(document[inner])):
            return known_inside
    values = document.get("values")
    if isinstance(values, list) and values and all(isinstance(v, list) and len(v) >= 2 for v in values):
        who = _who(document.get("stream"))
        return [(who, f"{value[1]}\n") for value in values if isinstance(value[1], str)]
    for key in _MESSAGE_KEYS:
        value = document.get(key)
        if isinstance(value, list) and key == "MESSAGE":  # journald's way to write what is not UTF-8
            value = bytes(b for b in value if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
        if isinstance(value, str) and (key in _SURE or _BESIDE & document.keys()):
            partial = key == "log" and not value.endswith("\n") and "stream" in document
            return [(_who(document), value if partial or value.endswith("\n") else f"{value}\n")]
    return None


def _who(record: object) -> str:
    if not isinstance(record, dict):
        return ""
    for within in (record, record.get("kubernetes"), record.get("labels")):
        if isinstance(within, dict):
            for key in _WHO:
                if isinstance(value := within.get(key), str):
                    return value
    return ""


class Unwrapper:
    """Takes off what stands before the lines of one file, line after line.

    A line that a runtime cut into pieces (Docker's json-file at 16 KB, CRI's `P`) is put together again. A head that
    no pattern here knows is learnt from the line that begins a traceback: what stands before "Traceback" there is
    taken off the lines of that stream that begin alike.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}
        self._learnt: dict[str, re.Pattern[str]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a line was begun that a later one goes on with."""
        return bool(self._parts)

    def unwrap(self, raw: str, number: int) -> Iterator[Line]:
        """The lines in `raw`, line `number` of the file."""
        text = raw.rstrip("\r\n")
        outer = Line(number, "", "", "")
        for piece in text.split("\r") if "\r" in text else (text,):
            if piece or piece is text:
                yield from self._unwrap(piece, outer, 0)

    def _unwrap(self, text: str, outer: Line, depth: int) -> Iterator[Line]:
        """The lines in `text`, which stood inside of `outer`."""
        text = _REPEATED.sub("", strip_colours(text)) if "[" in text else text
        at, head = 0, outer.head
        names, roles = [outer.stream], [outer.role]
        for _ in range(_OUTERMOST):
            match = _HEAD.match(text, at)
            if match is None and (bar := _BAR.match(text, at)):
                at = bar.end()
                if at == len(text):
                    return
                continue
            if match is None or match.end() == at:
                break
            at, kind = match.end(), match.lastgroup
            if match["part"]:
                joined = self._joined(f"cri {names}", text[at:], partial=match["part"] == "P")
                if joined is None:
                    return
                text, head, at = joined, head + text[:at], 0
            elif match["unit"]:
                names.append(match["unit"])
                roles.append(match["unit"].partition("[")[0])
            elif kind in _NAMES:
                names.append(match[0].strip(" \t|"))
                if kind in ("pod", "compose"):
                    roles.append(names[-1])
        line = Line(outer.number, _together(names), head + text[:at], text[at:], _together(roles))
        inner = list(self._inside(line)) if depth < 3 else []
        for name, before, piece in inner:
            within = line._replace(
                stream=_together([line.stream, name]),
                role=_together([line.role, name]),
                head=line.head + before,
            )
            yield from self._unwrap(piece, within, depth + 1)
        if not inner and not (depth < 3 and self._began(line)):
            yield self._without_learnt(line)

    def _inside(self, line: Line) -> Iterator[tuple[str, str, str]]:
        """Who wrote it, what stands before it, and the text, of each line in a record of a log."""
        if line.text.startswith("{"):
            for who, message in _records(line.text) or ():
                whole = self._joined(f"json {who}", message, partial=not message.endswith("\n"))
                for piece in re.split(r"[\r\n]+", whole) if whole is not None else ():
                    if piece:
                        yield who, "", piece
        elif "msg=" in line.text[:2000] and (match := _LOGFMT.match(line.text)):
            message = match["text"].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
            for piece in message.split("\n"):
                yield "", line.text[: match.start("text")], piece

    def _began(self, line: Line) -> bool:
        """Whether a record holds the beginning of a line, or nothing."""
        return line.text.startswith("{") and _records(line.text) is not None

    def _without_learnt(self, line: Line) -> Line:
        """The line without a head that was learnt; what stands before "Traceback" is."""
        learnt = self._learnt.get(line.stream)
        if learnt is not None and (match := learnt.match(line.text)):
            return line._replace(head=line.head + match[0], text=line.text[match.end() :])
        if 0 < (place := line.text.find(_TRACEBACK)) <= 300 and len(self._learnt) < 1024:
            shape = re.sub(r"\d+", r"\\d+", re.escape(line.text[:place]))
            self._learnt[line.stream] = re.compile(shape.rstrip("\\ ") + r" ?")
        return line

    def _joined(self, key: str, text: str, *, partial: bool) -> str | None:
        """`text` with the pieces before it; None while more is to come. Pieces beyond the longest line are dropped."""
        parts = self._parts.setdefault(key, []) if partial else self._parts.pop(key, [])
        if partial:
            if sum(map(len, parts)) < LONGEST_LINE and len(self._parts) < 256:
                parts.append(text)
            return None
        return "".join([*parts, text])


def _together(names: Iterable[str]) -> str:
    return " ".join(name for name in names if name)


def _records(text: str) -> list[tuple[str, str]] | None:
    if not any(f'"{key}"' in text for key in (*_MESSAGE_KEYS, "values")):
        return None
    try:
        return messages(json.loads(text))
    except (ValueError, RecursionError):
        return None


def whole_document(path: str | PathLike[str]) -> object | None:
    """The JSON value that a file is as a whole, or the list of those in it; None where it is no JSON, or one a line.

    Raises:
        InputError: The file cannot be opened.
    """
    with open_log(path) as file:
        damage = Damage()
        first = _read(file, 1 << 16, damage).removeprefix(b"\xef\xbb\xbf")
        if not _JSON.match(first):
            return None
        head, newline, _ = first.lstrip().partition(b"\n")
        if newline and head.strip() not in (b"{", b"[") and _is_json(head):
            return None
        data = [first.lstrip()]
        size = len(first)
        while size <= LARGEST_DOCUMENT and (more := _read(file, CHUNK, damage)):
            data.append(more)
            size += len(more)
    if size > LARGEST_DOCUMENT or damage.broken:
        return None
    return _values(b"".join(data).decode("utf-8", "replace"))


def _values(text: str) -> object | None:
    """The JSON value in `text`, or the list of several that stand one after another; None where it is anything else."""
    decoder, found, at = json.JSONDecoder(), [], 0
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            found.append(value)
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
    except (ValueError, RecursionError):
        return None
    return found[0] if len(found) == 1 else found


_JSON = re.compile(rb"\s*(?:\{\s*\"|\[\s*[\[{\"])")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def read_lines(path: str | PathLike[str], damage: Damage | None = None) -> Iterator[Line]:
    """Every line of a log ("-" is standard input), unwrapped.

    Args:
        path: The file: plain, gzip or zstd; UTF-8, or UTF-16 with a byte-order mark; or a JSON export of log records.
        damage: Where to say what could not be read.

    Raises:
        InputError: The file cannot be opened.
    """
    document = whole_document(path) if str(path) != "-" else None
    records = messages(document) if document is not None else None
    if records is not None:
        yield from document_lines(records)
        return
    damage = damage if damage is not None else Damage()
    unwrapper, number = Unwrapper(), 0
    with open_log(path) as file:
        for chunk in chunks(file, damage):
            for raw in chunk.removesuffix(b"\n").split(b"\n"):
                number += 1
                text = raw.decode("utf-8", "replace")
                yield from unwrapper.unwrap(text.removeprefix("\ufeff") if number == 1 else text, number)


def document_lines(records: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """The lines of log records (see `messages`), each record's place standing for a line number."""
    unwrapper = Unwrapper()
    for number, (who, text) in enumerate(records, 1):
        for piece in text.splitlines():
            for line in unwrapper.unwrap(piece, number):
                yield line._replace(stream=_together([who, line.stream]), role=_together([who, line.role]))
