"""`eagle3lab guard`: the command is replaced by the server's, with the guard in every Python process of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from lab.specimen.paths import permutation_dir
from lab.specimen.variant import write_variant
from tests.support.make_case import materialise

EAGLE3LAB = [sys.executable, "-m", "eagle3lab", "guard"]
SHOW = (
    "import os; print(os.environ['EAGLE3LAB_GUARD'], 'eagle3lab.serving.probe' in __import__('sys').modules)"
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE3LAB")}
    return subprocess.run(
        [*EAGLE3LAB, *arguments],
        env=outer | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_runs_guarded_with_its_own_exit_status() -> None:
    result = run("--refuse", "--", sys.executable, "-c", f"{SHOW}; raise SystemExit(7)")
    assert (result.returncode, result.stdout.strip(), result.stderr) == (7, "refuse True", "")


def test_a_sitecustomize_of_one_s_own_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    result = run("--", sys.executable, "-c", SHOW, PYTHONPATH=str(tmp_path))
    # Once in the command itself, once in the guarded process.
    assert result.stdout.splitlines() == ["the other one", "the other one", "warn True"]


def test_a_python_without_eagle3lab_is_told_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "eagle3lab.py").write_text("raise ImportError('not here')")
    folder = Path(__file__).parents[2] / "src" / "eagle3lab" / "serving" / "guard" / "path"
    result = subprocess.run(
        [sys.executable, "-c", "print('served')"],
        env=dict(os.environ) | {"PYTHONPATH": f"{folder}{os.pathsep}{tmp_path}", "EAGLE3LAB_GUARD": "warn"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.strip() == "served" and "install eagle3lab for" in result.stderr


def test_without_a_command_it_prints_what_to_set() -> None:
    result = run()
    assert result.returncode == 0
    first, second = result.stdout.splitlines()
    assert first == "export EAGLE3LAB_GUARD=warn" and second.startswith("export PYTHONPATH=")


def test_a_command_that_is_none_is_one_line_and_status_two() -> None:
    result = run("--", "/nowhere/python")
    assert result.returncode == 2
    assert result.stderr.startswith("eagle3lab: /nowhere/python: the command cannot be started")


@pytest.fixture
def launch(tmp_path: Path) -> list[str]:
    """A command like a user's, with a python that only says that it was started, and a head whose d2t is absolute."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho served\n")
    python.chmod(0o755)
    source = open_checkpoint(permutation_dir("copies-one-state-reduced"))
    ids = np.asarray(source.read("d2t")) + np.arange(48)
    head = write_variant(source, tmp_path / "head", replace={"d2t": ids})
    return [
        str(python), "-m", "sglang.launch_server", "--model-path", str(permutation_dir("target")),
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(head),
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    ]  # fmt: skip


def test_the_command_s_own_files_are_looked_at_before_anything_is_loaded(launch: list[str]) -> None:
    refused = run("--refuse", "--", *launch)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "[vocab.absolute]" in refused.stderr and "nothing was loaded yet" in refused.stderr
    warned = run("--", *launch)
    assert (warned.returncode, warned.stdout) == (0, "served\n")
    assert "[vocab.absolute]" in warned.stderr


def test_a_sound_drafter_and_one_that_is_not_here_are_started_without_a_word(
    launch: list[str], tmp_path: Path
) -> None:
    case = Path(__file__).parents[1] / "cases" / "ok-rope-parameters-0.5.13.json"
    materialise(json.loads(case.read_text()), tmp_path / "sound")
    launch[launch.index("--model-path") + 1] = str(tmp_path / "sound" / "target")
    place = launch.index("--speculative-draft-model-path") + 1
    for drafter in (str(tmp_path / "sound" / "drafter"), "somebody/a-head"):
        launch[place] = drafter
        done = run("--refuse", "--", *launch)
        assert (done.returncode, done.stdout, done.stderr) == (0, "served\n", "")
