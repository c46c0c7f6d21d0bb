"""Launch commands as people write them, and as nobody should."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.diagnosis.evidence.launch import read_launch
from eagle3lab.errors import InputError

SCRIPT = """#!/bin/bash
# python -m sglang.launch_server --model-path old
set -e
SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python3 -m sglang.launch_server \\
    --model-path /models/target --tp=8 \\
    --speculative-algo eagle3 \\  
    --speculative-draft-model-path "/models/my drafter" \\
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \\
    --lora-paths a=./a b=./b --disable-cuda-graph 2>&1 | tee log.txt
"""  # noqa: W291


def test_script(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT.replace("\\  \n", "\\\n"))
    launch = read_launch(str(path))
    assert launch.engine == "sglang"
    assert (launch.model, launch.drafter) == ("/models/target", "/models/my drafter")
    assert (launch.algorithm, launch.tp, launch.steps, launch.topk, launch.draft_tokens) == (
        "EAGLE3",
        8,
        3,
        1,
        4,
    )
    assert launch.text("lora-paths") == "a=./a b=./b"
    assert launch.has("disable-cuda-graph") and launch.text("disable-cuda-graph") is None
    assert launch.environment == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert "tee" not in launch.options


@pytest.mark.parametrize(
    "config",
    [
        """--speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'""",
        "--speculative-config.method eagle3 --speculative-config.model d --speculative-config.num_speculative_tokens 3",
    ],
)
def test_vllm(config: str) -> None:
    launch = read_launch(f"vllm serve ./target -tp 2 {config}")
    assert launch.engine == "vllm"
    assert (launch.model, launch.drafter, launch.algorithm, launch.tp) == ("./target", "d", "eagle3", 2)
    assert (launch.steps, launch.draft_tokens) == (3, 4)


def test_broken_speculative_config_is_a_note() -> None:
    launch = read_launch("vllm serve t --speculative-config '{broken'")
    assert launch.algorithm is None and launch.notes


@pytest.mark.parametrize("text", ["", "no-such-file", "echo hello", "# python -m sglang.launch_server"])
def test_no_command(text: str) -> None:
    with pytest.raises(InputError):
        read_launch(text)


def test_chain_has_steps_plus_one() -> None:
    launch = read_launch(
        "sglang serve m --speculative-algorithm EAGLE3 --speculative-num-steps 4 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 24"
    )
    assert (launch.draft_tokens, launch.effective_draft_tokens) == (24, 5)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        launch = read_launch(f"python -m sglang.launch_server {text}")
    except InputError:
        return
    assert launch.tp >= 1
    assert launch.algorithm is None or launch.algorithm == launch.algorithm.upper()
