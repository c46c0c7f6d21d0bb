"""The process between a server and its owner: it writes the log, and ends every last child when either is gone.

Run as a script, in a session of its own, so that Ctrl-C in the owner's terminal and the death of the owner's process
reach the server only through here. It is told what to run in one
JSON line on its standard input and stops the server when more comes or the input ends, when its parent dies, or
when it is asked to by a signal. It reports on its standard output, one JSON object a line:

    {"started": PID}  {"failed": "why not"}  {"log": "why it cannot be written"}
    {"lost": "which of its processes was killed"}  {"exited": CODE}  {"done": true}

A server's processes may leave its session, lose their parent, or ignore a signal. As their subreaper this process
remains the ancestor of them all, and kills until none is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.1
_LAST_WORDS_S = 1.0
# How often a server's parts are looked after, and looked for: as often, while there are new ones, and seldom later.
_LOOK_S, _SEARCH_S, _SETTLED_S = 0.5, 5.0, 60.0
# How long the server may take to notice the loss of one.
_NOTICE_S = 3.0
_PART = "sglang::"


def report(**what: Any) -> None:
    """One line to the owner, who may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(what) + "\n").encode())


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _begin() -> None:
    """In the server, before it is one: die with the supervisor, and hear the signals that a background job ignores.

    SGLang's ranks end the others by SIGQUIT, which a command started with `&` in a script would let pass.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Log:
    """The server's log: secrets are replaced before a line reaches the file; a full disk does not stop the server."""

    def __init__(self, path: str, secrets: list[str], redacted: str) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._redacted = redacted.encode()
        self._pending = b""
        self._file: BinaryIO | None = None
        try:
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  (lives as long as the process)
        except OSError as error:
            self._failed(error)

    def write(self, data: bytes) -> None:
        """Take what the server wrote. Without a line's end, or the place for half a secret, it is kept back.

        A progress bar ends its states with a carriage return, or begins them so: each is a line.
        """
        self._pending += data
        keep = 0 if not self._secrets else max(map(len, self._secrets)) - 1
        ended = max(self._pending.rfind(b"\n"), self._pending.rfind(b"\r")) + 1
        end = max(ended, len(self._pending) - max(keep, 1 << 16))
        self._emit(self._pending[:end])
        self._pending = self._pending[end:]

    def close(self) -> None:
        """Write what was kept back."""
        self._emit(self._pending)
        self._pending = b""

    def _emit(self, data: bytes) -> None:
        for secret in self._secrets:
            data = data.replace(secret, self._redacted)
        try:
            while data and self._file is not None:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._file = None
        report(log=error.strerror)


def descendants() -> list[psutil.Process]:
    """Every process that has this one as an ancestor."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def kill_all() -> None:
    """Kill and reap until no descendant is left; orphans of those killed become ours and are next."""
    while left := descendants():
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _title(process: psutil.Process | None) -> str:
    """What a process calls itself; empty if it is gone."""
    try:
        return "" if process is None else " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


class Parts:
    """The processes a server consists of, which name themselves `sglang::scheduler_TP0` and so on.

    Not every release notices that one of them was killed (0.5.9 waits for its answers for ever).
    """

    def __init__(self) -> None:
        self._known: dict[psutil.Process, str] = {}
        self._searched = self._looked = 0.0
        self._grew = time.monotonic()
        self._lost_at: float | None = None
        self.lost = ""

    def look(self) -> bool:
        """Whether one of them has been gone for longer than the server may take to draw the consequence itself."""
        now = time.monotonic()
        if self._lost_at is not None:
            return now - self._lost_at > _NOTICE_S
        if now - self._searched > (_SEARCH_S if now - self._grew > _SETTLED_S else _LOOK_S):
            self._searched = now
            self._search(now)
        if now - self._looked > _LOOK_S:
            self._looked = now
            for process, title in self._known.items():
                if not _is_alive(process):
                    self._lost_at, self.lost = now, title
        return False

    def _search(self, now: float) -> None:
        for process in descendants():
            named = _title(process)
            # Until it runs another program, a part's child has its title: SGLang's scheduler calls `lscpu` so.
            if named.startswith(_PART) and named != _title(process.parent()) and process not in self._known:
                self._grew = now
                self._known[process] = named


class Supervisor:
    """One server from start to end."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.owner = os.getppid()
        self.log = Log(order["log"], order["secrets"], order["redacted"])
        self.asked_to_stop = self.owner != order["owner"]
        self.selector = selectors.DefaultSelector()
        # Sockets of the server's processes go here, and with it at the end.
        self.temporary = tempfile.mkdtemp(prefix="eagle3lab-")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked_to_stop = True

    def run(self) -> None:
        """Start the server, wait for its end or the order to end it, and leave nothing behind."""
        if self.should_stop():
            return
        server = subprocess.Popen(
            self.order["command"],
            env=self.order["environment"] | {"TMPDIR": self.temporary},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_begin,
        )
        report(started=server.pid)
        assert server.stdout is not None
        os.set_blocking(server.stdout.fileno(), False)
        self.selector.register(server.stdout, selectors.EVENT_READ, "log")
        self.selector.register(0, selectors.EVENT_READ, "owner")
        try:
            parts = Parts()
            while server.poll() is None and not self.should_stop() and not parts.look():
                self.pump(_POLL_S)
            if parts.lost:
                report(lost=parts.lost)
            if server.poll() is None:
                server.terminate()
                self.pump_until(time.monotonic() + self.order["grace_s"], lambda: server.poll() is not None)
            else:  # it ended by itself: let its other processes finish writing what they have to say
                self.pump_until(time.monotonic() + _LAST_WORDS_S, lambda: not descendants())
        finally:
            code = server.poll()
            kill_all()
            self.pump_until(time.monotonic() + _LAST_WORDS_S, lambda: "log" not in self._watched())
            self.log.close()
            report(exited=code)

    def should_stop(self) -> bool:
        """Whether the owner asked for it or is gone."""
        return self.asked_to_stop or os.getppid() != self.owner

    def _watched(self) -> list[str]:
        return [key.data for key in self.selector.get_map().values()]

    def pump_until(self, deadline: float, finished: Any) -> None:
        """Go on writing the log until `finished()` or the deadline."""
        while not finished() and time.monotonic() < deadline:
            self.pump(_POLL_S / 2)

    def pump(self, timeout_s: float) -> None:
        """Write what the server has said, and notice the end of the owner's input."""
        for key, _ in self.selector.select(timeout_s):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if key.data == "log":
                self.log.write(data)
            # A word, or the end: a child that the owner forked may hold the pipe open.
            if key.data == "owner":
                self.asked_to_stop = True
            if not data:
                self.selector.unregister(key.fileobj)


def main() -> None:
    """Read the order, carry it out, clean up."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    line = sys.stdin.readline()
    if not line:
        return
    supervisor = Supervisor(json.loads(line))
    try:
        supervisor.run()
    except OSError as error:
        report(failed=f"{error.strerror}: {error.filename}")
    finally:
        shutil.rmtree(supervisor.temporary, ignore_errors=True)
        report(done=True)


if __name__ == "__main__":
    main()
