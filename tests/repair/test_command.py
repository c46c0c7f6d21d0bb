"""`eagle3lab repair`: its exit statuses, its output, its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3lab.cli import app, main
from tests.repair.heads import NEW, OLD, drafter, hashes


def run(*arguments: str | Path) -> Any:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["repair", *map(str, arguments)])


def report(*arguments: str | Path) -> dict[str, Any]:
    outcome = run(*arguments, "--format", "json")
    loaded: dict[str, Any] = json.loads(outcome.output)
    return loaded


def test_repair_and_undo(tmp_path: Path) -> None:
    source, out = drafter("seed-kimi-layers0-eagle", tmp_path / "case"), tmp_path / "out"
    done = run(source, "--for", OLD, "--out", out)
    assert done.exit_code == 0, done.output
    assert "names.dropped" in done.output
    assert f"Simulated, {OLD} loads 11 of 11 parameters from the copy." in done.output
    undone = run("--undo", out, "--out", tmp_path / "undone")
    assert undone.exit_code == 0 and "each byte as it was" in undone.output
    assert hashes(tmp_path / "undone") == hashes(source)


def test_the_journal_says_what_was_changed(tmp_path: Path) -> None:
    source, out = drafter("seed-kimi-renamed-double-offset", tmp_path / "case"), tmp_path / "out"
    assert run(source, "--for", OLD, "--out", out).exit_code == 0
    journal = json.loads((out / "repair-journal.json").read_text())
    assert journal["engine"] == OLD and journal["schema_version"] == 2
    (change,) = journal["changes"]
    (edit,) = change["edits"]
    assert change["fault"] == "vocab.double-offset" and change["proof"] and change["evidence"]
    assert (
        edit["tensor"] == "d2t"
        and edit["before"]["values"]["length"] == edit["after"]["values"]["length"] == 4000
    )
    assert journal["load"]["after"]["not_loaded"] == [] and journal["load"]["after"]["loaded"] == 11
    assert {entry["name"]: entry["sha256"] for entry in journal["source"]["files"]} == hashes(source)
    assert str(tmp_path) not in json.dumps(journal)


def test_json(tmp_path: Path) -> None:
    source = drafter("seed-kimi-layers0-eagle", tmp_path / "case")
    planned = report(source, "--for", OLD, "--dry-run")
    assert (planned["status"], planned["out"]) == ("repairable", None)
    assert (
        len(planned["load"]["before"]["dropped"]) == 10 and len(planned["load"]["before"]["not_loaded"]) == 7
    )
    assert planned["load"]["after"]["dropped"] == planned["load"]["after"]["not_loaded"] == []
    written = report(source, "--for", OLD, "--out", tmp_path / "out")
    assert written == planned | {"out": str(tmp_path / "out")}
    unchanged = report(tmp_path / "out", "--for", OLD, "--dry-run")
    assert (unchanged["status"], unchanged["changes"]) == ("unchanged", [])
    undone = report("--undo", tmp_path / "out", "--out", tmp_path / "undone")
    assert undone["files"] == ["config.json", "model.safetensors"]


def test_nothing_to_repair_gives_an_unchanged_copy(tmp_path: Path) -> None:
    source, out = drafter("ok-specforge-llama-0.5.9", tmp_path / "case"), tmp_path / "out"
    done = run(source, "--for", OLD, "--out", out)
    assert done.exit_code == 0 and f"Nothing to repair for {OLD}: its diagnosis" in done.output
    copied = hashes(out)
    del copied["repair-journal.json"]
    assert copied == hashes(source)


@pytest.mark.parametrize("more", [["--dry-run"], ["--out"]])
def test_refused(more: list[str], tmp_path: Path) -> None:
    source, out = drafter("layer-norm-before-residual", tmp_path / "case"), tmp_path / "out"
    done = run(source, "--for", NEW, *more, *([out] if more == ["--out"] else []))
    assert done.exit_code == 1
    assert "layer.norm-before-residual" in done.output and "Refused: nothing was written." in done.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent", "--for", OLD, "--out", "out"], "does not exist"),
        (["drafter", "--for", "nonsense", "--out", "out"], "nonsense"),
        (["drafter", "--for", OLD, "--out", "drafter"], "exists already"),
        (["drafter", "--for", OLD, "--out", "drafter/in"], "inside the folder"),
        (["drafter", "--for", OLD, "--out", "out", "--target", "absent"], "does not exist"),
        (["--undo", "drafter", "--out", "out"], "nothing can be undone"),
        (["--undo", "absent", "--out", "out"], "does not exist"),
        (["drafter", "--for", "vllm", "--out", "out", "--target", "target", "--verify"], "no loader of vllm"),
    ],
)
def test_bad_input(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafter("ok-specforge-llama-0.5.9", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["eagle3lab", "repair", *arguments])
    before = hashes(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert hashes(tmp_path) == before


@pytest.mark.parametrize(
    "arguments", [[], ["drafter"], ["drafter", "--undo", "x", "--out", "y"], ["--undo", "x"]]
)
def test_arguments_that_do_not_go_together(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_no_weights(tmp_path: Path) -> None:
    source = drafter("ok-specforge-llama-0.5.9", tmp_path)
    (source / "model.safetensors").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "eagle3lab", "repair", str(source), "--for", OLD, "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "holds no weights" in done.stderr
