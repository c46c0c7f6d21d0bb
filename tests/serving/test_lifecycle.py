from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.errors import InputError
from eagle3lab.serving.client import ServerDied, ServerError, ServerTimeout, attach
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.logs import Progress
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.ports import is_free, reserve
from eagle3lab.serving.server import Server
from tests.serving.fakes import write_fake
from tests.serving.processes import assert_nothing_left, processes_of, wait_until_gone
from tests.support.project import ROOT
from tests.support.signals import interruptible

Start = Callable[..., Server]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return write_fake(tmp_path / "engine")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    assert_nothing_left(tmp_path / "run")


@pytest.fixture
def start(engine: Engine, run_dir: Path) -> Start:
    def begin(
        how: str = "", *, extra: tuple[str, ...] = (), port: int | None = None, **options: Any
    ) -> Server:
        plan = LaunchPlan("m", port=port, environment={"FAKE": how, "HF_TOKEN": "hf_abcdefg"}, extra=extra)
        return Server.start(plan, run_dir, engine, **({"timeout_s": 60.0, "grace_s": 0.5} | options))

    return begin


def test_a_server_starts_serves_and_stops(start: Start, run_dir: Path) -> None:
    seen: list[Progress] = []
    with start(progress=seen.append) as server:
        assert server.running
        assert server.healthy()
        assert not is_free(server.plan.port or 0)
        answers = server.generate(["a", [5, 6], "c"], 3, concurrency=2)
        assert [answer.text for answer in answers] == ["after a", "after [5, 6]", "after c"]
        assert answers[0].token_ids == (0, 1, 2)
        assert answers[0].meta["id"] == "1"
        assert answers[0].started_s < answers[0].ended_s <= time.time()
        known = processes_of(run_dir)
        assert len(known) == 3, "supervisor, server and daemon must be seen, or their end proves nothing"
        [temporary] = {folder for each in known for folder in _temporary_folders(each.pid)}
        assert temporary.is_dir()
    assert [each.stage for each in seen][:2] == ["starting", "reading its arguments"]
    assert [each.detail for each in seen if each.stage == "loading weights"][
        -1
    ] == "Loading checkpoint shards: 100%"
    assert seen[-1].stage == "warming up"
    assert not server.running
    assert_nothing_left(run_dir, server.plan.port, known)
    assert not temporary.exists()
    server.stop()  # harmless
    with pytest.raises(ServerDied):
        server.generate(["a"], 1)


def _temporary_folders(pid: int) -> list[Path]:
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    folders = [Path(each.removeprefix("TMPDIR=")) for each in variables if each.startswith("TMPDIR=")]
    return [folder for folder in folders if folder.name.startswith("eagle3lab-")]


def test_a_run_folder_holds_no_key(start: Start, run_dir: Path) -> None:
    with start(extra=("--api-key", "k'3y-with\\quotes", "--admin-api-key=other-key")) as server:
        assert json.loads(server.request("/health")) == {"key": "Bearer k'3y-with\\quotes"}
        assert "k'3y" not in repr(server) + repr(server.plan)
    held = b"".join(
        path.read_bytes() for path in run_dir.rglob("*") if path.is_file() and not path.is_symlink()
    )
    for secret in (b"3y-with", b"other-key", b"hf_abcdefg"):
        assert secret not in held
    assert (run_dir / "server.log").read_text().count("<redacted>") == 3
    assert b"--api-key '<redacted>'" in held
    described = json.loads((run_dir / "plan.json").read_text())
    assert described["engine"]["release"] == "0.0.0"
    assert described["plan"]["port"] == server.plan.port
    with pytest.raises(InputError, match="in use"):
        start()


def test_the_command_in_a_run_folder_starts_the_server_again(start: Start, run_dir: Path) -> None:
    with start("deaf", extra=("--served-model-name", "it's a 'name'")) as server:
        pass
    again = subprocess.Popen(["sh", run_dir / "command.sh"], stdout=subprocess.PIPE, text=True)
    assert again.stdout is not None
    try:
        assert "it's a 'name'" in again.stdout.readline()
        with attach(server.url, timeout_s=20.0) as other:
            assert other.generate(["a"], 1)[0].text == "after a"
    finally:
        for process in processes_of(run_dir):
            os.kill(process.pid, signal.SIGKILL)
        again.stdout.close()
        again.wait()
        wait_until_gone(run_dir, None, ())


@pytest.mark.parametrize("how", ["dies-loading", "dies-serving"])
def test_a_death_is_told_by_its_first_traceback(start: Start, how: str) -> None:
    began = time.monotonic()
    with pytest.raises(ServerDied, match="SIGQUIT") as caught, start(how) as server:
        server.generate(["a"] * 4, 1, concurrency=2)
    assert caught.value.traceback.startswith("[TP1] Scheduler hit an exception")
    assert caught.value.traceback.endswith("ValueError: the drafter does not fit\n  its width is 7")
    assert "KeyError: 'midlayer.fc'" in caught.value.traceback
    assert time.monotonic() - began < 20


def test_a_background_job_s_server_hears_its_signals(start: Start) -> None:
    """A shell starts background jobs with SIGINT and SIGQUIT ignored, and children inherit that."""
    numbers = (signal.SIGINT, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        with pytest.raises(ServerDied, match="SIGQUIT"):
            start("dies-loading")
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_an_exit_without_a_traceback_shows_the_log_s_end(start: Start) -> None:
    with pytest.raises(ServerDied, match="exit status 3") as caught:
        start("exits")
    assert caught.value.traceback == ""
    assert "Load weight begin." in caught.value.tail
    assert "hf_abcdefg" not in str(caught.value)


def test_a_server_that_hangs_is_given_up(start: Start, run_dir: Path) -> None:
    with pytest.raises(ServerTimeout, match="said nothing for 1 s; it was last seen loading weights"):
        start("hangs", stall_s=1.0)
    assert_nothing_left(run_dir)


def test_a_progress_bar_without_line_ends_is_a_word_and_is_shown(start: Start) -> None:
    seen: list[Progress] = []
    with start("loads-slowly", stall_s=1.5, progress=seen.append):
        pass
    assert len({step.detail for step in seen if "Multi-thread" in step.detail}) > 10


def test_a_server_that_does_not_get_ready_is_given_up(start: Start) -> None:
    with pytest.raises(ServerTimeout, match="not ready after 1 s"):
        start("hangs", timeout_s=1.0)


def test_a_request_that_is_never_answered_is_given_up(start: Start) -> None:
    with start("silent") as server, pytest.raises(ServerTimeout, match="2 of 2 requests unanswered for 1 s"):
        server.generate(["a", "b"], 1, concurrency=2, timeout_s=1.0)


def test_a_server_deaf_to_its_end_is_killed(start: Start) -> None:
    began = time.monotonic()
    start("deaf", grace_s=0.2).stop()
    assert time.monotonic() - began < 20


def test_a_killed_server_is_noticed(start: Start, run_dir: Path) -> None:
    with start() as server:
        known = processes_of(run_dir)
        [main] = [each for each in known if "launch_server" in each.title and os.getsid(each.pid) == each.pid]
        os.kill(main.pid, signal.SIGKILL)
        with pytest.raises(ServerDied, match="SIGKILL"):
            server.generate(["a"], 1)
    assert_nothing_left(run_dir, server.plan.port, known)


def test_a_killed_supervisor_takes_the_server_with_it(start: Start, run_dir: Path) -> None:
    with start("alone") as server:
        known = processes_of(run_dir)
        [supervisor] = [each for each in known if "supervisor.py" in each.title]
        os.kill(supervisor.pid, signal.SIGKILL)
        with pytest.raises(ServerDied, match="watched it was killed"):
            server.generate(["a"] * 100, 1)
    wait_until_gone(run_dir, server.plan.port, known)


def test_a_forked_child_does_not_keep_the_server(start: Start, run_dir: Path) -> None:
    server = start()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 20
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_server_whose_name_is_bound_to_another_ends(start: Start, run_dir: Path) -> None:
    server = start()
    known, port = processes_of(run_dir), server.plan.port
    del server
    wait_until_gone(run_dir, port, known)


def test_a_port_that_is_taken_is_said_before_anything_starts(start: Start, run_dir: Path) -> None:
    port, lock = reserve()
    with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 is taken"):
        start(port=port)
    os.close(lock)
    assert not run_dir.exists()
    with start(port=port) as server:
        assert server.url == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match="taken"):
            reserve(port)


def test_a_missing_folder_is_not_asked_for_on_the_hub(engine: Engine, run_dir: Path, tmp_path: Path) -> None:
    for plan in (LaunchPlan("/no/such/model"), LaunchPlan(str(tmp_path), drafter="./no-such-drafter")):
        with pytest.raises(InputError, match="folder is missing"):
            Server.start(plan, run_dir, engine)


def test_an_engine_that_cannot_run_is_said(run_dir: Path) -> None:
    with pytest.raises(ServerDied, match="No such file or directory"):
        Server.start(LaunchPlan("m"), run_dir, Engine("0.0.0", python="/no/such/python"), timeout_s=30.0)


def test_a_log_on_a_full_disk_is_said(start: Start, run_dir: Path) -> None:
    with start() as server:
        assert server.running
    (run_dir / "server.log").unlink()
    (run_dir / "server.log").symlink_to("/dev/full")
    kept = run_dir / "server.log"
    for path in sorted(run_dir.rglob("*"), reverse=True):
        if path != kept:
            path.unlink() if path.is_symlink() or path.is_file() else path.rmdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eagle3lab.serving.server.check_is_unused", lambda folder: None)
        with pytest.raises(ServerError, match="cannot be written: No space left on device"):
            start()


def test_two_servers_side_by_side_do_not_collide(engine: Engine, tmp_path: Path) -> None:
    servers: list[Server] = []

    def begin(number: int) -> None:
        servers.append(
            Server.start(LaunchPlan("m"), tmp_path / f"run{number}", engine, timeout_s=60.0, grace_s=0.2)
        )

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ports = [word for server in servers for word in (str(server.plan.port), server.plan.extra[-1])]
    assert len(set(ports)) == 6
    servers[0].stop()
    assert servers[1].generate(["a"], 1)[0].text == "after a"
    for server in servers:
        server.stop()
        assert_nothing_left(server.run_dir, server.plan.port)


_OWNER = """
import sys, time
from pathlib import Path
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.server import Server
folder = Path(sys.argv[1])
plan = LaunchPlan("m", environment={"FAKE": sys.argv[2]})
try:
    server = Server.start(plan, folder / "run", Engine("0.0.0", path=(folder / "engine",)), grace_s=0.2,
                          progress=lambda step: print(step.stage, flush=True))
    print("ready", flush=True)
    server.generate(["a"], 1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if sys.argv[3] == "keep":
        time.sleep(600)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
@pytest.mark.parametrize(
    ("how", "moment"), [("hangs", "starting"), ("hangs", "loading weights"), ("silent", "ready")]
)
def test_nothing_outlives_its_owner(
    engine: Engine, run_dir: Path, tmp_path: Path, number: signal.Signals, how: str, moment: str
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), how, "go"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    assert owner.stdout is not None
    try:
        assert any(line.strip() == moment for line in owner.stdout), "the owner never got there"
        known = processes_of(run_dir)
        owner.send_signal(number)
        owner.wait(20)
        assert owner.stdout.read().strip().endswith("interrupted") == (number == signal.SIGINT)
        wait_until_gone(run_dir, None, known)
    finally:
        owner.kill()
        owner.stdout.close()
        owner.wait()


def test_an_interrupted_start_is_over_when_the_interrupt_arrives(
    engine: Engine, run_dir: Path, tmp_path: Path
) -> None:
    """As in a notebook, whose kernel lives on after an interrupt."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), "hangs", "keep"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    assert owner.stdout is not None
    try:
        assert any(line.strip() == "loading weights" for line in owner.stdout)
        owner.send_signal(signal.SIGINT)
        assert any(line.strip() == "interrupted" for line in owner.stdout)
        assert_nothing_left(run_dir)
    finally:
        owner.kill()
        owner.stdout.close()
        owner.wait()


def test_attaching_leaves_the_server_to_its_owner(start: Start, run_dir: Path) -> None:
    with start() as server:
        with attach(server.url, log=run_dir / "server.log") as other:
            assert other.generate(["a"], 1)[0].text == "after a"
            assert any("Load weight begin" in line for line in other.log_lines())
        assert server.running
    with pytest.raises(ServerError, match="does not answer"):
        attach(server.url, timeout_s=0.3)
    with pytest.raises(InputError, match="no server's address"):
        attach("localhost:30000")
    with pytest.raises(InputError, match="there is no log"):
        attach(server.url, log=run_dir / "none")


def test_an_overlay_hides_no_sitecustomize_of_others(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os\nos.environ['OTHER'] = 'ran'\n")
    (other / "mine.py").write_text("def begin():\n    import os\n    os.environ['MINE'] = 'ran'\n")
    overlay = Overlay(startup=("mine:begin",)) | Overlay(startup=("mine:begin",), environment={"A": "1"})
    assert overlay.startup == ("mine:begin",)
    folder = overlay.write(tmp_path / "overlay")
    printed = subprocess.check_output(
        [sys.executable, "-c", "import os, eagle3lab; print(os.environ['MINE'], os.environ['OTHER'])"],
        env={"PYTHONPATH": f"{folder}:{other}"},
        text=True,
    )
    assert printed == "ran ran\n"


def test_a_module_is_changed_after_its_import_and_stays_itself(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text("VALUE = 1\n")
    script = textwrap.dedent("""
        import pickle
        from eagle3lab.serving.hooks import after_import
        seen = []
        after_import("subject", lambda module: setattr(module, "VALUE", module.VALUE + 1))
        after_import("subject", seen.append)
        after_import("not_there", seen.append)
        import subject
        assert subject.VALUE == 2 and seen == [subject]
        after_import("subject", seen.append)
        assert len(seen) == 2
        assert type(subject.__loader__).__name__ == "SourceFileLoader"
        try:
            import not_there
        except ModuleNotFoundError:
            print("right")
    """)
    printed = subprocess.check_output(
        [sys.executable, "-c", script], env={"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}, text=True
    )
    assert printed == "right\n"


def test_reservations_are_private(tmp_path: Path) -> None:
    _, lock = reserve()
    os.close(lock)
    folder = Path(tempfile.gettempdir(), f"eagle3lab-ports-{os.getuid()}")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
