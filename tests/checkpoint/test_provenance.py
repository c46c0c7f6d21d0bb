"""Who wrote a drafter: signatures are recognised, edits are not guessed at, evidence is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.provenance import find_provenance, find_traits, trainer_table
from tests.checkpoint.handmade import CONFIG, write
from tests.support.make_case import materialise, safetensors_bytes
from tests.support.project import ROOT

KNOWN = {
    "ok-specforge-llama-0.5.9": ("specforge", None),
    "kind-dialect-speculators": ("speculators", "0.4.0"),
    "training-weak-vllm": ("speculators", "0.5.0"),
    "ok-modelopt-unsorted": ("modelopt", "0.37 to 0.42"),
    "kind-arch-unregistered-tied": ("angelslim", None),
    "names-automodel-prefix": ("automodel", None),
    "kind-eagle1-as-eagle3": ("unknown", None),
    "kind-arch-base-lm": ("unknown", None),
    "vocab-double-offset": ("unknown", None),
}


def case(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "tests" / "cases" / f"{name}.json").read_text())
    return loaded


@pytest.mark.parametrize("name", KNOWN)
def test_the_cases(tmp_path: Path, name: str) -> None:
    materialise(case(name), tmp_path)
    found = find_provenance(open_checkpoint(tmp_path / "drafter"))
    assert (found.trainer, found.version) == KNOWN[name]
    assert 0.5 <= found.confidence <= 1
    assert found.evidence
    assert len(found.candidates) == len(trainer_table()["trainers"])
    odds = [candidate.confidence for candidate in found.candidates]
    assert odds == sorted(odds, reverse=True)
    assert sum(odds) < 1, "some of the odds are always left for another trainer"


def test_the_specimen_was_written_by_the_real_speculators() -> None:
    found = find_provenance(open_checkpoint(ROOT / "specimen" / "drafter"))
    assert (found.trainer, found.version) == ("speculators", "0.9.0")
    assert found.confidence > 0.9
    assert find_provenance(open_checkpoint(ROOT / "specimen" / "target")).trainer == "unknown"


def test_a_language_model_is_no_drafter(tmp_path: Path) -> None:
    edited = case("ok-specforge-llama-0.5.9")
    edited["drafter"]["template"] = {
        "kind": "plain-llama",
        "hidden": 16,
        "intermediate": 32,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "vocab": 50,
        "layers": 3,
    }
    edited["drafter"]["config"] = edited["target"]["config"]
    materialise(edited, tmp_path)
    assert find_provenance(open_checkpoint(tmp_path / "drafter")).trainer == "unknown"


def test_safeailab(tmp_path: Path) -> None:
    edited = case("ok-specforge-llama-0.5.9")
    edited["drafter"]["files"] = "bin"
    edited["drafter"]["template"]["dtype"] = "F16"
    edited["drafter"]["config"] |= {"architectures": ["LlamaForCausalLM"], "eagle_config": None}
    materialise(edited, tmp_path)
    assert find_provenance(open_checkpoint(tmp_path / "drafter")).trainer == "safeailab"


def test_torchspec(tmp_path: Path) -> None:
    edited = case("ok-specforge-llama-0.5.9")
    del edited["drafter"]["config"]["draft_vocab_size"]
    del edited["drafter"]["config"]["eagle_config"]
    edited["drafter"]["template"] |= {"d2t": "missing", "t2d": "missing", "embed": True, "draft_vocab": 2004}
    materialise(edited, tmp_path)
    assert find_provenance(open_checkpoint(tmp_path / "drafter")).trainer == "torchspec"


@pytest.mark.parametrize(
    "config", [None, b"not JSON", b"[]", {"architectures": 3, "eagle_config": [], "vocab_size": "x"}]
)
def test_a_damaged_config_only_means_less_evidence(tmp_path: Path, config: Any) -> None:
    import numpy as np

    tensors = {"layers.0.mlp.up_proj.weight": (np.ones((2, 2)), "F32"), "d2t": (np.ones((2, 2)), "I64")}
    write(tmp_path, model__safetensors=safetensors_bytes(tensors))
    if config is not None:
        write(tmp_path, config__json=config)
    found = find_provenance(open_checkpoint(tmp_path))
    assert found.trainer == "unknown"
    assert "the decoder layer is named layers.0.*" in found.evidence


def test_the_table_and_the_code_know_the_same_traits(tmp_path: Path) -> None:
    table = trainer_table()
    for entry in table["trainers"].values():
        assert set(entry["weights"]) <= set(table["traits"])
    for ranges in table["versions"].values():
        assert set(ranges) <= set(table["traits"])
    seen: set[str] = set()
    for path in sorted((ROOT / "tests" / "cases").glob("*.json")):
        loaded = json.loads(path.read_text())
        if loaded["drafter"] and loaded["expect"]["fault"] not in ("files.unreadable", "files.missing"):
            materialise(loaded, tmp_path)
            seen |= find_traits(open_checkpoint(tmp_path / "drafter"))
    write(
        tmp_path / "own",
        config__json=CONFIG | {"architectures": ["Eagle3Speculator"], "max_position_embeddings": 2048},
    )
    seen |= find_traits(open_checkpoint(tmp_path / "own"))
    assert seen <= set(table["traits"])
    never = set(table["traits"]) - seen
    assert never <= {
        "arch:LlamaEagle3DraftModel",
        "arch:LlamaForCausalLM",
        "arch:LlamaForCausalLMEagle3Deep",
        "file:torch",
        "prefix:midlayer.N",
        "tensor:mask_hidden",
    }
