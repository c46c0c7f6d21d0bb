"""The releases' own Kimi-K2.5 classes, without a server: delegation, the +1, and every weight in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.serving.cpu_kernels import cpu_overlay
from lab.kimi import kimi_dir
from lab.kimi.delegation import MISSING
from tests.serving.engines import run_inside

pytestmark = pytest.mark.engine


def inside(release: str, folder: Path) -> dict[str, Any]:
    printed = run_inside(
        release,
        cpu_overlay(release),
        folder,
        *("-m", "tests.kimi.inside", str(kimi_dir("target"))),
        environment={"TRITON_INTERPRET": "1"},
    )
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert found["classes"] == ["KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"]
    assert found["unwritten"] == [], "weights that the release's own load_weights does not place"
    # The flag lands on the language model; the wrapper has no such attribute.
    assert found["flags"] == [None, True]
    assert found["same_head"]
    assert found["same_embedding"]
    return found


# What the drafter's eagle_config says: nothing, then ids that begin with 1, with 2, with 0 (`inside.IDS`).
def test_the_newer_release_adds_one_only_to_ids_that_begin_with_one(tmp_path: Path) -> None:
    found = inside("0.5.23", tmp_path)
    assert found["lacking"] == []
    assert found["as published"] == [[2, 6, 9], [2, 6, 9], [2, 6, 9], [0, 5, 8]]
    assert found["delegated"] == found["as published"]


def test_the_older_release_delegates_nothing_and_with_the_delegation_always_adds_one(tmp_path: Path) -> None:
    found = inside("0.5.9", tmp_path)
    assert found["lacking"] == list(MISSING)
    assert all("no attribute 'set_eagle3_layers_to_capture'" in problem for problem in found["as published"])
    assert found["delegated"] == [[2, 6, 9], [2, 6, 9], [3, 7, 10], [1, 6, 9]]
