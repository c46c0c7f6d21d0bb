"""`eagle3lab load-plan`: its output on a tiny head, word for word, and its errors.

EAGLE3LAB_UPDATE_GOLDEN=1 writes the expected files anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3lab.cli import app, main
from tests.engines.drafters import head, raw_config, tensor, write_checkpoint

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A head with `layers.0.*` names, one of them hostile, and a k_proj that is too tall."""
    odd = tensor("layers.0.\x1b[31mq_norm.weight", [8])
    tensors = head("layers.0.", shapes={"k_proj.weight": [40, 128]}, extra=(odd,))
    return write_checkpoint(tmp_path / "drafter", raw_config(), tensors)


def run(*arguments: str, width: int = 150) -> str:
    """The command's output; it must succeed."""
    result = CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1"}).invoke(app, ["load-plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def check(name: str, output: str) -> None:
    """Compare with the golden file."""
    file = GOLDEN / name
    if os.environ.get("EAGLE3LAB_UPDATE_GOLDEN"):
        file.write_text(output, encoding="utf-8")
    assert output == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_text(drafter: Path, release: str) -> None:
    output = run(str(drafter), "--engine", f"sglang=={release}", "--tp", "2", "--rank", "1")
    assert "\x1b" not in output
    check(f"load-plan-{release}.txt", output)


def test_json(drafter: Path) -> None:
    output = run(str(drafter), "--engine", "sglang==0.5.23", "--tp", "2", "--rank", "1", "--format", "json")
    check("load-plan-0.5.23.json", output)
    assert json.loads(output)["engine"] == "sglang==0.5.23"


def test_text_of_a_load_that_stops(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "drafter", raw_config(), head(shapes={"fc.weight": [64, 128]}))
    output = run(str(folder), "--engine", "sglang==0.5.9")
    assert "Loading stops at fc.weight: AssertionError: Attempted to load weight" in output


def test_text_of_a_drafter_that_cannot_be_built(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "drafter", raw_config(num_hidden_layers=2), head())
    output = run(str(folder), "--engine", "sglang==0.5.9")
    assert "The drafter cannot be built: ValueError: EAGLE3 currently only supports 1 layer" in output


@pytest.mark.engine
def test_ground_truth(drafter: Path) -> None:
    arguments = (str(drafter), "--engine", "sglang==0.5.9", "--tp", "2", "--ground-truth")
    assert "sglang==0.5.9's own loader did exactly this." in run(*arguments)
    report = json.loads(run(*arguments, "--format", "json"))
    assert report["differences"] == []
    assert [t["outcome"] for t in report["ground_truth"]["tensors"]] == [
        t["outcome"] for t in report["tensors"]
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing"], "missing"),
        (["{drafter}", "--engine", "sglang==0.1"], "Known releases"),
        (["{drafter}", "--engine", "sglang==0.5.9", "--tp", "2", "--rank", "2"], "there is no rank 2 of 2"),
    ],
)
def test_errors_are_one_line_and_status_2(
    drafter: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    complaint: str,
) -> None:
    filled = [argument.replace("{drafter}", str(drafter)) for argument in arguments]
    monkeypatch.setattr("sys.argv", ["eagle3lab", "load-plan", *filled])
    with pytest.raises(SystemExit) as caught:
        main()
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.err.startswith("eagle3lab: ") and captured.err.count("\n") == 1
    assert complaint in captured.err
