"""Kinds of reports: what a user brings besides an exported drafter, a command and a clean log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import Diagnosis, Verdict, diagnose
from eagle3lab.diagnosis.run import BROKE
from eagle3lab.errors import InputError
from tests.diagnosis.corpus import load
from tests.support.make_case import materialise


def faults(found: Diagnosis) -> list[str]:
    assert not [one for one in found.skipped if BROKE in one.reason], found.skipped
    return [one.fault for one in found.findings]


def written(folder: Path, identity: str = "ok-specforge-llama-0.5.9", **config: Any) -> Path:
    materialise({**load(identity), "log": []}, folder)
    path = folder / "drafter" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


# ---- folders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("__0_0.distcp", "dcp_to_torch"),
        ("zero_to_fp32.py", "zero_to_fp32.py"),
        ("latest_checkpointed_iteration.txt", "converter"),
        ("adapter_config.json", "merge_and_unload"),
    ],
)
def test_what_a_trainer_left_is_named_with_its_converter(tmp_path: Path, entry: str, said: str) -> None:
    (tmp_path / entry).write_text("{}")
    found = diagnose(tmp_path, engine="sglang==0.5.9")
    assert faults(found)[0] == "files.missing" and said in found.findings[0].fix


def test_the_folder_above_checkpoints_asks_for_the_last_one(tmp_path: Path) -> None:
    for number in (2, 10):
        case = written(tmp_path / "made")
        (case / "drafter").rename(tmp_path / f"epoch_{number}")
    found = diagnose(tmp_path, engine="sglang==0.5.9")
    assert faults(found)[0] == "files.missing"
    assert found.findings[0].fix == f"Did you mean {tmp_path / 'epoch_10'}?"


# ---- command and log as inputs ----------------------------------------------------------------------------------


def test_the_command_alone_names_drafter_and_target(tmp_path: Path) -> None:
    case = written(tmp_path, "names-fc-missing")
    command = (
        f"python -m sglang.launch_server --model-path {case}/target --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {case}/drafter"
    )
    assert "names.missing" in faults(diagnose(launch=command, engine="sglang==0.5.9"))
    script = case / "run.sh"
    script.write_text(command.replace(f"{case}/", "./"))
    assert "names.missing" in faults(diagnose(launch=str(script), engine="sglang==0.5.9"))


def test_paths_that_are_not_here_are_said_to_be_open() -> None:
    found = diagnose(
        launch='vllm serve org/target --speculative-config \'{"method": "eagle3", "model": "a/b"}\''
    )
    assert found.verdict in (Verdict.NO_FAULT_FOUND, Verdict.UNKNOWN) and found.exit_status == 0
    assert "a/b" in found.summary and "org/target" in found.summary
    assert len(found.summary.split()) < 120


def test_engine_and_method_come_from_the_start_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO [model.py:554] Resolved architecture: Eagle3LlamaForCausalLM\n"
        "INFO [core.py:107] Initializing a V1 LLM engine (v0.20.2) with config: model='t', "
        "speculative_config=SpeculativeConfig(method='eagle', model='d', num_spec_tokens=3), tokenizer='t'\n"
    )
    found = diagnose(log=log)
    assert found.inputs["engine"] == "vllm==0.20.2" and faults(found)[0] == "capture.algorithm"


def test_another_engine_is_not_simulated_and_the_rest_is_checked(tmp_path: Path) -> None:
    case = written(tmp_path, "vocab-absolute")
    found = diagnose(case / "drafter", target=case / "target", engine="tensorrt-llm==1.2")
    assert faults(found)[0] == "vocab.absolute"
    assert any("not simulated" in note for note in found.notes)


# ---- heads ------------------------------------------------------------------------------------------------------


def test_a_field_of_another_type_stops_where_types_are_checked(tmp_path: Path) -> None:
    case = written(tmp_path, use_cache=None)
    assert faults(diagnose(case / "drafter", engine="sglang==0.5.18")) == ["head-kind.config-value"]
    assert faults(diagnose(case / "drafter", engine="sglang==0.5.9")) == []


def test_the_activation_of_another_trainer(tmp_path: Path) -> None:
    case = written(tmp_path, hidden_act="gelu")
    assert faults(diagnose(case / "drafter", engine="sglang==0.5.9"))[0] == "layer.activation"


@pytest.mark.parametrize(("ids", "ignored"), [([1, 9, 25], True), ([1, 15, 28], False)])
def test_layers_under_a_trainers_key(tmp_path: Path, ids: list[int], ignored: bool) -> None:
    """Where they are the defaults of the target's 32 layers, nothing is lost by not reading them."""
    case = written(tmp_path, target_layer_ids=ids, eagle_config={})
    found = diagnose(case / "drafter", target=case / "target", engine="sglang==0.5.9")
    assert ("capture.ids-ignored" in faults(found)) == ignored


def test_one_folder_for_target_and_drafter_is_its_own_prediction_layer(tmp_path: Path) -> None:
    command = "sglang serve m --speculative-algorithm {} --speculative-draft-model-path m"
    assert faults(diagnose(launch=command.format("EAGLE3"))) == ["flags.own-mtp"]
    assert faults(diagnose(launch=command.format("EAGLE"))) == []


def test_a_head_with_low_rank_attention_is_sent_to_a_release_that_has_its_class(tmp_path: Path) -> None:
    case = written(tmp_path, "ok-kimi-mla-verbatim")
    found = diagnose(case / "drafter", engine="sglang==0.5.11")
    assert faults(found)[0] == "head-kind.architecture"
    assert found.findings[0].fix.startswith("Use SGLang 0.5.12 or later")


# ---- verdicts ---------------------------------------------------------------------------------------------------


def test_healthy_needs_acceptance_that_was_observed(tmp_path: Path) -> None:
    case = load("ok-specforge-llama-0.5.9")
    materialise(case, tmp_path)
    given: dict[str, Any] = {
        "target": tmp_path / "target",
        "engine": case["engine"],
        "launch": case["launch"],
    }
    alone = diagnose(tmp_path / "drafter", **given)
    assert alone.verdict is Verdict.NO_FAULT_FOUND and "what is accepted" in alone.summary
    assert diagnose(tmp_path / "drafter", log=tmp_path / "server.log", **given).verdict is Verdict.HEALTHY


def test_a_target_folder_without_config_is_said(tmp_path: Path) -> None:
    case = written(tmp_path)
    (case / "target" / "config.json").unlink()
    found = diagnose(case / "drafter", target=case / "target", engine="sglang==0.5.9")
    assert found.verdict is Verdict.NO_FAULT_FOUND and "the target, whose folder" in found.summary


def test_a_command_that_cannot_be_read_is_a_note_beside_other_inputs(tmp_path: Path) -> None:
    case = written(tmp_path)
    (case / "run.sh").write_text("echo hello\n")
    found = diagnose(case / "drafter", engine="sglang==0.5.9", launch=str(case / "run.sh"))
    assert found.verdict is Verdict.NO_FAULT_FOUND
    assert any("was not read: holds no launch command" in note for note in found.notes)
    with pytest.raises(InputError, match="holds no launch command"):
        diagnose(launch=str(case / "run.sh"))
