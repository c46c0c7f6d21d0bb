"""A server of our own: started from a plan, watched until it is ready, and gone with all its processes at the end."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from eagle3lab.engines.launch.secrets import REDACTED, ambient_secrets, spellings
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import COMMAND, LOG, OVERLAY, PLAN
from eagle3lab.serving.client import RunningServer, ServerDied, ServerError
from eagle3lab.serving.cpu_kernels import cpu_overlay
from eagle3lab.serving.engine import Engine, find_engine
from eagle3lab.serving.logs import Progress, Tail, first_traceback, shown, stage_of, tail
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import MODULE, LaunchPlan
from eagle3lab.serving.ports import reserve
from eagle3lab.text import printable

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_POLL_S, _ASK_S = 0.1, 0.5
_STOP_S = 60.0


class Server(RunningServer):
    """A server that this process started. Use it in a `with` block, or call `stop`.

    Attributes:
        plan: As it runs, port included.
        engine: The release.
        run_dir: Its run folder.
        started_in_s: Seconds until it was ready.
    """

    def __init__(self, plan: LaunchPlan, run_dir: Path, engine: Engine, process: _Supervised) -> None:
        host = "127.0.0.1" if plan.host in ("0.0.0.0", "::") else plan.host
        shown_host = f"[{host}]" if ":" in host else host
        super().__init__(f"http://{shown_host}:{plan.port}", log=run_dir / LOG, api_key=_api_key(plan))
        self.plan = plan
        self.run_dir = run_dir
        self.engine = engine
        self.started_in_s = 0.0
        self._process = process

    @classmethod
    def start(
        cls,
        plan: LaunchPlan,
        run_dir: str | Path,
        engine: Engine | None = None,
        *,
        overlay: Overlay | None = None,
        progress: Callable[[Progress], None] | None = None,
        timeout_s: float = 1800.0,
        stall_s: float | None = None,
        grace_s: float = 3.0,
    ) -> Self:
        """Start a server and return when it is ready for requests.

        Args:
            plan: What to start. With `device="cpu"` the CPU kernels are put in.
            run_dir: A folder that is new or empty: log, plan, command and overlay are written there.
            engine: The release; the installed one if None.
            overlay: What else to put in.
            progress: Called, in this thread, with each new thing the server is seen to do.
            timeout_s: Longest time until it is ready.
            stall_s: Longest time without a word in the log; None for no limit.
            grace_s: How long it may take to end when it is stopped, before it is killed.

        Raises:
            InputError: The port is taken, the model or drafter folder is missing, the run folder is in use, the
                machine is no Linux.
            ServerDied: It ended before it was ready; with the first traceback of any of its processes.
            ServerTimeout: It was not ready in time; it has been stopped.
        """
        if not sys.platform.startswith("linux"):
            raise InputError(
                "servers can be started on Linux only", advice="Attach to one that runs elsewhere"
            )
        engine = engine or find_engine()
        run_dir = Path(run_dir).absolute()
        _check_folders(plan)
        check_is_unused(run_dir)
        with contextlib.ExitStack() as undo:
            port, lock = reserve(plan.port, host=plan.host)
            undo.callback(os.close, lock)
            locks = [lock]
            extra = list(plan.extra)
            if not any(word.partition("=")[0] == "--nccl-port" for word in extra) and plan.nodes == 1:
                second, lock = reserve()
                undo.callback(os.close, lock)
                locks.append(lock)
                extra += ["--nccl-port", str(second)]
            plan = replace(plan, port=port, extra=extra)
            overlay = (cpu_overlay(engine.release) if plan.device == "cpu" else Overlay()) | (
                overlay or Overlay()
            )
            environment = _write_run_folder(run_dir, plan, engine, overlay)
            process = _Supervised()
            server = cls(plan, run_dir, engine, process)
            try:
                process.launch(
                    [engine.python, "-m", MODULE, *plan.arguments()],
                    environment,
                    log=run_dir / LOG,
                    secrets=server.secrets(),
                    grace_s=grace_s,
                    inherited=locks,
                )
                server._wait_until_ready(progress, timeout_s, stall_s)
            except BaseException:
                server.stop()
                raise
            return server

    def stop(self) -> None:
        """End the server and every process it started; harmless if it has ended.

        Raises:
            ServerError: Something is still left after a minute.
        """
        self._process.stop()

    def secrets(self) -> tuple[str, ...]:
        """What must not be written down: the keys of its plan, and those that its processes inherited."""
        return self.plan.secrets() + ambient_secrets(os.environ)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet, as far as is known."""
        self._process.listen()
        return not self._process.over

    def check(self) -> None:
        """Raise `ServerDied` if the server has ended, `ServerError` if its log cannot be written."""
        self._process.listen()
        said = self._process.said
        if "failed" in said:
            raise ServerDied(f"the server could not be started: {said['failed']}")
        if self._process.over:
            lines = self.log_lines()
            raise ServerDied(
                f"the server ended {_how(said)}",
                traceback=first_traceback(self.log),
                tail=tail(lines),
            )
        if "log" in said:
            raise ServerError(f"the server's log {self.log} cannot be written: {said['log']}")

    def wait_for_its_end(self) -> None:
        """Give a death that a lost connection announces a moment to become known, and raise it then."""
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            self.check()
            time.sleep(_POLL_S)

    def _wait_until_ready(
        self, progress: Callable[[Progress], None] | None, timeout_s: float, stall_s: float | None
    ) -> None:
        began = last_word = time.monotonic()
        stage, log = "starting", Tail(self.run_dir / LOG)
        if progress is not None:
            progress(Progress(stage, f"SGLang {self.engine.release}, log in {self.log}", 0.0))
        asked = 0.0
        while True:
            self.check()
            now = time.monotonic()
            for line in log.new_lines():
                last_word, stage = now, stage_of(line) or stage
                if progress is not None and stage_of(line) is not None:
                    progress(Progress(stage, shown(line), now - began))
            if now - asked > _ASK_S:
                asked = now
                if self.healthy():
                    self.started_in_s = time.monotonic() - began
                    return
            for limit, since, problem in (
                (timeout_s, began, "is not ready after"),
                (stall_s, last_word, "has said nothing for"),
            ):
                if limit is not None and now - since > limit:
                    raise self._too_late(f"the server {problem} {limit:.0f} s; it was last seen {stage}")
            time.sleep(_POLL_S)


class _Supervised:
    """The owner's side of the supervisor: while this object holds its pipe, the server may run."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}
        self.over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._pending = b""

    def launch(
        self,
        command: list[str],
        environment: dict[str, str],
        *,
        log: Path,
        secrets: tuple[str, ...],
        grace_s: float,
        inherited: list[int],
    ) -> None:
        """Start the supervisor and give it its order, which goes through a pipe since it may hold keys."""
        order = {
            "command": command,
            "environment": environment,
            "log": str(log),
            "secrets": spellings(secrets),
            "redacted": REDACTED,
            "grace_s": grace_s,
            "owner": os.getpid(),
        }
        reading, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_SUPERVISOR)],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )
        finally:
            os.close(reading)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        with contextlib.suppress(BrokenPipeError), open(self._lifeline, "wb", closefd=False) as pipe:
            pipe.write((json.dumps(order) + "\n").encode())

    def listen(self) -> None:
        """Take in what the supervisor has reported since the last time."""
        if self._process is None or self._process.stdout is None or self.over:
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:  # the supervisor is gone, in whatever way
                    self.over = True
                    break
                self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self.said |= json.loads(line)
        if "done" in self.said:
            self.over = True

    def let_go(self) -> None:
        """Cut the lifeline: from here on everything ends, even if this process is interrupted or killed."""
        if self._lifeline is not None:
            lifeline, self._lifeline = self._lifeline, None
            with contextlib.suppress(OSError):
                os.write(lifeline, b"stop\n")
            os.close(lifeline)

    __del__ = let_go
    """A server that nobody can stop any more, since its last name was bound to another, ends too."""

    def stop(self) -> None:
        """Let go, and wait until the supervisor, having killed everything, is gone itself."""
        self.let_go()
        if self._process is None:
            return
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise ServerError(
                f"processes of the server are still there after {_STOP_S:.0f} s; process {self._process.pid} goes on "
                "trying to end them"
            ) from None
        self.listen()
        self.over = True
        if (
            "done" not in self.said and "started" in self.said
        ):  # it was killed itself: do what can be done from here
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.said["started"], signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _how(said: dict[str, Any]) -> str:
    """How a server ended, from what its supervisor said."""
    if "done" not in said:
        return "since the process that watched it was killed"
    code, lost = said.get("exited"), said.get("lost")
    if lost is not None:
        return f"after it lost {printable(lost)}"
    if code is None:
        return "since it was told to"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with exit status {code}"


def _api_key(plan: LaunchPlan) -> str | None:
    words = iter(plan.extra)
    for word in words:
        name, equals, value = word.partition("=")
        if len(name) >= len("--api") and "--api-key".startswith(name):  # parsers take options written short
            return value if equals else next(words, None)
    return None


def _check_folders(plan: LaunchPlan) -> None:
    """A path that does not exist would be taken for a name on the hub and asked for there."""
    for what, path in (("model", plan.model), ("drafter", plan.drafter)):
        if path is None:
            continue
        looks_like_path = path.startswith(("/", "./", "../", "~")) or path.count("/") > 1
        if looks_like_path and not Path(path).is_dir():
            raise InputError(f"the {what} folder is missing", path=path, advice=f"Give the {what}'s folder")


def check_is_unused(run_dir: Path) -> None:
    """Raise `InputError` for a run folder that holds something."""
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise InputError("the run folder is in use", path=run_dir, advice="Give one that is new or empty")


def _write_run_folder(run_dir: Path, plan: LaunchPlan, engine: Engine, overlay: Overlay) -> dict[str, str]:
    """Write plan, command and overlay, and return the server's whole environment."""
    run_dir.mkdir(parents=True, exist_ok=True)
    folders = [str(overlay.write(run_dir / OVERLAY)), *map(str, engine.path)]
    # What a server is given: the plan's variables over the overlay's, and its path in front of one already set.
    given = overlay.environment | dict(plan.environment)
    outer = given.pop("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    given["PYTHONPATH"] = os.pathsep.join([*folders, *([outer] if outer else [])])
    described = {
        "engine": {"kind": "sglang", "release": engine.release, "python": engine.python, "path": folders},
        "plan": plan.as_json(),
    }
    (run_dir / PLAN).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    command = replace(plan, environment=given).command(python=engine.python)
    note = "# The CPU profile: exact, small and slow.\n" if plan.device == "cpu" else ""
    (run_dir / COMMAND).write_text(
        f"#!/bin/sh\n{note}cd {shlex.quote(str(Path.cwd()))}\n{command}\n", encoding="utf-8"
    )
    # The supervisor gives the server a temporary folder that goes with it; what was compiled is kept.
    compiled = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
    kept = {
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled),
    }
    return dict(os.environ) | kept | given
