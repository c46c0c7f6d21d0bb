"""Run folders made up from requests, in which every source says the same until a test changes one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.runs.events import Attached, Counters, EventWriter, rank_file
from eagle3lab.runs.folder import (
    EVENTS,
    LOG,
    METRICS_AFTER,
    METRICS_BEFORE,
    PLAN,
    REQUESTS,
    SERVER_INFO,
    Request,
    write_requests,
)
from lab.simulated_acceptance import simulate_requests
from tests.acceptance.loglines import decode_line, row_of
from tests.acceptance.pages import sglang_page

D = 4


@dataclass(frozen=True, slots=True)
class Totals:
    """What requests add up to."""

    steps: int
    accepted: int
    kept: int
    positions: tuple[int, ...]


def totals_of(requests: Sequence[Request]) -> Totals:
    histograms = [r.meta_info["spec_correct_drafts_histogram"] for r in requests]
    positions = tuple(sum(sum(h[j:]) for h in histograms) for j in range(1, D))
    steps = sum(map(sum, histograms))
    kept = sum(r.completion_tokens for r in requests)
    return Totals(steps, sum(positions), kept, positions)


def made_up(count: int = 8, seed: int = 3, **more: float) -> tuple[Request, ...]:
    import numpy as np

    return simulate_requests(np.random.default_rng(seed), requests=count, **more)  # type: ignore[arg-type]


def write_run(folder: Path, requests: Sequence[Request], *, release: str = "0.5.23") -> Path:
    """A run of one request at a time with a decode line for every verify step."""
    folder.mkdir(parents=True)
    total = totals_of(requests)
    plan = {"draft_tokens": D, "steps": D - 1, "topk": 1, "algorithm": "EAGLE3"}
    (folder / PLAN).write_text(json.dumps({"engine": {"release": release}, "plan": plan}))
    write_requests(folder / REQUESTS, requests)
    lengths = [
        number + 1
        for r in requests
        for number, count in enumerate(r.meta_info["spec_correct_drafts_histogram"])
        for _ in range(count)
    ]
    lines = [
        "[2026-03-01 09:59:00] server_args=ServerArgs(speculative_algorithm='EAGLE3', speculative_num_steps=3, "
        "speculative_eagle_topk=1, speculative_num_draft_tokens=4, decode_log_interval=1, tp_size=1)",
        "[2026-03-01 09:59:30] The server is fired up and ready to roll!",
        *(decode_line(row_of(release), length, D, running=1) for length in lengths),
    ]
    (folder / LOG).write_text("\n".join(lines) + "\n")
    last = {"length": float(lengths[-1]), "draft_tokens": D}
    (folder / METRICS_BEFORE).write_text(sglang_page(length=0.0, draft_tokens=D))
    counts = (total.steps, total.kept, len(requests))
    (folder / METRICS_AFTER).write_text(sglang_page(counts=counts, **last))  # type: ignore[arg-type]
    info = {"version": release, "decode_log_interval": 1, "internal_states": [
        {"avg_spec_accept_length": 1 + total.accepted / total.steps}
    ]}  # fmt: skip
    (folder / SERVER_INFO).write_text(json.dumps(info))
    write_events(folder, total)
    return folder


def write_events(folder: Path, total: Totals, *, tp: int = 2) -> None:
    """Both ranks of a pair report the same counts, halfway and at the end."""
    for rank in range(tp):
        path = rank_file(folder / EVENTS, rank, 100 + rank)
        path.unlink(missing_ok=True)
        writer = EventWriter(path)
        writer.write(
            Attached(
                time=1.0, schema_version=1, release="0.5.23", pid=100 + rank, tp_rank=rank, tp_size=tp,
                dp_rank=None, ways=[], missing=[],
            )
        )  # fmt: skip
        halves = (total.steps // 2, total.steps)
        for time, steps in enumerate(halves, 2):
            share = steps / total.steps
            writer.write(
                Counters(
                    time=float(time), verify_steps=steps, accepted=round(total.accepted * share),
                    per_position=[round(n * share) for n in total.positions], draft_tokens=D, boundaries={}, widths={},
                )
            )  # fmt: skip
        writer.close()
