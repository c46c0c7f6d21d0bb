"""Launch commands, the odd ones among them, and small configs for the models that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle3lab.engines.arguments import AMPERE, BLACKWELL, CPU, HOPPER
from eagle3lab.serving.profiles import gpu8, multi_node
from tests.arguments.real import Command
from tests.support.small_models import DEEPSEEK_V3, EAGLE3_HEAD, LLAMA, QWEN3

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen": QWEN3,
    "deepseek": DEEPSEEK_V3,
    "head": EAGLE3_HEAD,
}
_EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path head"
_CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
_TREE = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"

# Options after `--model-path TARGET`: each with the target.
_ON_HOPPER = (
    # The plain cases, and what is chosen where nothing is said.
    ("qwen", ""),
    ("qwen", f"{_EAGLE3} {_CHAIN}"),
    ("qwen", f"{_EAGLE3} {_TREE}"),
    ("qwen", _EAGLE3),
    ("llama", _EAGLE3),
    ("deepseek", _EAGLE3),
    ("deepseek", f"{_EAGLE3} {_CHAIN} --tp 8"),
    # Aliases, spellings, beginnings of options.
    ("qwen", f"--speculative-algorithm NEXTN --speculative-draft-model-path head {_CHAIN}"),
    ("qwen", f"--speculative-algorithm EAGLE --speculative-draft-model-path head {_CHAIN}"),
    ("qwen", f"--speculative-algo EAGLE3 --speculative-draft-model head {_CHAIN}"),
    ("deepseek", f"--speculative-algorithm NEXTN {_CHAIN}"),
    ("deepseek", "--speculative-algorithm EAGLE"),
    ("qwen", f"--speculative-algorithm eagle3 --speculative-draft-model-path head {_CHAIN}"),
    # Draft tokens that do not fit the steps.
    (
        "qwen",
        f"{_EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8",
    ),
    (
        "qwen",
        f"{_EAGLE3} --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
    ),
    ("qwen", f"{_EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1"),
    ("qwen", f"{_EAGLE3} --speculative-num-steps 3"),
    ("qwen", f"{_EAGLE3} --speculative-eagle-topk 4"),
    ("qwen", f"{_EAGLE3} --speculative-num-draft-tokens 8"),
    ("qwen", f"{_EAGLE3} --speculative-num-steps three"),
    # Trees with pages, by backend.
    ("qwen", f"{_EAGLE3} {_TREE} --page-size 64"),
    ("qwen", f"{_EAGLE3} {_TREE} --page-size 64 --attention-backend flashinfer"),
    ("qwen", f"{_EAGLE3} {_TREE} --page-size 64 --attention-backend fa3"),
    ("qwen", f"{_EAGLE3} {_TREE} --page-size 64 --attention-backend triton"),
    ("deepseek", f"{_EAGLE3} {_TREE} --page-size 64 --attention-backend flashmla"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --page-size 64 --attention-backend triton"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --attention-backend flex_attention"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --prefill-attention-backend fa3 --decode-attention-backend flashinfer"),
    # What the drafter inherits.
    ("qwen", f"{_EAGLE3} {_CHAIN} --quantization fp8"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --quantization fp8 --speculative-draft-model-quantization unquant"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --speculative-draft-attention-backend triton"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --speculative-draft-model-revision v2"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --dtype float16"),
    # Schedules.
    ("qwen", f"{_EAGLE3} {_CHAIN} --max-running-requests 16"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --enable-mixed-chunk"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --disable-overlap-schedule"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --disable-cuda-graph"),
    # Other algorithms, and what goes with none.
    ("qwen", f"--speculative-algorithm STANDALONE --speculative-draft-model-path head {_CHAIN}"),
    ("qwen", "--speculative-algorithm STANDALONE --speculative-draft-model-path head"),
    ("qwen", "--speculative-algorithm NGRAM"),
    ("qwen", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 6"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --speculative-token-map map.pt"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --enable-lora --max-lora-rank 8 --lora-target-modules q_proj"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --context-length 2048"),
    ("qwen", f"--speculative-algorithm EAGLE3 {_CHAIN}"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --dp-size 2"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --speculative-nonsense 3"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --speculative-draft-window-size 512"),
    # What other features refuse.
    ("qwen", f"{_EAGLE3} {_CHAIN} --tp 2 --pp-size 2"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --tp 2 --pp-size 2 --disable-overlap-schedule"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --enable-lora --lora-paths a=./a --max-loras-per-batch 2"),
    (
        "qwen",
        f"{_EAGLE3} {_CHAIN} --disaggregation-mode decode --disaggregation-decode-enable-radix-cache "
        "--disaggregation-transfer-backend mooncake",
    ),
    ("deepseek", f"{_EAGLE3} {_CHAIN} --attention-backend trtllm_mla"),
    ("qwen", f"{_EAGLE3} {_CHAIN} --attention-backend cutlass_mla"),
)
_ELSEWHERE = (
    (BLACKWELL, "qwen", f"{_EAGLE3} {_CHAIN}"),
    (BLACKWELL, "qwen", f"{_EAGLE3} {_TREE}"),
    (BLACKWELL, "qwen", _EAGLE3),
    (BLACKWELL, "qwen", f"{_EAGLE3} {_TREE} --attention-backend trtllm_mha"),
    (BLACKWELL, "deepseek", f"{_EAGLE3} {_CHAIN}"),
    (AMPERE, "qwen", f"{_EAGLE3} {_CHAIN}"),
    (AMPERE, "qwen", f"{_EAGLE3} {_TREE} --page-size 16"),
    (AMPERE, "deepseek", f"{_EAGLE3} {_CHAIN}"),
    (CPU, "qwen", f"{_EAGLE3} {_CHAIN} --device cpu"),
    (CPU, "qwen", f"{_EAGLE3} {_CHAIN} --device cpu --attention-backend triton"),
)


def write_models(folder: Path) -> None:
    """The configs as model folders."""
    for name, config in CONFIGS.items():
        folder.joinpath(name).mkdir()
        folder.joinpath(name, "config.json").write_text(json.dumps(config), "utf-8")


def commands(folder: Path) -> list[Command]:
    """Every command, with the models that `write_models` put into `folder`."""

    def words(target: str, options: str) -> tuple[str, ...]:
        named = ["--model-path", target, *options.split()]
        return tuple(str(folder / word) if word in CONFIGS else word for word in named)

    found = [Command(words(target, options)) for target, options in _ON_HOPPER]
    found += [Command(words(target, options), machine) for machine, target, options in _ELSEWHERE]
    spec_v2 = {"SGLANG_ENABLE_SPEC_V2": "1"}
    found += [Command(words("qwen", f"{_EAGLE3} {options}"), HOPPER, spec_v2) for options in (_CHAIN, _TREE)]
    plans = [gpu8(str(folder / "qwen"), str(folder / "head"))]
    plans += multi_node(
        str(folder / "deepseek"), str(folder / "head"), nodes=2, dist_init_addr="10.0.0.1:5000"
    )
    return found + [Command(tuple(plan.arguments())) for plan in plans]
