"""The statistics pass beside torch's, on a file of one gigabyte: time as a ratio in one run, and peak memory.

    python benchmarks/statistics_pass.py [--gigabytes 1.0] [--rounds 3] [--json]

Both passes compute mean, standard deviation, mean absolute value, minimum and maximum of every tensor of a bf16
head; ours adds zeros, NaNs, infinities, kurtosis and row norms. torch's is the obvious loop: load a tensor, `.float()`,
reduce. They run in turn, each in a process of its own that measures itself after its imports; the file is warm in the
page cache for both. Peak memory is the kernel's VmHWM of that process.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HIDDEN = 7168
RATIO_WANTED = 2.0
PEAK_WANTED = 600  # MiB


def write_head(folder: Path, gigabytes: float) -> None:
    """A bf16 head with a Kimi-K2.5-like mix of shapes, filled with gaussian noise."""
    rows = int(gigabytes * 1e9 / 2 / (HIDDEN * (3 + 2 + 0.001)))  # fc is 3 wide, the rest together 2
    shapes = {
        "fc.weight": (rows, 3 * HIDDEN),
        "lm_head.weight": (rows, HIDDEN),
        "midlayer.self_attn.q_proj.weight": (rows // 2, 2 * HIDDEN),
        "norm.weight": (HIDDEN,),
    }
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, at // 2, 1 << 24):
            count = min(1 << 24, at // 2 - begin)
            values = rng.standard_normal(count, dtype=np.float32) * np.float32(0.02)
            stream.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def pass_ours(folder: Path) -> float:
    """Seconds of eagle3lab's pass."""
    from eagle3lab.checkpoint import open_checkpoint
    from eagle3lab.checkpoint.statistics import tensor_statistics

    started = time.perf_counter()
    tensor_statistics(open_checkpoint(folder))
    return time.perf_counter() - started


def pass_torch(folder: Path) -> float:
    """Seconds of the obvious loop in torch."""
    import torch
    from safetensors import safe_open

    started = time.perf_counter()
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = file.keys()
        for name in names:
            values = file.get_tensor(name).float()
            torch.stack(
                (values.mean(), values.std(), values.abs().mean(), values.min(), values.max())
            ).tolist()
    return time.perf_counter() - started


PASSES = {"eagle3lab": pass_ours, "torch": pass_torch}


def peak_memory() -> float:
    """Peak resident memory of this process in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(which: str, folder: Path) -> tuple[float, float]:
    """Seconds and MiB of one pass in a process of its own."""
    command = [sys.executable, __file__, "--pass", which, "--folder", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, mebibytes = map(float, run.stdout.split())
    return seconds, mebibytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pass", dest="which", choices=PASSES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.which:
        print(PASSES[arguments.which](arguments.folder), peak_memory())
        return 0
    runs: dict[str, list[tuple[float, float]]] = {which: [] for which in PASSES}
    with tempfile.TemporaryDirectory(prefix="eagle3lab-benchmark-") as name:
        write_head(Path(name), arguments.gigabytes)
        for _ in range(arguments.rounds):
            for which in PASSES:
                runs[which].append(measure(which, Path(name)))
    seconds = {which: statistics.median(run[0] for run in values) for which, values in runs.items()}
    peak = {which: max(run[1] for run in values) for which, values in runs.items()}
    ratio = seconds["torch"] / seconds["eagle3lab"]
    if arguments.json:
        print(
            json.dumps(
                {"gigabytes": arguments.gigabytes, "seconds": seconds, "peak_mib": peak, "ratio": ratio}
            )
        )
    else:
        print(f"{arguments.gigabytes:g} GB of bf16, median of {arguments.rounds}")
        print(f"{'':10} {'seconds':>8} {'peak MiB':>9}")
        for which in PASSES:
            print(f"{which:10} {seconds[which]:8.2f} {peak[which]:9.0f}")
        print(
            f"eagle3lab is {ratio:.1f} times as fast (wanted: {RATIO_WANTED:g}), wanted peak: {PEAK_WANTED} MiB"
        )
    return 0 if ratio >= RATIO_WANTED and peak["eagle3lab"] < PEAK_WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
