"""What is a fault in SGLang need be none in vLLM: its own facts decide, release by release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import Diagnosis, Verdict
from eagle3lab.diagnosis.framework import Missing
from eagle3lab.diagnosis.inputs import vllm_facts
from eagle3lab.diagnosis.model import Impact, Severity
from eagle3lab.diagnosis.releases import eagle3_architectures, skipped
from eagle3lab.engines.release import Release
from tests.diagnosis.corpus import inputs, load, run
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
    assert vllm_facts(Release("vllm", "0.9.1")) is None
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
    assert found.verdict in (Verdict.HEALTHY, Verdict.NO_FAULT_FOUND)
    assert here.evidence[-1].text.startswith(
        f"{VLLM} does not read t2d (model_executor/models/llama_eagle3.py:"
    )
    assert here.effect.startswith("None by itself")


def test_the_newest_facts_stand_in_where_no_release_is_named() -> None:
    facts = vllm_facts(Release("vllm"))
    assert facts is not None and {"LlamaForCausalLMEagle3", "LlamaForCausalLM"} <= set(
        eagle3_architectures(facts)
    )
    assert eagle3_architectures(facts)[0] == "Eagle3LlamaForCausalLM"
    assert skipped(facts, "model.t2d") is not None and skipped(facts, "d2t") is None


def stopped_at(case: dict[str, Any], folder: Path, engine: str = VLLM) -> list[tuple[str, str]]:
    """Code and slug of what is found of names and shapes."""
    found = run(without_log(case) | {"engine": engine}, folder).findings
    return [(one.code, one.fault) for one in found if one.code.startswith("E3L-N")]


def native(**edits: Any) -> dict[str, Any]:
    case = load("ok-vllm-native-speculators")
    case["drafter"]["edits"] = edits
    return case


@pytest.mark.parametrize("release", ["0.11.2", "0.20.2", "0.24.0", "0.25.1", "0.33.0", "0.33.4"])
@pytest.mark.parametrize("layer", ["layers.0.", "midlayer."])
def test_every_release_serves_both_names_of_the_layer(release: str, layer: str, tmp_path: Path) -> None:
    for number, identity in enumerate(("ok-vllm-native-speculators", "ok-specforge-llama-0.5.9")):
        case = load(identity) | {"launch": COMMAND}
        template(case)["prefix"] = layer
        assert stopped_at(case, tmp_path / str(number), f"vllm=={release}") == []


@pytest.mark.parametrize("release", ["0.20.2", "0.32.0"])
@pytest.mark.parametrize(
    ("old", "new"), [("*", "module.*"), ("layers.0.*", "model.layers.0.*"), ("fc.*", "fcs.*")]
)
def test_a_name_that_leads_nowhere_is_rejected(release: str, old: str, new: str, tmp_path: Path) -> None:
    case = native(rename={old: new})
    assert stopped_at(case, tmp_path, f"vllm=={release}") == [("E3L-N02", "names.rejected")]


def test_norms_of_queries_are_served_by_the_class_that_has_them(tmp_path: Path) -> None:
    case = load("ok-vllm-native-speculators")
    template(case)["with"] = ["qk_norm"]
    unsupported = [("E3L-N02", "names.unsupported-tensor")]
    assert stopped_at(case, tmp_path / "llama") == unsupported
    case["drafter"]["config"]["transformer_layer_config"]["model_type"] = "qwen3"
    assert stopped_at(case, tmp_path / "qwen3") == []
    assert stopped_at(case, tmp_path / "before", "vllm==0.23.0") == unsupported


def test_what_belongs_to_another_fault_bears_its_name(tmp_path: Path) -> None:
    scales = native(add={"layers.0.mlp.down_proj.weight_scale": {"dtype": "F32", "shape": [64, 1]}})
    assert stopped_at(scales, tmp_path / "scales") == [("E3L-N02", "layer.quantisation")]
    norms = load("ok-vllm-native-speculators")
    template(norms)["with"] = ["fc_norm"]
    assert stopped_at(norms, tmp_path / "norms") == [("E3L-N02", "layer.norm-before-fc")]
    # A release that has no such norm: the check of releases says so.
    found = run(without_log(norms) | {"engine": "vllm==0.20.2"}, tmp_path / "old").findings
    assert [(one.code, one.fault) for one in found] == [("E3L-L10", "layer.norm-before-fc")]


def test_parameters_without_a_tensor_and_tensors_of_another_shape(tmp_path: Path) -> None:
    missing = native(drop=["*.o_proj.weight"])
    assert stopped_at(missing, tmp_path / "missing") == [("E3L-N03", "names.missing")]
    wide = load("ok-vllm-native-speculators")
    wide["drafter"]["config"]["transformer_layer_config"]["head_dim"] = 32
    assert stopped_at(wide, tmp_path / "wide") == [("E3L-N05", "names.shape")]
    bare = native(drop=["lm_head.weight", "embed_tokens.weight", "d2t", "t2d"])
    assert stopped_at(bare, tmp_path / "bare") == []


def test_ranks_that_do_not_divide_the_heads(tmp_path: Path) -> None:
    case = load("ok-vllm-native-speculators") | {"launch": f"{COMMAND} --tensor-parallel-size 3"}
    assert stopped_at(case, tmp_path) == [("E3L-N06", "names.tensor-parallel")]


def test_a_map_without_draft_vocab_size_is_a_fault_of_the_config(tmp_path: Path) -> None:
    case = without_log(load("ok-specforge-llama-0.5.9")) | {"engine": VLLM, "launch": COMMAND}
    del case["drafter"]["config"]["draft_vocab_size"]
    found = run(case, tmp_path).findings
    assert (found[0].code, found[0].impact) == ("E3L-K04", Impact.STOPS)
    assert not [one for one in found if one.code == "E3L-N02"]


def test_where_the_load_is_not_simulated_the_rule_decides(tmp_path: Path) -> None:
    """A release that was not read, a quantised drafter, and a class that is not described."""
    case = native(rename={"*": "module.*"})
    assert stopped_at(case, tmp_path / "old", "vllm==0.9.1") == [("E3L-N02", "names.rejected")]
    case["drafter"]["config"]["quantization_config"] = {"quant_method": "fp8"}
    assert stopped_at(case, tmp_path / "quantised") == [("E3L-N02", "names.rejected")]
    healthy = load("ok-vllm-native-speculators")
    healthy["drafter"]["config"]["quantization_config"] = {"quant_method": "fp8"}
    assert stopped_at(healthy, tmp_path / "healthy") == []
    undescribed = load("ok-specforge-llama-0.5.9") | {"launch": COMMAND}
    undescribed["drafter"]["config"]["architectures"] = ["Eagle3DeepseekV2ForCausalLM"]
    assert stopped_at(undescribed, tmp_path / "undescribed") == []
    simulated = inputs(drafter=tmp_path / "undescribed" / "drafter", engine=VLLM).get("VllmLoad")
    assert isinstance(simulated, Missing) and "does not describe" in simulated.reason


def test_a_load_is_simulated_for_the_engine_that_serves(tmp_path: Path) -> None:
    run(without_log(load("ok-vllm-native-speculators")), tmp_path)
    for engine, method, simulated in (
        (VLLM, "eagle3", True),
        (VLLM, "eagle", False),
        (SGLANG, "eagle3", False),
    ):
        command = COMMAND.replace('"eagle3"', f'"{method}"')
        case = inputs(drafter=tmp_path / "drafter", engine=engine, launch=command)
        assert isinstance(case.get("VllmLoad"), Missing) is not simulated
        assert isinstance(case.get("SglangLoad"), Missing) is (engine != SGLANG)
