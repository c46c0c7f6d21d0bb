"""What is a fault in SGLang need be none in vLLM: its own facts decide, release by release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import Diagnosis, Verdict
from eagle3lab.diagnosis.evidence.rules import Engine
from eagle3lab.diagnosis.evidence.vllm import eagle3_architectures, skipped, vllm_facts
from eagle3lab.diagnosis.model import Impact, Severity
from tests.diagnosis.corpus import load, run
from tests.diagnosis.injected import template, without_log

SGLANG, VLLM = "sglang==0.5.23", "vllm==0.32.0"
SPECULATIVE = '{"method": "eagle3", "model": "./drafter", "num_speculative_tokens": 3}'
COMMAND = f"vllm serve ./target --speculative-config '{SPECULATIVE}'"


def diagnosed(case: dict[str, Any], engine: str, folder: Path) -> Diagnosis:
    """The case on another engine, without its log."""
    case = without_log(case) | {"engine": engine}
    return run(case | {"launch": COMMAND} if engine.startswith("vllm") else case, folder)


def architecture(name: str, engine: str, folder: Path) -> list[str]:
    """The evidence of E3L-K02 for a head of the usual kind that states this name."""
    case = load("ok-specforge-llama-0.5.9")
    case["drafter"]["config"]["architectures"] = [name]
    found = [one for one in diagnosed(case, engine, folder).findings if one.code == "E3L-K02"]
    assert all(one.impact is Impact.STOPS and one.severity is Severity.ERROR for one in found)
    return [item.text for one in found for item in one.evidence]


@pytest.mark.parametrize(
    ("name", "sglang", "vllm"),
    [
        ("LlamaForCausalLMEagle3", True, True),
        ("LlamaForCausalLM", False, True),
        ("Eagle3LlamaForCausalLM", False, True),
        ("Qwen3ForCausalLM", False, True),
        ("Eagle3DeepseekV3ForCausalLM", False, True),
        ("Eagle3Speculator", False, False),
        ("XverseForCausalLM", False, False),
    ],
)
def test_an_architecture_is_a_fault_where_no_class_of_the_engine_bears_it(
    name: str, sglang: bool, vllm: bool, tmp_path: Path
) -> None:
    assert (architecture(name, SGLANG, tmp_path / "sglang") == []) is sglang
    assert (architecture(name, VLLM, tmp_path / "vllm") == []) is vllm


@pytest.mark.parametrize(
    ("release", "served"),
    [("==0.20.2", False), ("==0.23.0", False), ("==0.24.0", True), ("==0.24.1", True), ("", True)],
)
def test_releases_of_vllm_are_told_apart(release: str, served: bool, tmp_path: Path) -> None:
    said = architecture("Qwen3ForCausalLM", f"vllm{release}", tmp_path)
    assert (said == []) is served
    assert served or "model_executor/models/registry.py:" in said[1]


def test_a_release_older_than_all_that_were_read_is_not_judged(tmp_path: Path) -> None:
    assert vllm_facts(Engine("vllm", "0.9.1")) is None
    assert architecture("XverseForCausalLM", "vllm==0.9.1", tmp_path) == []


def test_a_config_of_speculators_is_translated_whatever_its_architecture(tmp_path: Path) -> None:
    case = load("ok-vllm-native-speculators")
    for number, name in enumerate(("Eagle3DraftModel", "XverseForCausalLM")):
        case["drafter"]["config"]["architectures"] = [name]
        found = diagnosed(case, VLLM, tmp_path / str(number))
        assert "E3L-K02" in found.passed and not found.findings


def test_another_t2d_is_a_note_on_vllm_which_does_not_read_it(tmp_path: Path) -> None:
    case = load("ok-specforge-llama-0.5.9")
    template(case)["t2d"] = "other"
    [there] = diagnosed(case, SGLANG, tmp_path / "sglang").findings
    assert (there.code, there.severity, there.impact) == ("E3L-V07", Severity.WARNING, Impact.ZERO)
    case = load("ok-vllm-native-speculators")
    template(case)["t2d"] = "other"
    found = diagnosed(case, VLLM, tmp_path / "vllm")
    [here] = found.findings
    assert (here.code, here.severity, here.impact) == ("E3L-V07", Severity.NOTE, Impact.NONE)
    assert found.verdict in (Verdict.HEALTHY, Verdict.UNKNOWN)
    assert here.evidence[-1].text.startswith(
        f"{VLLM} does not read t2d (model_executor/models/llama_eagle3.py:"
    )
    assert here.effect.startswith("None by itself")


def test_the_newest_facts_stand_in_where_no_release_is_named() -> None:
    facts = vllm_facts(Engine("vllm"))
    assert facts is not None and {"LlamaForCausalLMEagle3", "LlamaForCausalLM"} <= set(
        eagle3_architectures(facts)
    )
    assert eagle3_architectures(facts)[0] == "Eagle3LlamaForCausalLM"
    assert skipped(facts, "model.t2d") is not None and skipped(facts, "d2t") is None
