"""`eagle3lab diagnose`: formats, exit statuses, the gate, bad input, what it imports, how long it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3lab.cli import app
from tests.diagnosis.corpus import load
from tests.support.make_case import materialise

RUNNER = CliRunner()


def arguments(identity: str, folder: Path) -> list[str]:
    case = load(identity)
    materialise(case, folder)
    words = ["diagnose"]
    if case["drafter"]:
        words.append(str(folder / "drafter"))
    if case["target"]:
        words += ["--target", str(folder / "target")]
    if case["engine"]:
        words += ["--engine", case["engine"]]
    if case["launch"]:
        words += ["--launch", str(folder / "launch.sh")]
    if case["log"]:
        words += ["--log", str(folder / "server.log")]
    return words


@pytest.mark.parametrize(("identity", "status"), [("ok-specforge-llama-0.5.9", 0), ("names-fc-missing", 1)])
@pytest.mark.parametrize("format", ["text", "json", "sarif", "html"])
def test_formats_and_statuses(identity: str, status: int, format: str, tmp_path: Path) -> None:
    result = RUNNER.invoke(app, [*arguments(identity, tmp_path), "--format", format])
    assert result.exit_code == status, result.output
    if format in ("json", "sarif"):
        json.loads(result.stdout)
    elif format == "html":
        assert result.stdout.startswith("<!doctype html>")
    else:
        assert ("healthy" if status == 0 else "names.missing") in result.stdout


def test_gate(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, [*arguments("names-fc-missing", tmp_path), "--gate"])
    assert result.exit_code == 1 and result.stdout == ""
    assert "names.missing" in result.stderr and result.stderr.count("\n") == 1


def test_gate_lets_a_healthy_one_through(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, [*arguments("ok-steps-plus-one", tmp_path), "--gate"])
    assert result.exit_code == 0 and result.stderr == "eagle3lab: no-fault-found\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["no-such-folder"],
        ["--engine", "sglang=0.5.9", "--log", "x"],
        ["--launch", "no-such-file"],
        ["--log", "no-such-file"],
        ["--target", "no-such-folder"],
    ],
)
def test_unreadable_inputs_end_with_status_2(words: list[str], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "eagle3lab", "diagnose", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.startswith("eagle3lab: ") and "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_damaged_drafter_is_a_finding_not_an_error(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, [*arguments("files-unsafe-pickle", tmp_path), "--format", "json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["findings"][0]["fault"] == "files.unreadable"


def test_log_alone_leaves_questions(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("[2026-03-11 10:02:11 TP0] nothing of interest\n")
    result = RUNNER.invoke(app, ["diagnose", "--log", str(log), "--format", "json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["verdict"] == "unknown" and report["questions"]


def test_contradicting_inputs_are_noted(tmp_path: Path) -> None:
    words = arguments("seed-kimi-renamed-eagle", tmp_path)
    words[words.index("--launch") + 1] = (
        'vllm serve ./other --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\''
    )
    report = json.loads(RUNNER.invoke(app, [*words, "--format", "json"]).stdout)
    notes = " ".join(report["notes"])
    assert "launches vllm" in notes
    assert "speculative_algorithm=EAGLE" in notes


def test_json_needs_no_rich(tmp_path: Path) -> None:
    words = [*arguments("seed-kimi-layers0-eagle", tmp_path), "--format", "json"]
    program = (
        "import sys\nfrom eagle3lab.cli import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        "bad = {'rich.console', 'torch', 'pydantic', 'yaml', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("logged", [False, True], ids=["without a log", "with a log"])
def test_a_gate_needs_no_numpy(logged: bool, tmp_path: Path) -> None:
    """Importing numpy would take half as long as the whole diagnosis."""
    words = arguments("seed-kimi-layers0-eagle", tmp_path)
    words = [*(words if logged else words[: words.index("--log")]), "--gate"]
    program = (
        "import sys\nfrom eagle3lab.cli import app\n"
        f"app({words!r}, standalone_mode=False)\nsys.exit('numpy' in sys.modules and 'numpy was imported')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "names.dropped" in done.stderr
