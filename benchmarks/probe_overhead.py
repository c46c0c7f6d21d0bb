"""What the probe costs a server: throughput with it over throughput without, on the real SGLang 0.5.23 on a CPU.

    python benchmarks/probe_overhead.py [--rounds 25] [--full-steps 100] [--control]

Two servers of the specimen run side by side, one of them watched, both asleep while they are not asked. They are asked
in turn, the order swapped from round to round; each round is one pair, and the median of the pairs' ratios counts. With
--control neither is watched: what the method itself makes of two equal servers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.runs.events import Counters, Quiet, read_events
from eagle3lab.serving.engine import find_engine
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.profiles import cpu
from eagle3lab.serving.server import Server
from lab.specimen.paths import specimen_dir
from lab.specimen.variant import write_flat

LIMIT = 0.97
RELEASE = "0.5.23"
PROMPTS, TOKENS = 8, 64


def prompts() -> list[str]:
    lines = (specimen_dir() / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:PROMPTS]]


def throughput(server: Server, asked: list[str]) -> float:
    """Tokens per second."""
    began = time.perf_counter()
    answers = server.generate(asked, TOKENS, concurrency=PROMPTS)
    took = time.perf_counter() - began
    return sum(len(answer.token_ids) for answer in answers) / took


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--full-steps", type=int, default=100)
    parser.add_argument("--control", action="store_true", help="watch neither server")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drafter = write_flat(open_checkpoint(specimen_dir() / "drafter"), folder / "drafter")
        plan = cpu(str(specimen_dir() / "target"), str(drafter), release=RELEASE)
        plan = replace(plan, extra=[*plan.extra, "--sleep-on-idle"])
        events = folder / "events"
        overlay = probe_overlay(events=events, full_steps=given.full_steps, guard="warn")
        if given.control:
            overlay = Overlay()
        engine = find_engine(f"sglang=={RELEASE}")
        plain = stack.enter_context(Server.start(plan, folder / "plain", engine))
        probed = stack.enter_context(Server.start(plan, folder / "probed", engine, overlay=overlay))
        asked = prompts()
        for server in (plain, probed):
            throughput(server, asked)
        pairs = []
        for number in range(given.rounds):
            order = (plain, probed) if number % 2 else (probed, plain)
            speeds = {server: throughput(server, asked) for server in order}
            pairs.append((speeds[plain], speeds[probed]))
        if not given.control:
            [rank] = read_events(events)
            counters = rank.last(Counters)
            assert counters is not None and counters.verify_steps > 0 and not rank.of(Quiet)
    print(f"{given.rounds} pairs, {PROMPTS} prompts of {TOKENS} tokens each time")
    low, ratio, high = statistics.quantiles((watched / alone for alone, watched in pairs), n=4)
    without, with_it = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
    print(
        f"tokens per second: {without:.0f} without the probe, {with_it:.0f} with it; "
        f"median ratio {ratio:.3f} (quartiles {low:.3f} to {high:.3f}), aim {LIMIT}"
    )
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
