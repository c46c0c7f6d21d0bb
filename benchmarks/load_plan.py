"""The load plan of a 4.3 GB Kimi-K2.5-shaped head against `import transformers.models.llama`, whole processes.

Run as `python benchmarks/load_plan.py [ROUNDS]`. The head is a sparse file: its header says 4.3 GB, the disk
holds a few kilobytes. Both commands alternate, so that whatever else the machine does meets both, and both find their
modules compiled, by the first round, which does not count. The ratio is of medians of the wall time; aim: at most
1/8, and under 80 MB resident.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn

HIDDEN, INTERMEDIATE, HEADS, HEAD_DIM, VOCABULARY, DRAFT = 7168, 9216, 64, 128, 163840, 32000
ATTENTION = HEADS * HEAD_DIM
AIM_RATIO, AIM_MB = 1 / 8, 80.0
ITEM_BYTES = {"BF16": 2, "I64": 8, "BOOL": 1}

TENSORS: dict[str, tuple[str, list[int]]] = {
    "d2t": ("I64", [DRAFT]),
    "t2d": ("BOOL", [VOCABULARY]),
    "embed_tokens.weight": ("BF16", [VOCABULARY, HIDDEN]),
    "fc.weight": ("BF16", [HIDDEN, 3 * HIDDEN]),
    "lm_head.weight": ("BF16", [DRAFT, HIDDEN]),
    "norm.weight": ("BF16", [HIDDEN]),
    "layers.0.hidden_norm.weight": ("BF16", [HIDDEN]),
    "layers.0.input_layernorm.weight": ("BF16", [HIDDEN]),
    "layers.0.post_attention_layernorm.weight": ("BF16", [HIDDEN]),
    "layers.0.mlp.down_proj.weight": ("BF16", [HIDDEN, INTERMEDIATE]),
    "layers.0.mlp.gate_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    "layers.0.mlp.up_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    "layers.0.self_attn.k_proj.weight": ("BF16", [ATTENTION, 2 * HIDDEN]),
    "layers.0.self_attn.o_proj.weight": ("BF16", [HIDDEN, ATTENTION]),
    "layers.0.self_attn.q_proj.weight": ("BF16", [ATTENTION, 2 * HIDDEN]),
    "layers.0.self_attn.v_proj.weight": ("BF16", [ATTENTION, 2 * HIDDEN]),
}
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT,
}


@dataclass(frozen=True)
class Run:
    """One process: wall time in seconds, peak resident memory in MB."""

    wall_s: float
    peak_mb: float


def beginning(tensors: dict[str, tuple[str, list[int]]]) -> tuple[bytes, int]:
    """What stands before the data of a safetensors file with these tensors in this order; the size of the data."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def write_head(folder: Path) -> int:
    """Write the head into `folder`; its size in bytes."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    begin, size = beginning(TENSORS)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(begin)
        file.truncate(len(begin) + size)
    return len(begin) + size


def run(
    command: list[str], environment: dict[str, str] | None = None, finished: tuple[int, ...] = (0,)
) -> Run:
    """Run a command to its end, its output discarded; an exit status other than those of `finished` ends this."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in finished:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return Run(wall, usage.ru_maxrss / 1024)


def rounds_asked() -> int:
    """How often each command is run."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else 9


def in_turn(arguments: list[str], rounds: int, finished: tuple[int, ...] = (0,)) -> list[tuple[Run, Run]]:
    """`eagle3lab` with these arguments and the import it is held against, in turn; the first round does not count.

    Modules are compiled once, into a folder of their own, as pip compiles a package it installs.
    """
    ours = [str(Path(sys.executable).with_name("eagle3lab")), *arguments]
    theirs = [sys.executable, "-c", "import transformers.models.llama"]
    with tempfile.TemporaryDirectory(prefix="eagle3lab-bytecode-") as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        pairs = [(run(ours, environment, finished), run(theirs, environment)) for _ in range(rounds + 1)]
    return pairs[1:]


def main() -> None:
    """Measure and print; exit status 1 where the aim is missed."""
    rounds = rounds_asked()
    with tempfile.TemporaryDirectory(prefix="eagle3lab-bench-") as folder:
        size = write_head(Path(folder))
        options = ["--engine", "sglang==0.5.9", "--tp", "8", "--format", "json"]
        pairs = in_turn(["load-plan", folder, *options], rounds)
    print(f"head: {size / 1e9:.2f} GB, {len(TENSORS)} tensors; {rounds} rounds, medians")
    judge("load-plan", pairs, AIM_RATIO, AIM_MB)


def judge(command: str, pairs: list[tuple[Run, Run]], aim_ratio: float, aim_mb: float) -> NoReturn:
    """Print the medians of (ours, theirs) and their ratio, and exit: with 1 where an aim is missed."""
    ours_s = statistics.median(ours.wall_s for ours, _ in pairs)
    import_s = statistics.median(theirs.wall_s for _, theirs in pairs)
    peak = max(ours.peak_mb for ours, _ in pairs)
    ratio = ours_s / import_s
    print(f"eagle3lab {command:20} {ours_s * 1e3:7.0f} ms   {peak:5.0f} MB resident at most")
    print(f"import transformers.models.llama {import_s * 1e3:5.0f} ms")
    print(f"ratio 1/{1 / ratio:.1f} (aim 1/{1 / aim_ratio:.0f})")
    raise SystemExit(0 if ratio <= aim_ratio and peak < aim_mb else 1)


if __name__ == "__main__":
    main()
