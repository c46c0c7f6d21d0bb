"""`python -m lab.parity`: its table, its JSON, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from lab.faults import Served
from lab.parity.__main__ import app
from lab.specimen.variant import write_variant

NEW = "sglang==0.5.23"


def run(served: Served, drafter: Path, *options: str):
    words = [str(drafter), "--target", str(served.target), "--engine", NEW, *options]
    return CliRunner().invoke(app, words)


def test_alike(served: Served, head: Path) -> None:
    result = run(served, served.drafter, "--trained", str(head))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("alike: logits and recurrent states are equal (float32 on both sides")
    assert "They differ at step 1, first position" in result.stdout
    assert "differs here, harmless" in result.stdout


def test_apart_as_json(served: Served, tmp_path: Path) -> None:
    folder = write_variant(
        open_checkpoint(served.drafter), tmp_path / "head", config={"norm_before_residual": True}
    )
    result = run(served, folder, "--format", "json", "--steps", "1")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert set(report) == {
        "schema_version", "verdict", "first", "worst_alike", "drafter", "trained", "engine", "source", "sequences",
        "tokens", "tolerance", "stages", "causes", "replayed", "notes",
    }  # fmt: skip
    assert (report["schema_version"], report["verdict"], report["engine"]) == (1, "differ", NEW)
    assert report["first"] == {"step": 1, "stage": "attention residual"}
    assert {one["step"] for one in report["stages"]} == {1}
    [cause] = [one for one in report["causes"] if not one["harmless"]]
    assert set(cause) == {"stage", "step", "own", "meaning", "harmless"}
    assert set(cause["own"]) == {"max_abs", "relative", "cosine", "alike", "shapes"}
    assert "both sides read one config.json" in report["notes"][0]


def test_bad_input(served: Served, tmp_path: Path) -> None:
    result = run(served, tmp_path / "nothing")
    assert isinstance(result.exception, InputError)
    with pytest.raises(InputError, match="holds no recorded tensors"):
        raise run(served, served.drafter, "--events", str(tmp_path)).exception  # type: ignore[misc]
