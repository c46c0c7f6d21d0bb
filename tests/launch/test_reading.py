"""Launch commands as people write them, wherever they write them, and as nobody should."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.engines.launch.reading import read_launch
from eagle3lab.errors import InputError
from eagle3lab.serving.plan import LaunchPlan, plan_of, plan_of_server, read_fields

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


def read_command(text: str, variables: Mapping[str, str] | None = None) -> LaunchPlan:
    return plan_of(read_launch(text, variables=variables, strict=True))


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
        read_command(str(path))
    assert read_command(str(path), variables={"HERE": "/m"}) == LaunchPlan("/m/x")
    path.write_text("python -m sglang.launch_server --model-path $(find / -name x)\n")
    with pytest.raises(InputError, match=r"serve\.sh:1: a command substitution"):
        read_command(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve /m", "launches no SGLang"),
        ("", "holds no launch command|neither a launch command"),
        ("python -m sglang.launch_server --tp 8", "names no model"),
        ("python -m sglang.launch_server --model-path", "has no value"),
        ("python -m sglang.launch_server --model-path --tp 8", "has no value"),
        ("python -m sglang.launch_server --model-path /m --tp eight", "whole number"),
        ("python -m sglang.launch_server --model-path '/m", "never closed"),
        ('python -m sglang.launch_server --model-path "/m', "never closed"),
        ("python -m sglang.launch_server --model-path $1", r"\$1 has no value"),
        ("python -m sglang.launch_server --model-path ${M%/}", "not understood"),
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
    with pytest.raises(InputError, match="neither a launch command nor a file"):
        read_command(str(tmp_path / "none.sh"))
    (tmp_path / "big.sh").write_bytes(b"#" * (1 << 21))
    with pytest.raises(InputError, match="too large"):
        read_command(str(tmp_path / "big.sh"))


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


# ---- as they are pasted ----

PASTED = """#!/bin/bash
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
    path.write_text(PASTED)
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
def test_any_arguments_are_read_or_refused(text: str) -> None:
    try:
        launch = read_launch(f"python -m sglang.launch_server {text}")
    except InputError:
        return
    assert launch.tp >= 1
    assert launch.algorithm is None or launch.algorithm == launch.algorithm.upper()


# ---- wherever they are written ----

_SERVER = "python3 -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3"
_DRAFTED = "--speculative-draft-model-path /d"
_VLLM_CONFIG = '{"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}'
PLACES = {
    "compose": f"""services:
  server:
    image: lmsysorg/sglang:latest
    environment: {{TP: "4"}}
    command: >
      {_SERVER} --tp ${{TP:-2}}
      {_DRAFTED}
""",
    "compose-list": f"""services:
  server:
    environment: [TP=4]
    command: {[*_SERVER.split(), "--tp", "${TP}", *_DRAFTED.split()]}
""",
    "kubernetes": f"""apiVersion: v1
kind: Pod
spec:
  containers:
  - name: server
    command: ["python3", "-m", "sglang.launch_server"]
    args: {[*_SERVER.split()[3:], "--tp=$(TP)", *_DRAFTED.split()]}
    env:
    - name: TP
      value: "4"
""",
    "kubernetes-shell": f"""kind: Deployment
spec:
  template:
    spec:
      containers:
      - command: ["/bin/bash", "-c"]
        args:
        - |
          export TP=4
          {_SERVER} \\
            --tp $TP {_DRAFTED}
""",
    "here-document": f"cat > run.sh <<'EOF'\nTP=4\n{_SERVER} --tp $TP {_DRAFTED}\nEOF\nbash run.sh\n",
    "docker": f"docker run --gpus all -e HF_HOME=/x image sh -c '{_SERVER} --tp 4 {_DRAFTED}'",
    "loop": f"for TP in 4 8; do {_SERVER} --tp $TP {_DRAFTED}; done",
    "engine": """import sglang as sgl
MORE = dict(tp_size=4)
llm = sgl.Engine(
    model_path="/m", speculative_algorithm="EAGLE3", speculative_draft_model_path="/d", **MORE
)
""",
    "vllm": f"vllm serve /m -tp 4 --speculative-config '{_VLLM_CONFIG}'",
    "vllm-image": f"docker run vllm/vllm-openai:latest --model /m -tp=4 --speculative_config '{_VLLM_CONFIG}'",
    "vllm-dotted": "vllm serve /m --tensor_parallel_size 4 --speculative-config.method eagle3 "
    "--speculative-config.model /d",
    "LLM": f"""from vllm import LLM
llm = LLM("/m", tensor_parallel_size=4, speculative_config={_VLLM_CONFIG})
""",
    "LLM-in-a-script": f"""python - <<EOF
from vllm import LLM
LLM("/m", tensor_parallel_size=4, speculative_config={_VLLM_CONFIG})
EOF
""",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_server_is_found_wherever_it_is_written(place: str) -> None:
    launch = read_launch(PLACES[place], strict=True)
    assert (launch.model, launch.drafter, launch.tp) == ("/m", "/d", 4)
    assert (launch.algorithm or "").upper() == "EAGLE3"
    assert launch.engine == ("vllm" if place.startswith(("vllm", "LLM")) else "sglang")


def test_a_config_file_is_read_under_what_is_given(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("tp-size: 2\nenable-lora: true\nspeculative_num_steps: 5\n")
    (tmp_path / "run.sh").write_text(
        "sglang serve /m --config server.yaml --tp 4 --speculative-algorithm EAGLE3\n"
    )
    launch = read_launch(str(tmp_path / "run.sh"))
    assert (launch.tp, launch.steps, launch.has("enable-lora")) == (4, 5, True)
    absent = read_launch("sglang serve /m --config /no/such.yaml --tp 4")
    assert absent.tp == 4 and "/no/such.yaml are not known" in absent.notes[0]


def test_of_several_servers_the_last_that_speculates_is_meant() -> None:
    text = "sglang serve /a --tp 2 --speculative-algorithm EAGLE3\nsglang serve /b --tp 4\n"
    launch = read_launch(text)
    assert launch.model == "/a"
    assert launch.notes == ("several servers are launched: the one on line 1 is meant, not that on 2",)


def test_what_only_a_shell_knows_stays_as_written_and_is_said() -> None:
    launch = read_launch("sglang serve <your model> --tp $TP --port $(free-port) --speculative-num-steps 3")
    assert (launch.model, launch.tp, launch.steps) == ("<your model>", 1, 3)
    assert [note.partition(": ")[2] for note in launch.notes] == [
        "the variable TP has no value here",
        "a command substitution cannot be read without running it",
    ]


def test_engines_that_are_not_simulated_are_named() -> None:
    launch = read_launch("trtllm-serve ./target --extra_llm_api_options extra.yml")
    assert (launch.engine, launch.model) == ("tensorrt-llm", "./target")


def test_variables_that_nothing_here_weighs() -> None:
    launch = read_launch("VLLM_ASCEND_ENABLE_FLASHCOMM1=1 CUDA_VISIBLE_DEVICES=0 vllm serve /m")
    assert launch.unweighed() == ("VLLM_ASCEND_ENABLE_FLASHCOMM1",)
    assert launch.unweighed(["VLLM_ASCEND_ENABLE_FLASHCOMM1"]) == ()


def _nested(count: int, line: str, last: str) -> str:
    return "".join(line.format(n=n, m=max(n - 1, 0)) for n in range(count)) + last


HOSTILE = {
    "doubled variables": "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "sglang serve $A",
    "placeholder": "sglang serve ${MODEL:-<your model>} ${M:-<}",
    "escapes": "sglang serve ${X:-" + r"\a" * 200_000,
    "quotes": "sglang serve " + "'" * 300_001,
    "double quotes": "sglang serve " + '"$(' * 100_000,
    "substitutions": "sglang serve " + "$(" * 400_000,
    "braces": "sglang serve " + "${a:-" * 200_000,
    "long word": "sglang serve " + r"\a" * 400_000,
    "arrays": "A+=($(x))\n" * 60_000 + "sglang serve $A",
    "here-documents": "cat <<E\n" * 100_000,
    "placeholders": "<a" * 300_000,
    "anchors": "a: &b0 [x]\n" + _nested(60, "c{n}: &b{n} [*b{m}, *b{m}]\n", "command: *b59\n"),
    "merges": "command: x\na0: &a0 {k: 1}\n" + _nested(40, "b{n}: &a{n}\n  <<: [*a{m}, *a{m}]\n", ""),
    "python": "Engine(" * 20_000,
    "flow": "command:\n" + "- - " * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_time_and_memory_are_bounded(kind: str) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with suppress(InputError):
        read_launch(HOSTILE[kind])
    assert time.monotonic() - start < 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_command_without_a_slash_and_devices(tmp_path: Path) -> None:
    assert read_launch("sglang serve m --tp 2 " + "--x y " * 60).tp == 2
    for path in ("/dev/zero", str(tmp_path)):
        with pytest.raises(InputError, match="neither a launch command nor a file"):
            read_launch(path)
