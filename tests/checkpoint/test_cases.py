"""Every case of `tests/cases`: its folders open, or fail as the case says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from tests.support.make_case import apply_edits, build, materialise
from tests.support.project import ROOT

CASES = {
    path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "tests" / "cases").glob("*.json"))
}
DRAFTERS = [name for name, case in CASES.items() if case["drafter"]]
TARGETS = [name for name, case in CASES.items() if case["target"]]
# Faults that this layer reports by refusing the folder.
REFUSED = {"files.unreadable": "model", "files.missing": "names the shard"}


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_opens_or_is_refused(tmp_path: Path, name: str) -> None:
    case: dict[str, Any] = CASES[name]
    materialise(case, tmp_path)
    refusal = REFUSED.get(case["expect"]["fault"])
    if refusal:
        with pytest.raises(InputError, match=refusal):
            open_checkpoint(tmp_path / "drafter")
        return
    checkpoint = open_checkpoint(tmp_path / "drafter")
    raw = case["drafter"]["config"]
    if "text_config" in raw and "hidden_size" not in raw:  # a whole target, given as its own drafter
        with pytest.raises(InputError, match="does not state hidden_size"):
            _ = checkpoint.config
        return
    config = checkpoint.config
    layer = raw.get("transformer_layer_config", raw)
    assert config.hidden_size == layer["hidden_size"]
    assert config.dialect == ("speculators" if "transformer_layer_config" in raw else config.dialect)
    assert config.draft_vocab_size == raw.get("draft_vocab_size")
    assert config.stated("draft_vocab_size") == ("draft_vocab_size" in raw)
    ids = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or raw.get(
        "eagle_aux_hidden_state_layer_ids"
    )
    assert config.aux_hidden_state_layer_ids == (tuple(ids) if ids else None)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_opens(tmp_path: Path, name: str) -> None:
    materialise(CASES[name], tmp_path)
    checkpoint = open_checkpoint(tmp_path / "target")
    assert dict(checkpoint.raw_config) == CASES[name]["target"]["config"]


def test_the_ignored_files_are_the_cases_faults(tmp_path: Path) -> None:
    for name, ignored in {
        "files-shard-unindexed": "model-00002-of-00002.safetensors",
        "files-stale-partial": "pytorch_model.bin",
    }.items():
        materialise(CASES[name], tmp_path)
        files = open_checkpoint(tmp_path / "drafter").files
        assert [file.name for file in files.ignored] == [ignored]


@pytest.mark.parametrize("files", ["safetensors", "bin"])
def test_values_are_what_was_written(tmp_path: Path, files: str) -> None:
    case = json.loads(json.dumps(CASES["ok-modelopt-unsorted"]))
    case["drafter"] |= {"files": files, "seed": 5}
    materialise(case, tmp_path)
    written = apply_edits(build(case["drafter"]["template"], 5), case["drafter"].get("edits", {}), 5)
    checkpoint = open_checkpoint(tmp_path / "drafter")
    assert set(checkpoint.tensors) == set(written)
    for name, (values, dtype) in written.items():
        assert checkpoint.tensors[name].dtype == dtype
        rounding = {"BF16": 2.0**-8, "F16": 2.0**-11}.get(dtype, 0.0)
        np.testing.assert_allclose(checkpoint.read(name), values, rtol=rounding, atol=0)
        np.testing.assert_array_equal(checkpoint.read(name)[1:3], checkpoint.read_rows(name, 1, 3))
