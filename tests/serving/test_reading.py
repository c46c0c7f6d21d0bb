from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.errors import InputError
from eagle3lab.serving.launch import LaunchPlan, read_command, read_script
from eagle3lab.serving.launch.reading import plan_of_server, read_fields

CASE = LaunchPlan(
    "/models/kimi", drafter="/models/head", algorithm="EAGLE", steps=3, topk=1, draft_tokens=4, tp=8,
    backends={"attention": "flashinfer"}, environment={"CUDA_VISIBLE_DEVICES": "0,1"}, extra=("--trust-remote-code",),
)  # fmt: skip

ALIASES = """
CUDA_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server --model /models/kimi --tp=8 --trust-remote-code \
  --speculative-algo EAGLE --speculative-draft-model /models/head --attention-backend flashinfer \
  --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4
"""

SCRIPT = r"""#!/usr/bin/env bash
set -euo pipefail
# python -m sglang.launch_server --model-path /not/this/one
export CUDA_VISIBLE_DEVICES=0,1
MODELS=/models            # a comment
MODEL="${MODELS}/kimi"
STAMP=$(date +%s)         # cannot be known, and need not be
TP=${TP:-8}
ARGS=(
    --model-path "$MODEL"
    --trust-remote-code   # another comment
    --attention-backend flashinfer
)
ARGS+=(--speculative-algorithm EAGLE)
if [ -n "${DEBUG:-}" ]; then
    echo "serving 'it'"
fi

mkdir -p logs && nohup python -m sglang.launch_server \
    "${ARGS[@]}" \
    --speculative-draft-model-path "$MODELS"/head --tp-size "$TP" \
    --speculative-num-steps 3 \
    --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
    > "logs/server.log" 2>&1 &
echo "started $!"
"""


@pytest.mark.parametrize(
    "text",
    [
        ALIASES,
        SCRIPT,
        "!" + CASE.command(),
        "$ " + CASE.command(),
        "env " + ALIASES.strip() + " | tee server.log",
        "cd /sgl && exec numactl --cpunodebind=0 env " + ALIASES.strip() + " >log 2>&1; echo done",
        "export CUDA_VISIBLE_DEVICES=0,1; sglang serve /models/kimi " + ALIASES.split("/models/kimi")[1],
        "docker run --gpus all image bash -c '" + ALIASES.strip() + "'",
    ],
    ids=["aliases", "script", "notebook", "prompt", "env", "wrapped", "serve", "nested"],
)
def test_the_same_server_is_read_from_every_way_to_write_it(text: str) -> None:
    assert read_command(text) == CASE


def test_a_script_names_the_line_of_what_cannot_be_known(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text('A=1\n\npython -m sglang.launch_server \\\n  --model-path "$HERE/x"\n')
    with pytest.raises(InputError, match=r"serve\.sh:4: the variable HERE has no value"):
        read_script(path)
    assert read_script(path, variables={"HERE": "/m"}) == LaunchPlan("/m/x")
    path.write_text("python -m sglang.launch_server --model-path $(find / -name x)\n")
    with pytest.raises(InputError, match=r"serve\.sh:1: a command substitution"):
        read_script(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve /m", "no SGLang launch command"),
        ("", "no SGLang launch command"),
        ("python -m sglang.launch_server --tp 8", "names no model"),
        ("python -m sglang.launch_server --model-path", "has no value"),
        ("python -m sglang.launch_server --model-path --tp 8", "has no value"),
        ("python -m sglang.launch_server --model-path /m --tp eight", "whole number"),
        ("python -m sglang.launch_server --model-path '/m", "never closed"),
        ('python -m sglang.launch_server --model-path "/m', "never closed"),
        ("python -m sglang.launch_server --model-path $1", r"\$1 has no value"),
        ("python -m sglang.launch_server --model-path ${M%/}", "not understood"),
        ("sglang serve /a\nsglang serve /b", "lines 1, 2"),
    ],
)
def test_a_command_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_command(text)


def test_of_a_repeated_flag_the_last_counts() -> None:
    assert read_command("sglang serve /a --tp 2 --tp-size 4 --model /b") == LaunchPlan("/b", tp=4)


def test_a_comment_ends_a_command_even_between_continued_lines() -> None:
    text = "sglang serve /m \\\n  --tp 2 \\\n  # --dp 2 \\\n  --port 3\n"
    assert read_command(text) == LaunchPlan("/m", tp=2)


def test_a_variable_set_for_one_command_is_not_the_next_one_s() -> None:
    assert read_command("A=1 true\nsglang serve /m").environment == {}
    assert read_command("A=1\nsglang serve /m").environment == {}
    assert read_command("export A=1 B\nA=2 sglang serve /m").environment == {"A": "2"}


@given(st.text(st.sampled_from("ab -'\"\\$(){}=#\n;&|<>~`@![]sglang serve"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for hostile in (text, f"sglang serve {text}"):
        with suppress(InputError):
            read_command(hostile)


def test_the_file_itself_may_be_at_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_script(tmp_path / "none.sh")
    (tmp_path / "big.sh").write_bytes(b"#" * (1 << 21))
    with pytest.raises(InputError, match="too large"):
        read_script(tmp_path / "big.sh")


def test_arguments_set_fields_without_naming_a_model() -> None:
    words = ["--tp=4", "--attention-backend", "fa3", "--max-total-tokens=9", "--enable-x"]
    assert read_fields(words) == {
        "tp": 4,
        "backends": {"attention": "fa3"},
        "extra": ["--max-total-tokens=9", "--enable-x"],
    }
    with pytest.raises(InputError, match="--tp takes a whole number, not 'many'"):
        read_fields(["--tp=many"])


def test_a_running_server_s_own_account_is_a_plan() -> None:
    info = {
        "model_path": "/m",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_draft_tokens": 5,
        "speculative_draft_model_path": None,
        "tp_size": 8,
        "node_rank": 0,
        "device": "cuda",
        "port": 30000,
        "unrelated": {"x": 1},
    }
    plan = plan_of_server(info)
    assert plan == LaunchPlan("/m", algorithm="EAGLE3", draft_tokens=5, tp=8, device="cuda", port=30000)
    with pytest.raises(InputError, match="names no model"):
        plan_of_server({})
    with pytest.raises(InputError, match="tp must be a whole number"):
        plan_of_server(info | {"tp_size": "8"})
