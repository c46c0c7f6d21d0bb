"""Contradictions between commands that users once saw, through the commands themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3lab.cli import app
from tests.agreement.test_cases import PERMUTATION
from tests.engines.drafters import write_checkpoint
from tests.engines.other_cases import mla_config, mla_head
from tests.support.small_models import DEEPSEEK_V3


def run(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    loaded: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, loaded


def test_the_output_of_the_last_layer_cannot_be_captured_and_everybody_says_so(tmp_path: Path) -> None:
    """Ids 2, 4, 8 of a target of 8 layers: once by convention, broken, and nothing to repair."""
    head, target, engine = tmp_path / "head", PERMUTATION / "target", "sglang==0.5.23"
    shutil.copytree(PERMUTATION / "uses-every-tensor", head)
    config = json.loads((head / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 4, 8]
    (head / "config.json").write_text(json.dumps(config))
    _, captured = run("capture", head, "--target", target, "--engine", engine)
    assert (captured["verdict"], captured["fault"]) == ("out of range", "capture.ids-range")
    assert (captured["ids"], captured["trained"], captured["needed"]) == ([2, 4, 8], [2, 4, 8], None)
    _, found = run("diagnose", head, "--target", target, "--engine", engine)
    (finding,) = found["findings"]
    assert (found["verdict"], finding["fault"]) == ("broken", captured["fault"])
    assert "[2, 4, 8]" in finding["title"] and "another engine" in finding["fix"]
    status, planned = run("repair", head, "--target", target, "--for", engine, "--out", tmp_path / "out")
    assert (status, planned["status"], planned["changes"]) == (1, "refused", [])
    (refusal,) = planned["refusals"]
    assert (refusal["fault"], refusal["reason"]) == (finding["fault"], finding["title"])
    assert not (tmp_path / "out").exists()
    _, loaded = run("load-plan", head, "--engine", engine)
    assert not [one for one in loaded["tensors"] if one["outcome"] in ("dropped", "rejected")]


@pytest.mark.parametrize("engine", ["sglang==0.5.9", "sglang==0.5.11"])
def test_no_renaming_is_advised_after_which_the_release_drops_the_tensors(
    engine: str, tmp_path: Path
) -> None:
    """A head with low-rank attention before the release that has its class: the release to move to is the answer."""
    head = write_checkpoint(tmp_path / "head", mla_config(), mla_head("layers.0."))
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    _, found = run("diagnose", head, "--target", target, "--engine", engine)
    fixes = {one["fault"]: one["fix"] for one in found["findings"]}
    assert "sglang==0.5.12 or later" in fixes["head-kind.architecture"]
    assert not any("ename" in fix or "eagle3lab repair" in fix for fix in fixes.values()), fixes
    status, planned = run("repair", head, "--target", target, "--for", engine, "--dry-run")
    refused = {one["fault"]: one for one in planned["refusals"]}
    assert (status, planned["changes"]) == (1, [])
    assert refused["head-kind.architecture"]["release"] == "sglang==0.5.12"
    assert not any("ename" in text for one in refused.values() for text in one["alternatives"])
