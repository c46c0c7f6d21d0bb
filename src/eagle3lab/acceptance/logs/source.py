"""Opening a log of any size: plain, gzip or zstd, or standard input, in chunks of whole lines."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from eagle3lab.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 1 << 20
"""Bytes read at a time: whole passes over a chunk stay in the processor's cache."""

LONGEST_LINE = 16 << 20
"""Longest line that is read as a line; a longer one is counted and skipped."""

LONGEST_PLAIN_LINE = 300
"""A prefill or access line longer than this may be two lines run together and is looked at closely."""

PAD = 1024
"""Bytes behind the data that may be looked at: reads past a line near the end of a chunk stay inside the buffer."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
COMPRESSED = (_GZIP, _ZSTD)
"""How compressed files begin."""


@dataclass(frozen=True)
class Chunk:
    """Whole lines in a buffer that is used again for the next chunk.

    buffer: the bytes, `PAD` longer than `size`.
    complete: False when the last line has no newline (the file ends inside it).
    """

    buffer: bytearray
    size: int
    complete: bool

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Offset of the end of each line, its newline excluded."""
        import numpy as np

        newlines = np.flatnonzero(np.frombuffer(self.buffer, np.uint8, self.size) == 10)
        return newlines if self.complete else np.append(newlines, self.size)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Offset of the start of each line."""
        import numpy as np

        starts = np.empty_like(self.ends)
        starts[:1] = 0
        starts[1:] = self.ends[:-1] + 1
        return starts

    def lines(self) -> list[bytes]:
        """Every line without its newline."""
        lines = bytes(self.buffer[: self.size]).split(b"\n")
        return [line.rstrip(b"\r") for line in (lines[:-1] if self.complete else lines)]

    def line(self, index: int) -> bytes:
        """Line `index` without its newline."""
        return bytes(self.buffer[int(self.starts[index]) : int(self.ends[index])]).rstrip(b"\r")


@dataclass(slots=True)
class Damage:
    """What went wrong while reading: lines skipped for their length, and why a compressed file broke off."""

    overlong: int = 0
    broken: str = ""


@contextmanager
def open_log(path: str | PathLike[str]) -> Iterator[IO[bytes]]:
    """Open `path` ("-" is standard input), decompressing by what the file begins with, not by its name.

    Raises:
        InputError: no such file, a folder, no permission, or zstd without a module that reads it.
    """
    if str(path) == "-":
        yield _decompressed(io.BufferedReader(cast(Any, sys.stdin.buffer)), "-")
        return
    try:
        with Path(path).open("rb") as file:
            yield _decompressed(file, str(path))
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except IsADirectoryError:
        raise InputError(
            "this is a folder, not a log", path=path, advice="Name the log file itself"
        ) from None
    except PermissionError:
        raise InputError("this file may not be read", path=path) from None


def _decompressed(file: io.BufferedReader, path: str) -> IO[bytes]:
    magic = file.peek(4)[:4]
    if magic.startswith(_GZIP):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic.startswith(_ZSTD):
        return _zstd(file, path)
    return file


def _zstd(file: io.BufferedReader, path: str) -> IO[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14

        return cast(IO[bytes], zstd.ZstdFile(file))
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
    return cast(
        IO[bytes],
        io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)),
    )


def chunks(file: IO[bytes], damage: Damage, size: int = CHUNK) -> Iterator[Chunk]:
    """Whole lines of `file`, a chunk at a time; memory is bounded by the longest line (`LONGEST_LINE`)."""
    reader: Any = file
    buffer, have, skipping = bytearray(size + PAD), 0, False
    while True:
        room = len(buffer) - PAD
        try:
            read = reader.readinto(memoryview(buffer)[have:room])
        except (EOFError, OSError, zlib.error, ValueError) as error:
            damage.broken = type(error).__name__
            read = 0
        except Exception as error:
            if type(error).__name__ not in ("ZstdError",):  # the optional zstd modules' own error
                raise
            damage.broken = type(error).__name__
            read = 0
        if not read:
            if have and not skipping:
                yield Chunk(buffer, have, complete=False)
            return
        end = have + read
        if skipping:
            newline = buffer.find(b"\n", have, end)
            if newline < 0:
                have = 0
                continue
            buffer[: end - newline - 1] = buffer[newline + 1 : end]
            have, end, skipping = 0, end - newline - 1, False
        cut = buffer.rfind(b"\n", have, end) + 1
        if cut == 0:
            have = end
            if have == room and room >= LONGEST_LINE:
                damage.overlong, skipping, have = damage.overlong + 1, True, 0
            elif have == room:
                grown = bytearray(2 * room + PAD)
                grown[:have] = buffer[:have]
                buffer = grown
            continue
        yield Chunk(buffer, cut, complete=True)
        have = end - cut
        buffer[:have] = buffer[cut:end]
