"""What a release asks of a target's class, looked up for targets of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import diagnose

CODE = "E3L-C11"


def _target(folder: Path, architecture: str, model_type: str, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 64,
        "num_hidden_layers": 8,
    }
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 256, **more}))
    return folder


@pytest.mark.parametrize(
    ("engine", "architecture", "model_type", "fault"),
    [
        ("sglang==0.5.9", "Qwen2MoeForCausalLM", "qwen2_moe", "capture.target-incomplete"),
        ("sglang==0.5.19", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "capture.target-unsupported"),
        ("sglang==0.5.22", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", None),
        ("sglang==0.5.9", "LlamaForCausalLM", "llama", None),
        ("vllm==0.11.2", "Gemma3ForConditionalGeneration", "gemma3", "capture.target-unsupported"),
        ("vllm==0.24.0", "Gemma3ForConditionalGeneration", "gemma3", "capture.target-unsupported"),
        ("vllm==0.24.0", "LlamaForCausalLM", "llama", None),
    ],
)
def test_what_a_target_lacks_is_found(
    tmp_path: Path, engine: str, architecture: str, model_type: str, fault: str | None
) -> None:
    found = diagnose(target=_target(tmp_path / "target", architecture, model_type), engine=engine)
    assert [one.fault for one in found.findings if one.code == CODE] == ([fault] if fault else [])
    assert (CODE in found.passed) == (fault is None)


def test_what_cannot_be_followed_is_said_to_be_undecided(tmp_path: Path) -> None:
    target = _target(tmp_path / "target", "Llama4ForConditionalGeneration", "llama4")
    [reason] = [
        one.reason for one in diagnose(target=target, engine="sglang==0.5.9").skipped if one.code == CODE
    ]
    assert reason.startswith("undecided: Llama4ForConditionalGeneration hands the ids to its language_model")


def test_the_list_of_a_release_of_vllm_is_named(tmp_path: Path) -> None:
    target = _target(tmp_path / "target", "FooForCausalLM", "foo", text_config={"model_type": "gemma3_text"})
    [found] = [one for one in diagnose(target=target, engine="vllm==0.15.1").findings if one.code == CODE]
    assert found.title == "vllm==0.15.1 takes no target of type gemma3_text for EAGLE-3"
    assert "config/speculative.py:672" in found.evidence[1].text
