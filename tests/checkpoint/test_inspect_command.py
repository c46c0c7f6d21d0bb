"""`eagle3lab inspect` as it is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3lab.cli import app
from tests.checkpoint.handmade import CONFIG, entry, raw_safetensors, small_bin, small_safetensors, write
from tests.support.make_case import materialise
from tests.support.project import ROOT

run = CliRunner().invoke


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write(
        tmp_path / "drafter",
        model__safetensors=small_safetensors(),
        old__bin=small_bin(),
        config__json=CONFIG,
    )


def test_json(drafter: Path) -> None:
    result = run(app, ["inspect", str(drafter), "--format", "json", "--effective-rank"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["schema_version"] == 1
    assert set(report) == {"schema_version", "path", "files", "config", "tensors", "provenance"}
    assert report["files"]["read"] == ["model.safetensors"]
    assert report["files"]["ignored"] == [
        {"name": "old.bin", "reason": "shadowed: the folder holds .safetensors files"}
    ]
    assert report["files"]["metadata"] == {"format": "pt"}
    assert report["config"]["head_dim"] == {
        "value": 4,
        "source": "derived: hidden_size // num_attention_heads",
    }
    tensors = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert list(tensors) == sorted(tensors)
    assert tensors["fc.weight"]["dtype"] == "BF16"
    assert tensors["fc.weight"]["shape"] == [8, 24]
    assert 1 < tensors["fc.weight"]["statistics"]["effective_rank"] <= 8
    assert tensors["midlayer.hidden_norm.weight"]["judgement"]["state"] == "untouched"
    assert tensors["midlayer.hidden_norm.weight"]["statistics"]["row_norm_mean"] is None
    assert tensors["d2t"]["judgement"]["state"] == "not-weights"
    assert report["provenance"]["candidates"]


def test_without_statistics(drafter: Path) -> None:
    report = json.loads(run(app, ["inspect", str(drafter), "--no-statistics", "--format", "json"]).stdout)
    assert all(tensor["statistics"] is None and tensor["judgement"] is None for tensor in report["tensors"])


def test_text(drafter: Path) -> None:
    result = run(app, ["inspect", str(drafter)])
    assert result.exit_code == 0
    for expected in (
        "fc.weight",
        "BF16",
        "8×24",
        "not read: old.bin",
        "derived: hidden_size",
        "Written by",
        "untouched",
    ):
        assert expected in result.stdout


def test_names_cannot_reach_the_terminal(tmp_path: Path) -> None:
    header = {"evil\x1b[31m[bold]\n": entry("U8", [1], 0, 1)}
    write(tmp_path, model__safetensors=raw_safetensors(header, b"\1"))
    result = run(app, ["inspect", str(tmp_path)])
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "evil\\x1b[31m[bold]\\n" in result.stdout


def test_a_target_and_a_multimodal_target(tmp_path: Path) -> None:
    materialise(json.loads((ROOT / "tests/cases/seed-kimi-layers0-eagle.json").read_text()), tmp_path)
    result = run(app, ["inspect", str(tmp_path / "target")])
    assert result.exit_code == 0
    assert "no weights here" in result.stdout
    nested = write(
        tmp_path / "nested", config__json={"model_type": "kimi_k25", "text_config": {"hidden_size": 8}}
    )
    report = json.loads(run(app, ["inspect", str(nested), "--format", "json"]).stdout)
    assert report["config"] is None


@pytest.mark.parametrize("format_", ["text", "json"])
def test_bad_input_ends_with_status_2_and_one_line(tmp_path: Path, format_: str) -> None:
    write(tmp_path, model__safetensors=small_safetensors()[:-1])
    command = [sys.executable, "-m", "eagle3lab", "inspect", str(tmp_path), "--format", format_]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"eagle3lab: {tmp_path}/model.safetensors: tensor ")


def test_a_bar_is_drawn_on_stderr_only_when_it_is_a_terminal(drafter: Path) -> None:
    import pty

    command = [sys.executable, "-m", "eagle3lab", "inspect", str(drafter), "--format", "json"]
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=follower, env=os.environ | {"TERM": "xterm"}
    )
    os.close(follower)
    stdout, _ = process.communicate()
    drawn = os.read(leader, 65536)
    os.close(leader)
    assert json.loads(stdout) == json.loads(quiet.stdout)
    assert b"\x1b" in drawn
