"""SGLang decode lines by the million: whole chunks at once, as columns.

A line is taken here only if every byte that matters is exactly where the common format puts it: `[date time ranks]
Decode batch, #running-req: N, … accept len: D.DD, accept rate: D.DD,`, after a process prefix like Ray's or after none.
Literals are compared, digits are checked to be digits, and a line that differs anywhere is left for `grammar`. So speed
never costs a wrong number. (One regular expression over the chunk reads the same lines in two to three times the time.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

MOST_LABELS = 64
"""Rank labels told apart in one chunk; lines with further ones are left for `grammar`."""

LONGEST_PLAIN_LINE = 300
"""A prefill or access line longer than this may be two lines run together and is looked at closely."""

PAD = 1024
"""Bytes behind the data that may be looked at: reads past a line near the end of a chunk stay inside the buffer."""

_AFTER_LENGTH = [b", cuda", b", cpu ", b", npu ", b", gen ", b", pre-"]
"""How the field after an accept length begins in releases that print no rate."""

_EPOCH = date(1970, 1, 1).toordinal()


class Chunk:
    """Whole lines, with the places where they begin and end.

    Args:
        buffer: The bytes, and `PAD` more behind them.
        size: How many of them are lines; a last one without a newline is one that the file breaks off in.
    """

    def __init__(self, buffer: bytes, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self.complete = buffer[size - 1 : size] == b"\n"

    @cached_property
    def ends(self) -> Ints:
        """Offset of the end of each line, its newline excluded."""
        import numpy as np

        newlines = np.flatnonzero(np.frombuffer(self.buffer, np.uint8, self.size) == 10)
        return newlines if self.complete else np.append(newlines, self.size)

    @cached_property
    def starts(self) -> Ints:
        """Offset of the start of each line."""
        import numpy as np

        starts = np.empty_like(self.ends)
        starts[:1] = 0
        starts[1:] = self.ends[:-1] + 1
        return starts

    def line(self, index: int) -> bytes:
        """Line `index` without its newline."""
        return self.buffer[int(self.starts[index]) : int(self.ends[index])].rstrip(b"\r")


@dataclass(frozen=True, slots=True)
class Rows:
    """Decode lines of a chunk, in order.

    line: index of the line in the chunk.
    label: index into `labels` (rank labels such as "TP0").
    time: seconds since the epoch, NaN for an impossible date; length: accept length; rate: printed accept rate or NaN;
    running: running requests; context: tokens in the cache per running request, or NaN.
    silent: indices of decode lines that are whole and carry no accept fields.
    """

    line: Ints
    label: Ints
    labels: tuple[str, ...]
    time: Floats
    length: Floats
    rate: Floats
    running: Floats
    context: Floats
    silent: Ints


_PROCESS = re.compile(rb"\([A-Za-z_][\w.:]{0,40} pid=\d{1,10}(?:, ip=[\d.]{7,15})?\) ")
_THROUGHPUT = re.compile(rb", gen throughput \(token/s\): \d{1,15}\.\d{1,6}(?:, |$)")


def scan(chunk: Chunk) -> tuple[Rows, Ints]:
    """The decode lines of a chunk that have the common form, and the indices of the lines left to look at.

    Prefill and access lines are neither: they cannot carry acceptance.
    """
    import numpy as np

    size = chunk.size
    starts = chunk.starts if chunk.complete else chunk.starts[:-1]  # a line cut off is left
    view = _View(chunk)
    origin = _origins(view, starts)
    bracketed = view.text(origin, 1) == b"["
    bracket = origin + 20
    where = np.flatnonzero(bracketed & (bracket < size))
    bracket[where] += (view.bytes_at(bracket[where], 40) == ord("]")).argmax(axis=1)
    message = np.where(bracketed, np.minimum(bracket + 2, size), starts)
    kind = view.text(message, 13)
    closed = bracketed & (view.text(np.minimum(bracket, size), 2) == b"] ")
    short = chunk.ends[: len(starts)] - starts <= LONGEST_PLAIN_LINE
    plain = short & (
        (closed & (kind == b"Prefill batch")) | ((closed | ~bracketed) & view.starts(kind, b"INFO:     "))
    )
    candidates = np.flatnonzero(closed & view.starts(kind, b"Decode batch"))
    candidates = candidates[view.timestamps(origin[candidates])]
    heads = _Heads(starts[candidates], origin[candidates], bracket[candidates])
    rows = _decode_rows(view, chunk, candidates, heads, message[candidates])
    looked = plain.copy()
    looked[rows.line] = True
    looked[rows.silent] = True
    left = np.flatnonzero(~looked)
    if not chunk.complete:
        left = np.append(left, len(chunk.starts) - 1)
    return rows, left


def _origins(view: _View, starts: Ints) -> Ints:
    """Where the `[` of the time should stand: the start of the line, or behind a process prefix `(… pid=…) `."""
    origin = starts.copy()
    prefixed = (view.text(starts, 1) == b"(").nonzero()[0]
    if len(prefixed):
        at = starts[prefixed] + (view.bytes_at(starts[prefixed], 80) == ord("[")).argmax(axis=1)
        behind = view.text(at - 2, 2) == b") "
        origin[prefixed[behind]] = at[behind]
    return origin


@dataclass(frozen=True, slots=True)
class _Heads:
    """Offsets of line starts, of the `[` of the time, and of the `]` behind the ranks."""

    start: Ints
    origin: Ints
    bracket: Ints


class _View:
    """Fixed-width reads at many offsets of a chunk at once; offsets may pass the end by some hundred bytes."""

    REACH = PAD - 128

    def __init__(self, chunk: Chunk) -> None:
        self.buffer = chunk.buffer
        self.size = chunk.size

    def _windows(self, kind: str) -> Any:
        import numpy as np

        return np.ndarray((self.size + self.REACH,), dtype=kind, buffer=self.buffer, strides=(1,))

    def bytes_at(self, offsets: Ints, width: int) -> NDArray[np.uint8]:
        """[n, width] bytes from each offset."""
        import numpy as np

        found: NDArray[np.uint8] = (
            self._windows(f"V{width}")[offsets].view(np.uint8).reshape(len(offsets), width)
        )
        return found

    def text(self, offsets: Ints, width: int) -> Any:
        """[n] byte strings of `width` from each offset."""
        return self._windows(f"S{width}")[offsets]

    @staticmethod
    def starts(texts: Any, head: bytes) -> Mask:
        """Which of the byte strings begin with `head`."""
        same: Mask = texts.astype(f"S{len(head)}") == head
        return same

    def timestamps(self, starts: Ints) -> Mask:
        """Which lines begin with `[dddd-dd-dd dd:dd:dd`."""
        import numpy as np

        head = self.bytes_at(starts, 20)
        ok = np.ones(len(starts), dtype=bool)
        for column, expected in enumerate(b"[dddd-dd-dd dd:dd:dd"):
            ok &= (head[:, column] - 48 <= 9) if expected == ord("d") else head[:, column] == expected
        return ok

    def number(self, offsets: Ints, width: int = 9) -> tuple[Floats, Ints]:
        """The whole number at each offset and its count of digits (0 when there is none, or too many)."""
        import numpy as np

        digits = self.bytes_at(offsets, width + 1) - 48
        numeric = digits <= 9
        count = numeric.argmin(axis=1)  # 0 too when all are digits
        value: Floats = np.zeros(len(offsets))
        for column in range(int(count.max(initial=0))):
            value = np.where(column < count, value * 10 + digits[:, column], value)
        return value, count

    def cents(self, offsets: Ints) -> tuple[Floats, Mask]:
        """The number `D.DD` at each offset and whether there is one."""
        import numpy as np

        text = self.bytes_at(offsets, 4)
        digits = text[:, (0, 2, 3)] - 48
        ok = (digits <= 9).all(axis=1) & (text[:, 1] == ord("."))
        value = (digits.astype(np.int64) @ np.array([100, 10, 1])) / 100
        return value, ok


def _decode_rows(view: _View, chunk: Chunk, lines: Ints, heads: _Heads, message: Ints) -> Rows:
    import numpy as np

    ends = chunk.ends[lines]
    at = message + 12
    separator = view.text(at, 1)
    numbered = separator == b" "  # Decode batch [N],
    if numbered.any():
        _, digits = view.number(at + 2)
        closed = (view.text(at, 2) == b" [") & (digits > 0) & (view.text(at + 2 + digits, 2) == b"],")
        at = np.where(numbered & closed, at + 3 + digits, at)
        separator = np.where(numbered & closed, b",", separator)
    ok = ((separator == b",") | (separator == b".")) & (view.text(at + 1, 15) == b" #running-req: ")
    running, digits = view.number(at + 16)
    at = at + 16 + digits
    ok &= (digits > 0) & (view.text(at, 2) == b", ")
    context, found, plain, silent = _context_and_accept(view, chunk, at, ends, ok, running)
    ok &= found > 0
    length, fine = view.cents(found)
    ok &= fine & (length >= 1)
    with_rate = view.text(found + 4, 15) == b", accept rate: "
    rate, fine = view.cents(found + 19)
    ok &= ~with_rate | (fine & (rate <= 1) & (view.text(found + 23, 2) == b", "))
    # Without a rate another field must follow, whole: a damaged "accept rate" is no missing rate.
    bare = np.flatnonzero(ok & ~with_rate)
    ok[bare] = np.isin(view.text(found[bare] + 4, 6), _AFTER_LENGTH)
    ok &= found < ends
    common = _common_tail(view, found + np.where(with_rate, 23, 4), ends)
    for index in np.flatnonzero(ok & ~(common & plain)).tolist():
        body = bytes(chunk.buffer[int(at[index]) : int(ends[index])])
        ok[index] = (
            body.count(b"accept len") - body.count(b", block accept len: ") == 1
            and body.count(b"accept rate") == with_rate[index]
            and b"[" not in body  # a colour in the middle
        )
    label, labels = _labels(view, heads, ok)
    ok &= label >= 0
    keep = np.flatnonzero(ok)
    return Rows(
        lines[keep],
        label[keep],
        labels,
        _seconds(view.bytes_at(heads.origin[keep], 20)),
        length[keep],
        np.where(with_rate[keep], rate[keep], np.nan),
        running[keep],
        context[keep],
        lines[silent],
    )


def _context_and_accept(
    view: _View, chunk: Chunk, at: Ints, ends: Ints, ok: Mask, running: Floats
) -> tuple[Floats, Ints, Mask, Ints]:
    """Tokens per running request, offset of the accept length's digits, where nothing odd came before it, silent rows.

    The tokens are NaN where they are not printed plainly, the offset is 0 where there is no accept length.
    """
    import numpy as np

    tokens, digits = view.number(at + 10)
    has_tokens = (view.text(at, 10) == b", #token: ") & (digits > 0)
    context = np.where(has_tokens & (running > 0), tokens / np.maximum(running, 1), np.nan)
    usage = at + 10 + digits
    # ", token usage: D.DD, accept len: " follows in the common line; whatever else stands there is searched through.
    common = (
        ok
        & has_tokens
        & (view.text(usage, 15) == b", token usage: ")
        & (view.text(usage + 19, 14) == b", accept len: ")
    )
    found = np.where(common, usage + 33, 0)
    silent = []
    for index in np.flatnonzero(ok & ~common).tolist():
        body = bytes(chunk.buffer[int(at[index]) : int(ends[index])])
        where = body.find(b", accept len: ")
        if where >= 0:
            found[index] = at[index] + where + 14
        elif b"accept" not in body and b"[" not in body and _THROUGHPUT.search(body):
            silent.append(index)
    return context, found, common, np.array(silent, dtype=np.int64)


def _common_tail(view: _View, at: Ints, ends: Ints) -> Mask:
    """Which lines end, from `at` on, as the common line does: graph, throughput and queue, nothing else.

    Elsewhere a second decode line may hide behind the first one's numbers.
    """
    import numpy as np

    yes, no = (b", cuda graph: %s, gen throughput (token/s): " % word for word in (b"True", b"False"))
    graph = view.text(at, len(yes)) == yes
    common = graph | (view.text(at, len(no)) == no)
    at = at + np.where(graph, len(yes), len(no))
    _, digits = view.number(at)
    common &= digits > 0
    at = at + digits
    cents = view.bytes_at(at, 3)
    common &= (cents[:, 0] == ord(".")) & ((cents[:, 1:] - 48) <= 9).all(axis=1)
    common &= view.text(at + 3, 14) == b", #queue-req: "
    _, digits = view.number(at + 17)
    rest = ends - (at + 17 + digits)
    tail: Mask = common & (digits > 0) & (rest >= 0) & (rest <= 3)  # nothing, ", " or a carriage return
    return tail


def _labels(view: _View, heads: _Heads, ok: Mask) -> tuple[Ints, tuple[str, ...]]:
    """For each line the index of its label; -1 where the head has another form or there are too many."""
    import numpy as np

    label = np.full(len(ok), -1, dtype=np.int64)
    labels: list[str] = []
    open_lines = np.flatnonzero(ok)
    for _ in range(MOST_LABELS):
        if not len(open_lines):
            break
        first = open_lines[0]
        start, origin, bracket = (int(column[first]) for column in (heads.start, heads.origin, heads.bracket))
        process, ranks = bytes(view.buffer[start:origin]), bytes(view.buffer[origin + 20 : bracket + 1])
        same = view.text(heads.origin[open_lines] + 20, len(ranks)) == ranks
        same &= heads.origin[open_lines] - heads.start[open_lines] == len(process)
        if process:
            same &= view.text(heads.start[open_lines], len(process)) == process
        name = _label(process, ranks[:-1].decode("latin-1"))
        if name is not None:
            label[open_lines[same]] = len(labels)
            labels.append(name)
        open_lines = open_lines[~same]
    return label, tuple(labels)


def _label(process: bytes, ranks: str) -> str | None:
    """The label of a source, None where its head has not the common form."""
    from eagle3lab.acceptance.lines import parse_prefix

    own = parse_prefix(ranks)
    if ranks != "".join(f" {part}" for part in own.label.split()) or (
        process and not _PROCESS.fullmatch(process)
    ):
        return None
    return parse_prefix(process.decode("ascii", "replace") + ranks).label


def _seconds(head: NDArray[np.uint8]) -> Floats:
    """Seconds since the epoch from `[dddd-dd-dd dd:dd:dd`, as if UTC; NaN for a date that does not exist."""
    import numpy as np

    digit = (head - 48).astype(np.int64)

    def two(column: int) -> Ints:
        value: Ints = digit[:, column] * 10 + digit[:, column + 1]
        return value

    year, month, day = two(1) * 100 + two(3), two(6), two(9)
    hour, minute, second = two(12), two(15), two(18)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    lengths = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    before = np.cumsum(lengths)
    real = (year > 0) & (month >= 1) & (month <= 12)
    month = np.where(real, month, 1)
    real &= (day >= 1) & (day <= lengths[month] + (leap & (month == 2)))
    real &= (hour < 24) & (minute < 60) & (second < 60)
    last = year - 1
    ordinal = (
        last * 365 + last // 4 - last // 100 + last // 400 + before[month - 1] + (leap & (month > 2)) + day
    )
    seconds = (ordinal - _EPOCH) * 86_400.0 + hour * 3_600 + minute * 60 + second
    return np.where(real, seconds, np.nan)
