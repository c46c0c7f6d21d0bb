"""Remakes the recordings of real servers that the tests hold the engine's side against.

`python -m tests.parity.record 0.5.9 0.5.23`, where both releases are installed; needed only when the specimen changes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from eagle3lab.runs.folder import EVENTS, PLAN, RunFolder
from eagle3lab.serving.engine import find_engine
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.profiles import cpu
from eagle3lab.serving.server import Server
from lab.faults import write_healthy
from lab.specimen.trial import load_trial

RECORDED = Path(__file__).parent / "recorded"
#: SGLang's warm-up, a prompt, two draft steps, what was accepted, two draft steps.
PASSES = 7
KEPT = ("hidden_states", "input_ids", "positions", "extend_seq_lens", "seq_lens", "logits", "output_states")


def record(release: str, run: Path, drafter: Path) -> None:
    """Serve the specimen's healthy head and ask it one thing."""
    served = write_healthy(drafter)
    plan = cpu(str(served.target), str(served.drafter), release=release, extra=["--disable-radix-cache"])
    overlay = probe_overlay(events=run / EVENTS, full_steps=PASSES, tensors=PASSES)
    with Server.start(plan, run, find_engine(f"sglang=={release}"), overlay=overlay) as server:
        server.generate([list(load_trial(prompts=1).prompts[0])], 14, concurrency=1)


def keep(run: Path, out: Path) -> None:
    """The first passes, without what no test reads and no path of this machine."""
    (out / EVENTS).mkdir(parents=True, exist_ok=True)
    plan = RunFolder.open(run)
    about = {name: plan.plan()[name] for name in ("algorithm", "backends")}
    (out / PLAN).write_text(json.dumps({"engine": {"release": plan.release}, "plan": about}, indent=2) + "\n")
    for path in (run / EVENTS).glob("boundary-*.safetensors"):
        step = path.stem.rpartition("-")[2]
        if int(step) < PASSES:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in KEPT if name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()
            save_file(tensors, out / EVENTS / f"boundary-0-0-{step}.safetensors", metadata=metadata)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            record(name, Path(scratch) / "run", Path(scratch) / "head")
            keep(Path(scratch) / "run", RECORDED / name)
