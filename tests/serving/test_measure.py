"""A whole measurement against the fake engine: what is kept, what is reported, and every way in which it can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.errors import InputError
from eagle3lab.runs.folder import RunFolder
from eagle3lab.serving.account import bench_totals
from eagle3lab.serving.client import ServerDied, ServerError, ServerTimeout, attach
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.measure import measure, measure_running
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.ports import reserve
from eagle3lab.serving.server import Server
from eagle3lab.serving.workload import Bench, Workload, run_bench
from tests.serving.fakes import write_fake
from tests.serving.processes import assert_nothing_left, processes_of, wait_until_gone
from tests.support.signals import interruptible

KEY = "a-key-of-the-server's"
QUESTIONS = Workload(["a", [5, 6], "c", "d"], max_new_tokens=3, concurrency=1, warm_up=1, source="the test")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return write_fake(tmp_path / "engine", "0.5.9")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    assert_nothing_left(tmp_path / "run")


def plan(how: str = "", **fields: Any) -> LaunchPlan:
    variables = {"FAKE": how, "HF_TOKEN": "hf_abcdefg"}
    chosen = {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4, "environment": variables}
    return LaunchPlan("m", "d", **chosen | fields)


def contents(folder: Path) -> bytes:
    return b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )


def test_a_run_folder_keeps_everything_and_no_key(engine: Engine, run_dir: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    asked = plan(extra=("--api-key", KEY))
    found = measure(asked, engine, QUESTIONS, run_dir, probe=False, answered=lambda *what: seen.append(what))
    assert (found.verify_steps, found.accepted, found.accept_length) == (16, 20, 2.25)
    assert found.outputs == ((0, 1, 2),) * 4
    assert seen == [("warm-up", 1, 1), *(("measured", done, 4) for done in (1, 2, 3, 4))]
    kept = RunFolder.open(run_dir)
    assert [(each.phase, each.index) for each in kept.requests()] == [
        ("warm-up", 0), *(("measured", index) for index in range(4)),
    ]  # fmt: skip
    assert [each.prompt_tokens for each in kept.requests()] == [1, 1, 2, 1, 1]
    assert all(each.started_s <= each.ended_s for each in kept.requests())
    assert kept.metrics_before is not None and "} 1" in kept.metrics_before
    assert kept.metrics_after is not None and "} 5" in kept.metrics_after
    info = kept.server_info()
    assert info is not None
    assert info["launch_command"] == "--model m --api-key <redacted>"
    assert info["internal_states"] == [{"api_key": "<redacted>"}]
    versions = kept.versions()
    assert versions is not None
    assert versions["sglang"] == "0.5.9"
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    report = kept.measurement()
    assert report is not None
    assert report["acceptance"]["accept_length"] == 2.25
    assert report["workload"] == {
        "kind": "prompts", "source": "the test", "prompts": 4, "warm_up": 1, "max_new_tokens": 3, "concurrency": 1,
        "temperature": 0.0, "stop_at_eos": True,
    }  # fmt: skip
    for secret in (b"key-of-the-server", b"hf_abcdefg"):
        assert secret not in contents(run_dir)


def test_a_server_that_runs_is_measured_and_goes_on(engine: Engine, run_dir: Path, tmp_path: Path) -> None:
    asked = plan(extra=("--api-key", KEY))
    with Server.start(asked, run_dir, engine, grace_s=0.2) as server:
        (run_dir / "server.log").open("a").write("written before\n")
        with attach(server.url, run_dir / "server.log", api_key=KEY) as other:
            found = measure_running(other, QUESTIONS, tmp_path / "measured")
            with pytest.raises(InputError, match="in use"):
                measure_running(other, QUESTIONS, tmp_path / "measured")
        assert server.running
        with attach(server.url) as without_log:
            again = measure_running(without_log, QUESTIONS, tmp_path / "again")
    assert found.accept_length == again.accept_length == 2.25
    kept = RunFolder.open(tmp_path / "measured")
    assert (kept.release, kept.draft_tokens, kept.plan()["algorithm"]) == ("0.5.9", 4, "EAGLE3")
    assert kept.metrics_after is None, "the server was started without metrics"
    assert "written before" not in kept.log.read_text()
    assert not (tmp_path / "again" / "server.log").exists()
    assert b"key-of-the-server" not in contents(tmp_path / "measured") + contents(tmp_path / "again")


def test_a_chat_goes_to_the_chat_endpoint(engine: Engine, run_dir: Path) -> None:
    chat = [{"role": "user", "content": "hello"}]
    with Server.start(plan(), run_dir, engine, grace_s=0.2) as server:
        [answer] = server.generate([chat], 7)
    assert (answer.text, answer.token_ids) == ("after hello", ())
    assert answer.meta == {"prompt_tokens": 3, "completion_tokens": 7}


def test_a_death_in_the_middle_keeps_what_was_answered(engine: Engine, run_dir: Path) -> None:
    with pytest.raises(ServerDied, match="SIGQUIT") as caught:
        measure(plan("dies-midway"), engine, QUESTIONS, run_dir, probe=False)
    assert caught.value.traceback.endswith("ValueError: the drafter does not fit\n  its width is 7")
    kept = RunFolder.open(run_dir)
    assert [(each.phase, each.index) for each in kept.requests()] == [("warm-up", 0), ("measured", 0)]
    assert kept.measurement() is None
    assert_nothing_left(run_dir, kept.plan()["port"])


def test_a_server_that_falls_silent_is_given_up(engine: Engine, run_dir: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ServerTimeout, match=r"neither answered nor logged anything for 1 s, 3 of 4 requests"):
        measure(plan("silent-midway"), engine, QUESTIONS, run_dir, probe=False, stall_s=1.0)
    assert time.monotonic() - began < 20
    assert_nothing_left(run_dir, RunFolder.open(run_dir).plan()["port"])


def test_a_refused_request_is_said_in_the_server_s_words(engine: Engine, run_dir: Path) -> None:
    with pytest.raises(ServerError, match=r"answers 400 .* the prompt is too long"):
        measure(plan("refuses"), engine, QUESTIONS, run_dir, probe=False)
    assert_nothing_left(run_dir)


def test_a_server_without_speculation_is_said(engine: Engine, run_dir: Path) -> None:
    with pytest.raises(ServerError, match="decodes without it"):
        measure(plan("plain"), engine, QUESTIONS, run_dir, probe=False)
    with pytest.raises(InputError, match="no drafter"):
        measure(LaunchPlan("m"), engine, QUESTIONS, run_dir, probe=False)


def test_a_probe_that_finds_nothing_to_attach_to_does_no_harm(engine: Engine, run_dir: Path) -> None:
    unknown = Engine("0.0.0", path=engine.path)
    found = measure(plan(), unknown, QUESTIONS, run_dir)
    assert found.accept_length == 2.25
    assert found.seen is None or found.seen.notes


def test_a_run_folder_on_a_full_disk_is_said(engine: Engine, run_dir: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # The folder fills up while the server runs.
        patch.setattr("eagle3lab.serving.workload.METRICS_BEFORE", "../full")
        (run_dir.parent / "full").symlink_to("/dev/full")
        with pytest.raises(ServerError, match=r"cannot be written: .*No space left on device"):
            measure(plan(), engine, QUESTIONS, run_dir, probe=False)
    assert len(RunFolder.open(run_dir).requests()) == 1, "the warm-up is kept"
    assert_nothing_left(run_dir)


def test_the_engine_s_benchmark_is_a_workload(engine: Engine, run_dir: Path) -> None:
    bench = Bench(("--num-prompts", "2"))
    with Server.start(plan("dies-midway", extra=("--api-key", KEY)), run_dir, engine, grace_s=0.2) as server:
        run_bench(server, bench)
        assert bench_totals(RunFolder(run_dir)) == (10, 2.0)
        assert "the key is <redacted>" in (run_dir / "bench.log").read_text()
        with pytest.raises(ServerDied, match="SIGQUIT"):
            run_bench(server, bench)
    assert_nothing_left(run_dir)
    assert b"key-of-the-server" not in contents(run_dir)
    with pytest.raises(InputError, match="is set by the measurement"):
        Bench(("--base-url=http://elsewhere",))
    with pytest.raises(InputError, match="counts no drafts"):
        measure(plan(), engine, bench, run_dir / "other", probe=False)


def test_a_benchmark_that_fails_or_hangs_is_told_with_what_it_printed(engine: Engine, run_dir: Path) -> None:
    with Server.start(plan("silent"), run_dir, engine, grace_s=0.2) as server:
        with pytest.raises(ServerError, match="not done in time"):
            run_bench(server, Bench(("--num-prompts", "1")), timeout_s=1.0)
        with pytest.raises(ServerError, match=r"(?s)exit status 2.*invalid int value: 'many'"):
            run_bench(server, Bench(("--num-prompts", "many")))
    assert bench_totals(RunFolder(run_dir)) is None
    assert_nothing_left(run_dir)


@pytest.mark.parametrize("field", ["max_new_tokens", "concurrency", "temperature", "warm_up"])
def test_a_workload_that_cannot_be_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} cannot be -1"):
        Workload(["a"], **{field: -1})
    with pytest.raises(InputError, match="no prompt"):
        Workload([])


# --- The command ----------------------------------------------------------------------------------------------------

_COMMAND = """
import sys
from pathlib import Path
from eagle3lab.serving.engine import Engine
import eagle3lab.serving.engine
fake = Path(sys.argv.pop(1))
eagle3lab.serving.engine.find_engine = lambda spec: Engine("0.5.9", path=(fake,))
from eagle3lab.cli import main
main()
"""


def command(engine: Engine, how: str, *arguments: str) -> subprocess.Popen[str]:
    words = ["measure", "d", "--target", "m", "--profile", "gpu8", "--no-probe", *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, str(engine.path[0]), *words],
        env=os.environ | {"FAKE": how},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {number}"}) + "\n" for number in range(4)))
    return str(path)


def test_the_command_measures(engine: Engine, run_dir: Path, prompts: str) -> None:
    more = ("--prompts", prompts, "--set", f"api-key={KEY}", "--set", "attention_backend=fa3", "--steps", "4")
    code, out, err = finished(command(engine, "", *more, "--run-dir", str(run_dir), "--format", "json"))
    assert code == 0, err
    report = json.loads(out)
    assert report == RunFolder.open(run_dir).measurement()
    assert (report["schema_version"], report["engine"], report["run_dir"]) == (
        1,
        "sglang==0.5.9",
        str(run_dir),
    )
    assert report["plan"]["backends"] == {"attention": "fa3"}
    assert (report["plan"]["steps"], report["plan"]["draft_tokens"], report["plan"]["tp"]) == (4, 5, 8)
    assert report["acceptance"]["accept_length"] == 2.25
    assert "loading weights" in err
    assert "measured: 4 of 4 requests answered" in err
    assert "key-of-the-server" not in out + err
    assert b"key-of-the-server" not in contents(run_dir)
    code, out, _ = finished(command(engine, "", "--prompts", prompts, "--run-dir", str(run_dir)))
    assert code == 2, "the folder is in use"


# Where users and their launchers put secrets; each value is looked for in all that is written or printed.
_PLANTED = {
    "SOME_SERVICE_API_KEY": "planted-ambient-key-1",
    "HF_TOKEN": "hf_plantedAmbientToken2222",
    "PGPASSWORD": "planted-pg-password-3",
    "DATABASE_URL": "postgres://me:planted-url-password-4@db/x",
    "CALLBACK": "https://hook.example/?token=planted-query-token-5",
}


@pytest.mark.parametrize("spelling", ["--api-key {}", "--api-key={}", "--api-k {}", "--api-k={}"])
def test_no_planted_secret_reaches_a_run_folder_a_report_or_a_log(
    engine: Engine,
    run_dir: Path,
    spelling: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in _PLANTED.items():
        monkeypatch.setenv(name, value)
    words = (*spelling.format("planted-server-key-6").split(), "--hf-token", "hf_plantedFlagToken7777")
    asked = plan("dies-midway", extra=words, environment={"FAKE": "dies-midway"} | _PLANTED)
    with pytest.raises(ServerDied) as caught:
        measure(asked, engine, QUESTIONS, run_dir, probe=False)
    said = capfd.readouterr()
    for format in ("text", "json", "html"):
        for subcommand in (["diagnose", "--run", str(run_dir)], ["launch", str(run_dir / "command.sh")]):
            if subcommand[0] == "launch" and format == "html":
                continue
            done = subprocess.run(
                [sys.executable, "-m", "eagle3lab", *subcommand, "--format", format],
                capture_output=True, check=False, timeout=60,
            )  # fmt: skip
            assert done.returncode in (0, 1, 2), done.stderr
            said = (said[0] + done.stdout.decode(), said[1] + done.stderr.decode())
    everything = contents(run_dir).decode(errors="replace") + "".join(said) + str(caught.value)
    assert "<redacted>" in everything
    assert sorted(set(re.findall(r"planted-[\w-]+|hf_planted\w+", everything))) == []


def test_the_command_attaches(engine: Engine, run_dir: Path, prompts: str, tmp_path: Path) -> None:
    words = ["measure", "--prompts", prompts, "--run-dir", str(tmp_path / "measured")]
    with Server.start(plan(), run_dir, engine, grace_s=0.2) as server:
        done = subprocess.run(
            [sys.executable, "-m", "eagle3lab", *words, "--attach", server.url, "--log", server.log or ""],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "accept length" in done.stdout and "2.250" in done.stdout
    words[-1] = str(tmp_path / "other")
    done = subprocess.run(
        [sys.executable, "-m", "eagle3lab", *words, "--attach", server.url],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert "does not answer" in done.stderr


@pytest.mark.parametrize("how", ["dies-loading", "dies-midway"])
def test_a_failed_server_ends_the_command_with_its_first_traceback(
    engine: Engine, run_dir: Path, prompts: str, how: str
) -> None:
    code, out, err = finished(command(engine, how, "--prompts", prompts, "--run-dir", str(run_dir)))
    assert (code, out) == (3, "")
    assert "eagle3lab: the server ended by SIGQUIT. The first traceback in its log:" in err
    assert "ValueError: the drafter does not fit" in err
    assert f"left behind is in {run_dir}" in err
    assert "cli/measure.py" not in err, "no traceback of our own"
    assert_nothing_left(run_dir, RunFolder.open(run_dir).plan()["port"])


def test_bad_input_ends_the_command_before_anything_starts(
    engine: Engine, run_dir: Path, tmp_path: Path
) -> None:
    port, lock = reserve()
    (tmp_path / "bad.jsonl").write_text("{}\n")
    good = tmp_path / "good.jsonl"
    good.write_text('{"text": "a"}\n')
    wrong: list[tuple[list[str], str]] = [
        (["--prompts", str(tmp_path / "bad.jsonl")], "bad.jsonl:1: holds no prompt"),
        (["--prompts", str(good), "--set", f"port={port}"], f"port {port} on 127.0.0.1 is taken"),
        (["--prompts", str(good), "--set", "tp-size=2"], "--set cannot set tp"),
        (["--prompts", str(good), "--target", "/no/such/model"], "/no/such/model: the model folder is missing"),
        (["--attach", "http://127.0.0.1:1"], "already runs has its drafter"),
        (["--log", str(good)], "--log belongs to --attach"),
    ]  # fmt: skip
    running = [command(engine, "", "--run-dir", str(run_dir), *words) for words, _ in wrong]
    for process, (words, problem) in zip(running, wrong, strict=True):
        code, out, err = finished(process)
        assert (code, out) == (2, ""), words
        assert problem in err
        assert "Traceback" not in err
    os.close(lock)
    assert not run_dir.exists()


# What the command must be seen to say before it is interrupted, and how the server behaves for that.
_MOMENTS = {
    "starting": ("hangs", "starting"),
    "loading": ("hangs", "loading weights"),
    "asking": ("silent-midway", "measured: 1 of"),
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        *((moment, signal.SIGINT) for moment in _MOMENTS),
        ("asking", signal.SIGTERM),
        ("asking", signal.SIGKILL),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_an_interrupted_command_leaves_no_process(
    engine: Engine, run_dir: Path, prompts: str, moment: str, number: signal.Signals
) -> None:
    how, sign = _MOMENTS[moment]
    process = command(engine, how, "--prompts", prompts, "--run-dir", str(run_dir), "--concurrency", "1")
    assert process.stderr is not None
    try:
        assert any(sign in line for line in process.stderr), "it never got there"
        known = processes_of(run_dir)
        process.send_signal(number)
        code, out, err = finished(process)
    finally:
        process.kill()
    if number == signal.SIGINT:
        assert (code, out) == (130, "")
        assert err.splitlines()[-1] == f"eagle3lab: interrupted. What the run left behind is in {run_dir}"
        assert_nothing_left(run_dir, None, known)
        if moment == "asking":
            assert len(RunFolder.open(run_dir).requests()) in (1, 2)
    wait_until_gone(run_dir, None, known)


def test_two_commands_side_by_side_do_not_collide(engine: Engine, tmp_path: Path, prompts: str) -> None:
    folders = [tmp_path / f"run{number}" for number in range(3)]
    running = [command(engine, "", "--prompts", prompts, "--run-dir", str(folder)) for folder in folders]
    for process in running:
        code, _, err = finished(process)
        assert code == 0, err
    plans = [RunFolder.open(folder).plan() for folder in folders]
    assert len({each["port"] for each in plans} | {each["extra"][-1] for each in plans}) == 6
    for folder in folders:
        assert_nothing_left(folder)
