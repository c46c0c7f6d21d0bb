"""Any single fault put into any healthy case is found, named right and ranked first."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import Verdict, diagnose
from tests.diagnosis.corpus import case_ids, load, run
from tests.diagnosis.injected import INJECTIONS, template, without_log
from tests.support.make_case import materialise

HEALTHY = [
    identity
    for identity in case_ids()
    if (case := load(identity))["expect"]["fault"] == "healthy"
    and case["drafter"]
    and (case["engine"] or "").startswith("sglang")
]
# What a fault says about itself is enough: a release of each way of loading, and the last one.
RELEASES = ("0.4.10", "0.5.3", "0.5.9", "0.5.11", "0.5.13", "0.5.16", "0.5.20", "0.5.23")


@pytest.mark.parametrize("name", INJECTIONS)
def test_injection(name: str, tmp_path: Path) -> None:
    done, wrong = 0, []
    for number, identity in enumerate(HEALTHY):
        case = without_log(load(identity))
        expected = INJECTIONS[name](case)
        if expected is None:
            continue
        done += 1
        diagnosis = run(case, tmp_path / str(number))
        found = [(one.fault, one.code, str(one.severity)) for one in diagnosis.findings]
        if (
            not found
            or found[0][0] not in expected
            or diagnosis.verdict not in (Verdict.BROKEN, Verdict.SUSPECT)
        ):
            wrong.append(f"{identity} ({case['engine']}): {diagnosis.verdict}, {found}, expected {expected}")
    assert done, "the fault fits no case"
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("identity", HEALTHY)
def test_nothing_injected(identity: str, tmp_path: Path) -> None:
    """Without its log, a healthy case stays without findings."""
    diagnosis = run(without_log(load(identity)), tmp_path)
    assert not [one for one in diagnosis.findings if one.severity != "note"]
    assert diagnosis.verdict in (Verdict.NO_FAULT_FOUND, Verdict.UNKNOWN)


@pytest.mark.parametrize("release", RELEASES)
def test_healthy_head_on_every_release(release: str, tmp_path: Path) -> None:
    """A head with midlayer names, offsets and the usual layers is healthy from 0.4.9 to the last release."""
    case = without_log(load("ok-specforge-llama-0.5.9"))
    assert template(case)["prefix"] == "midlayer."
    diagnosis = run(case | {"engine": f"sglang=={release}"}, tmp_path)
    assert diagnosis.verdict is Verdict.NO_FAULT_FOUND, diagnosis.findings


TOGETHER = (
    "old_release_other_layer_name", "algorithm_eagle", "double_offset", "norm_before_residual", "tied",
    "base_architecture", "rope_in_the_new_field", "qk_norm", "half_precision", "inherited_quantisation",
    "norm_before_fc", "norm_output", "short_context", "rows_rolled", "ids_at_top_level", "larger_vocabulary",
    "foreign_architecture", "adapters",
)  # fmt: skip
# One takes the place of the other, or makes it moot: the map or the head that the second is about is gone.
EXCLUSIVE = (
    {"base_architecture", "foreign_architecture"},
    {"double_offset", "rows_rolled"},
    {"tied", "rows_rolled"},
    {"norm_before_fc", "ids_at_top_level"},
    {"norm_before_fc", "qk_norm"},
    {"qk_norm", "ids_at_top_level"},
)


@pytest.mark.parametrize(
    "pair", [p for p in combinations(TOGETHER, 2) if set(p) not in EXCLUSIVE], ids="-".join
)
def test_two_faults_are_both_listed(pair: tuple[str, str], tmp_path: Path) -> None:
    case = without_log(load("ok-specforge-llama-0.5.9"))
    expected = [INJECTIONS[name](case) for name in pair]
    found = {one.fault for one in run(case, tmp_path).findings}
    for slugs in expected:
        assert slugs is not None and found & set(slugs), f"{slugs} is not among {found}"


VLLM = "ok-vllm-native-speculators"


def vllm_case(**nested: object) -> dict[str, Any]:
    case = without_log(load(VLLM))
    case["drafter"]["config"] |= nested
    return case


def first_fault(case: dict[str, Any], folder: Path) -> str:
    found = run(case, folder).findings
    return found[0].fault if found else "healthy"


def test_vllm_untouched(tmp_path: Path) -> None:
    assert first_fault(vllm_case(), tmp_path) == "healthy"


def test_vllm_output_style_ids(tmp_path: Path) -> None:
    assert (
        first_fault(vllm_case(eagle_aux_hidden_state_layer_ids=[1, 17, 32]), tmp_path)
        == "capture.ids-convention"
    )


@pytest.mark.parametrize(
    ("release", "fault"),
    [("0.22.0", "healthy"), ("0.23.0", "capture.ids-convention"), ("0.33.0", "capture.ids-convention")],
)
def test_vllm_nested_ids(release: str, fault: str, tmp_path: Path) -> None:
    """From 0.22.1 on nested ids are read, unshifted; before, the default layers are captured, here the right ones."""
    case = vllm_case(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 17, 32]})
    del case["drafter"]["config"]["eagle_aux_hidden_state_layer_ids"]
    assert first_fault(case | {"engine": f"vllm=={release}"}, tmp_path) == fault


def test_vllm_unstated_residual(tmp_path: Path) -> None:
    case = vllm_case()
    del case["drafter"]["config"]["norm_before_residual"]
    assert first_fault(case, tmp_path) == "layer.norm-before-residual"


def test_vllm_raw_trainer_names(tmp_path: Path) -> None:
    case = vllm_case()
    case["drafter"]["edits"] = {"rename": {"*": "module.*"}}
    assert first_fault(case, tmp_path) == "names.rejected"


@pytest.mark.parametrize(("release", "fault"), [("0.18.0", "layer.norm-before-fc"), ("0.20.2", "healthy")])
def test_vllm_norm_before_fc(release: str, fault: str, tmp_path: Path) -> None:
    case = vllm_case(norm_before_fc=True) | {"engine": f"vllm=={release}"}
    template(case)["with"] = ["input_norm"]
    assert first_fault(case, tmp_path) == fault


def test_vllm_untrained_embeddings(tmp_path: Path) -> None:
    case = vllm_case()
    template(case)["embed"] = "init"
    assert first_fault(case, tmp_path) == "head.embedding"


def test_older_head_served_as_what_it_is(tmp_path: Path) -> None:
    """An EAGLE-1 head with --speculative-algorithm EAGLE is no fault."""
    case = without_log(load("kind-eagle1-as-eagle3"))
    case["launch"] = case["launch"].replace("EAGLE3", "EAGLE")
    assert first_fault(case, tmp_path) == "healthy"


def test_safetensors_beside_the_same_bin(tmp_path: Path) -> None:
    """A repository that ships the same weights in both forms is healthy."""
    case = without_log(load("ok-specforge-llama-0.5.9"))
    materialise(case | {"drafter": case["drafter"] | {"files": "bin", "seed": 7}}, tmp_path / "bin")
    folder = tmp_path / "case"
    run(case, folder)
    (folder / "drafter" / "pytorch_model.bin").write_bytes(
        (tmp_path / "bin" / "drafter" / "pytorch_model.bin").read_bytes()
    )
    found = diagnose(
        folder / "drafter", target=folder / "target", engine=case["engine"], launch=case["launch"]
    )
    assert not found.findings and found.verdict is Verdict.NO_FAULT_FOUND


def test_rope_base_of_the_target_is_a_note(tmp_path: Path) -> None:
    case = without_log(load("ok-specforge-llama-0.5.9"))
    del case["drafter"]["config"]["rope_theta"]
    diagnosis = run(case, tmp_path)
    assert diagnosis.verdict is Verdict.NO_FAULT_FOUND
    assert [(one.fault, one.severity) for one in diagnosis.findings] == [("layer.rope", "note")]


def test_enough_combinations() -> None:
    done = sum(
        inject(without_log(load(identity))) is not None
        for inject in INJECTIONS.values()
        for identity in HEALTHY
    )
    assert done >= 500, done
