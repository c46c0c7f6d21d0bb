"""A whole diagnosis of a 4.3 GB Kimi-K2.5-shaped head against `import transformers.models.llama`, whole processes.

Run as `python benchmarks/diagnose.py [ROUNDS]`. The case has all that a diagnosis can be given: the head (a sparse
file, see `load_plan.py`), the target's config, a launch command and a server's log of 100 decode lines. Both commands
alternate, so that whatever else the machine does meets both, and both find their modules compiled, by the first
round, which does not count. The ratio is of medians of the wall time; aim: at most 1/6, and under 100 MB resident.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from load_plan import (
    DRAFT,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    TENSORS,
    VOCABULARY,
    in_turn,
    judge,
    rounds_asked,
    write_head,
)

LINES = 100
AIM_RATIO, AIM_MB = 1 / 6, 100.0
ENGINE = "sglang==0.5.9"
FINISHED = (0, 1)  # healthy, or something was found: both are a diagnosis

TARGET = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 61,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
    },
}


def write_case(folder: Path) -> list[str]:
    """Write head, target, launch command and log under `folder`; the arguments of `eagle3lab diagnose`."""
    head, target, launch, log = (folder / name for name in ("head", "target", "launch.sh", "server.log"))
    head.mkdir()
    target.mkdir()
    write_head(head)
    write_token_map(head / "model.safetensors")
    (target / "config.json").write_text(json.dumps(TARGET))
    launch.write_text(
        f"python -m sglang.launch_server --model-path {target} --tp 8 --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {head} --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4\n"
    )
    log.write_text("".join(map(decode_line, range(LINES))))
    options = {"--target": target, "--engine": ENGINE, "--launch": launch, "--log": log, "--format": "json"}
    return [str(head), *(str(word) for option in options.items() for word in option)]


def write_token_map(path: Path) -> None:
    """Put a sound token map into the head: each row stands for every fifth token of the target."""
    with path.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        for name, data in (
            ("d2t", struct.pack(f"<{DRAFT}q", *(4 * row for row in range(DRAFT)))),
            ("t2d", (b"\1" + bytes(4)) * DRAFT + bytes(VOCABULARY - 5 * DRAFT)),
        ):
            file.seek(8 + length + header[name]["data_offsets"][0])
            file.write(data)


def decode_line(number: int) -> str:
    """Decode line `number` of a server whose drafts are seldom accepted."""
    length = 1.02 + number % 7 / 100
    return (
        f"[2026-01-05 10:{number // 60:02}:{number % 60:02} TP0] Decode batch, #running-req: {1 + number % 3}, "
        f"#token: {900 + 40 * number}, token usage: 0.01, accept len: {length:.2f}, "
        f"accept rate: {length / 4:.2f}, cuda graph: True, gen throughput (token/s): {50 + number % 5}.31, "
        "#queue-req: 0, \n"
    )


def check(command: list[str]) -> None:
    """That a diagnosis is what is timed: the exit status of a traceback would pass for that of a fault."""
    program = Path(sys.executable).with_name("eagle3lab")
    found = json.loads(subprocess.run([program, *command], stdout=subprocess.PIPE).stdout)
    if found["verdict"] != "broken":
        raise SystemExit(f"the head is found {found['verdict']}")


def main() -> None:
    """Measure and print; exit status 1 where the aim is missed."""
    rounds = rounds_asked()
    with tempfile.TemporaryDirectory(prefix="eagle3lab-bench-") as folder:
        command = ["diagnose", *write_case(Path(folder))]
        check(command)
        pairs = in_turn(command, rounds, FINISHED)
    print(f"head of {len(TENSORS)} tensors, log of {LINES} lines; {rounds} rounds, medians")
    judge("diagnose", pairs, AIM_RATIO, AIM_MB)


if __name__ == "__main__":
    main()
