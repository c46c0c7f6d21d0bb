"""Renaming the tensors of a head against `cp` of the same folder, whole processes.

    python benchmarks/repair_copy.py [--mb 1000] [--rounds 5]

The head is named `layers.0.*` and repaired for SGLang 0.5.9, so that its one file is written anew: start of Python,
plan, copy, simulated load, journal. Like `cp`, it leaves the disk to the operating system; `repair --sync` is held
against `cp` and a sync of its copy. The commands alternate; ratios are of the best of the rounds, because the disk is
shared. Aim: at least half the speed of `cp`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
from math import prod
from pathlib import Path

from load_plan import ITEM_BYTES, Run, beginning, run

HIDDEN, HEADS, HEAD_DIM, VOCABULARY, DRAFT = 2048, 32, 64, 32000, 16000
AIM = 0.5
BLOCK = 2**20


def tensors(intermediate: int) -> dict[str, tuple[str, list[int]]]:
    """Names, dtypes and shapes of a head; the feed-forward width sets its size."""
    layer = {
        "hidden_norm.weight": [HIDDEN],
        "input_layernorm.weight": [HIDDEN],
        "post_attention_layernorm.weight": [HIDDEN],
        "mlp.down_proj.weight": [HIDDEN, intermediate],
        "mlp.gate_proj.weight": [intermediate, HIDDEN],
        "mlp.up_proj.weight": [intermediate, HIDDEN],
        "self_attn.k_proj.weight": [HEADS * HEAD_DIM, 2 * HIDDEN],
        "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
        "self_attn.q_proj.weight": [HEADS * HEAD_DIM, 2 * HIDDEN],
        "self_attn.v_proj.weight": [HEADS * HEAD_DIM, 2 * HIDDEN],
    }
    outside = {"fc.weight": [HIDDEN, 3 * HIDDEN], "lm_head.weight": [DRAFT, HIDDEN], "norm.weight": [HIDDEN]}
    names = {f"layers.0.{name}": shape for name, shape in layer.items()} | outside
    maps = {"d2t": ("I64", [DRAFT]), "t2d": ("BOOL", [VOCABULARY])}
    return maps | {name: ("BF16", shape) for name, shape in names.items()}


def write_head(folder: Path, megabytes: int) -> int:
    """Write a head of about this size into `folder`, values random but for d2t; its size in bytes."""
    bare = sum(prod(shape) * ITEM_BYTES[dtype] for dtype, shape in tensors(0).values())
    intermediate = max(64, (megabytes * 10**6 - bare) // (6 * HIDDEN) // 64 * 64)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": intermediate,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": DRAFT,
    }
    (folder / "config.json").write_text(json.dumps(config))
    begin, size = beginning(tensors(intermediate))
    with (folder / "model.safetensors").open("wb") as file:
        # Row j stands for token j + j // 3: offsets that ascend.
        rows = [j + j // 3 for j in range(DRAFT)]
        marks = bytearray(VOCABULARY)
        for row in rows:
            marks[row] = 1
        offsets = struct.pack(f"<{DRAFT}q", *(row - j for j, row in enumerate(rows)))
        file.write(begin + offsets + marks)
        left, block = size - len(offsets) - len(marks), os.urandom(BLOCK)
        while left:
            left -= file.write(block[:left])
        os.fsync(file.fileno())
    return len(begin) + size


def main() -> int:
    """Measure and print; exit status 1 where the aim is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=1000, help="size of the head (default 1000)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagle3lab-bench-") as folder:
        head, copy = Path(folder, "head"), Path(folder, "copy")
        head.mkdir()
        size = write_head(head, options.mb)
        script = str(Path(sys.executable).with_name("eagle3lab"))
        copied = f"cp -r {head} {copy}"
        repair = [script, "repair", str(head), "--for", "sglang==0.5.9", "--out", str(copy)]
        commands = {
            "repair": repair,
            "repair --sync": [*repair, "--sync"],
            "cp -r": copied.split(),
            "cp -r; sync": ["sh", "-c", f"{copied} && sync {copy}/*"],
        }
        seen: dict[str, list[Run]] = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, command in commands.items():
                seen[name].append(run(command))
                shutil.rmtree(copy)
    print(f"a head of {size / 1e6:.0f} MB, best of {options.rounds}")
    walls = {name: min(one.wall_s for one in runs) for name, runs in seen.items()}
    for name, wall in walls.items():
        peak = max(one.peak_mb for one in seen[name])
        print(f"{name:18} {wall:6.2f} s  {size / 1e6 / wall:7.0f} MB/s  peak {peak:5.0f} MB")
    ratio = walls["cp -r"] / walls["repair"]
    synced = walls["cp -r; sync"] / walls["repair --sync"]
    print(f"speed against cp {ratio:.2f} (aim {AIM}); both with a sync {synced:.2f}")
    return 0 if ratio >= AIM else 1


if __name__ == "__main__":
    raise SystemExit(main())
