"""A log that is still being written: what was added since the last look, through rotation and truncation."""

from __future__ import annotations

import os
import select
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from eagle3lab.acceptance.logs.reader import MOST_SERVERS, LogReading, Reader
from eagle3lab.acceptance.logs.source import CHUNK, COMPRESSED, LONGEST_LINE, PAD, Chunk
from eagle3lab.errors import InputError


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
            InputError: The file cannot be read, or is compressed.
        """
        if self.path == "-":
            return self._poll_input()
        try:
            return self._poll_file()
        except IsADirectoryError:
            raise InputError("this is a folder, not a log", path=self.path) from None
        except PermissionError:
            raise InputError("this file may not be read", path=self.path) from None

    def close(self) -> None:
        """Stop: count a last line without its newline, as far as it can be trusted."""
        if self._pending and not self._skipping:
            self._take(bytes(self._pending), complete=False)
        self._pending.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _poll_file(self) -> bool:
        try:
            now = Path(self.path).stat()
        except FileNotFoundError:  # not yet there, or moved away and not yet made again
            return self._read_on()
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
        if self._file.read(4).startswith(COMPRESSED):
            raise InputError(
                "a compressed log does not grow", path=self.path, advice="Read it without --follow"
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
        self._take(whole, complete=True)

    def _take(self, data: bytes, *, complete: bool) -> None:
        if data.strip(b"\n") or complete:
            self._reader.take(Chunk(bytearray(data + bytes(PAD)), len(data), complete=complete))
