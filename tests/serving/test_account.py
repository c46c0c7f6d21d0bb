"""Acceptance from the server's own per-request counts, and from the probe where there are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.acceptance.run import count_answers
from eagle3lab.errors import InputError
from eagle3lab.runs.events import (
    Attached,
    Boundary,
    Built,
    Captured,
    Counters,
    EventWriter,
    Loaded,
    Quiet,
    rank_file,
)
from eagle3lab.runs.folder import Request, RunFolder, write_requests
from eagle3lab.serving.account import account
from eagle3lab.serving.client import ServerError
from eagle3lab.serving.report import as_json, drawn, per_position, printed
from eagle3lab.serving.workload import Workload


def answer(verify_steps: int, rate: float, **more: object) -> dict[str, Any]:
    return {"spec_verify_ct": verify_steps, "spec_accept_rate": rate, **more}


def test_requests_are_weighted_by_their_verifications() -> None:
    # 10 steps x 3 drafts, all accepted; 30 steps x 3 drafts, none.
    counts = count_answers([answer(10, 1.0), answer(30, 0.0)], 4)
    assert (counts.verify_steps, counts.accepted, counts.positions) == (40, 30, None)


@pytest.mark.parametrize(("rate", "accepted"), [(1 / 3, 7), (0.3333333333333333, 7), (2 / 21, 2)])
def test_counts_come_back_whole_from_the_rate(rate: float, accepted: int) -> None:
    assert count_answers([answer(7, rate)], 4).accepted == accepted


@pytest.mark.parametrize("name", ["spec_accept_histogram", "spec_correct_drafts_histogram"])
def test_positions_come_from_the_histogram_of_accepted_drafts(name: str) -> None:
    first = answer(4, 5 / 12, **{name: [1, 2, 0, 1]})
    assert count_answers([first, answer(2, 0.0, **{name: [2]})], 4).positions == (3, 1, 1)
    assert count_answers([first, answer(2, 0.0)], 4).positions is None, (
        "one answer says nothing about positions"
    )
    assert count_answers([answer(2, 0.0, **{name: [2]})], 4).positions == ()
    assert count_answers([answer(4, 5 / 12, **{name: ["1"]})], 4).positions is None


@pytest.mark.parametrize("meta", [{}, {"spec_verify_ct": None, "spec_accept_rate": 0.0}])
def test_a_server_that_does_not_speculate_is_said(meta: dict[str, object]) -> None:
    assert count_answers([meta], 4) is None
    assert count_answers([meta, answer(1, 0.0)], 4).verify_steps == 1, (
        "an answer of one token has no verification"
    )


def run(tmp_path: Path, metas: list[dict[str, Any]], *, draft_tokens: int | None = 4) -> RunFolder:
    plan = {"model": "m", "algorithm": "EAGLE3", "steps": 3, "topk": 1, "tp": 2, "draft_tokens": draft_tokens}
    described = {"engine": {"kind": "sglang", "release": "0.5.9"}, "plan": plan}
    (tmp_path / "plan.json").write_text(json.dumps(described))
    kept = [Request(index, 3, 2, [1, 2], meta, 10.0, 12.0) for index, meta in enumerate(metas)]
    warm_up = Request(0, 3, 2, [9, 9], answer(100, 1.0), 5.0, 6.0, "warm-up")
    write_requests(tmp_path / "requests.jsonl", [warm_up, *kept])
    return RunFolder.open(tmp_path)


def add_events(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = EventWriter(rank_file(tmp_path / "events", rank, 100 + rank))
        writer.write(
            Attached(
                time=1.0, schema_version=1, release="0.5.9", pid=100 + rank, tp_rank=rank, tp_size=2,
                dp_rank=None, ways=["a"], missing=["set_embed"],
            )
        )  # fmt: skip
        for role, name in (("target", "LlamaForCausalLM"), ("drafter", "LlamaForCausalLMEagle3")):
            writer.write(
                Built(
                    time=1.0, role=role, cls=name, module="m", architectures=[], hidden_size=64, fc_in=192,
                    fc_out=64, draft_vocab_size=48, parameters=9,
                )
            )  # fmt: skip
        writer.write(Captured(time=2.0, chain=["Outer", "Inner"], given=[1], layers=[2, 4, 6]))
        writer.write(Loaded(time=2.0, offered=5, placed={}, dropped=["layers.0.a"], never_written=["mid"]))
        writer.write(
            Boundary(
                time=2.5, step=-1, phase="draft_extend", hidden_shape=[2, 192], embeds_shape=[2, 64], fc_ran=None,
                hidden_norm=None, embeds_norm=None, rehearsal=True,
            )
        )  # fmt: skip
        for step, (phase, width, ran) in enumerate([("extend", 192, True), ("decode", 64, False)]):
            writer.write(
                Boundary(
                    time=3.0, step=step, phase=phase, hidden_shape=[7, width], embeds_shape=[7, 64],
                    fc_ran=ran, hidden_norm=1.0, embeds_norm=None,
                )
            )  # fmt: skip
        for steps in (1, 20):
            writer.write(
                Counters(
                    time=4.0, verify_steps=steps, accepted=30, per_position=[20, 10, 0], draft_tokens=4,
                    boundaries={}, widths={"extend:192": 3, "decode:64": 40, "draft_extend:192": 20},
                )
            )  # fmt: skip
        writer.write(Quiet(time=5.0, where="boundary", problem="ValueError: x"))
        writer.close()


def test_a_run_is_summed_up_without_its_warm_up(tmp_path: Path) -> None:
    histogram = {"spec_accept_histogram": [1, 2, 0, 1]}
    folder = run(tmp_path, [answer(4, 5 / 12, **histogram), {}])
    (tmp_path / "server.log").write_text(
        "Decode, accept len: 1.00, accept rate: 0.25\nDecode, accept len: 2.00\nx"
    )
    (tmp_path / "server_info.json").write_text('{"speculative_num_draft_tokens": 4}')
    found = account(folder)
    assert (found.verify_steps, found.accepted, found.counts.positions) == (4, 5, (3, 1, 1))
    assert (found.accept_length, found.accept_rate) == (2.25, 5 / 12)
    assert (found.counted_from, found.outputs, found.tokens, found.seconds) == (
        "requests",
        ((1, 2), (1, 2)),
        4,
        2.0,
    )
    assert found.last_decode_line == "Decode, accept len: 2.00"
    assert found.seen is None
    assert printed(found) == ("len/D", 2.25 / 4)
    # A tree of a release that divides by its depth: steps + 1, not D.
    assert printed(replace(found, release="0.5.4", draft_tokens=9)) == ("len/(steps+1)", 2.25 / 4)
    assert printed(replace(found, release=None)) is None
    assert printed(replace(found, release="a build of today")) is None
    assert printed(replace(found, release="0.5.2")) is None, "it prints no rate"
    shares = per_position(found)
    assert shares is not None
    assert (shares.unconditional, shares.conditional) == ((0.75, 0.25, 0.25), (0.75, 1 / 3, 1.0))


def test_what_the_server_made_of_the_draft_tokens_counts(tmp_path: Path) -> None:
    folder = run(tmp_path, [answer(4, 5 / 12)], draft_tokens=9)
    info = {"speculative_num_draft_tokens": 4, "speculative_num_steps": 3}
    (tmp_path / "server_info.json").write_text(json.dumps(info))
    assert account(folder).accepted == 5
    histogram = {"spec_accept_histogram": [3, 1]}
    assert account(run(tmp_path, [answer(4, 1 / 12, **histogram)])).counts.positions == (1, 0, 0)
    (tmp_path / "server_info.json").unlink()
    with pytest.raises(InputError, match="how many draft tokens"):
        account(run(tmp_path, [answer(4, 0.0)], draft_tokens=None))


def test_the_probe_counts_where_answers_do_not(tmp_path: Path) -> None:
    """As with the chat endpoint of a release that says nothing about speculation there."""
    folder = run(tmp_path, [{}])
    with pytest.raises(ServerError, match="decodes without it"):
        account(folder)
    add_events(tmp_path)
    found = account(folder)
    assert found.counted_from == "events"
    assert (found.verify_steps, found.accepted, found.counts.positions) == (20, 30, (20, 10, 0))


def test_what_the_probe_saw_is_told_once(tmp_path: Path) -> None:
    folder = run(tmp_path, [answer(4, 5 / 12, spec_accept_histogram=[1, 2, 0, 1])])
    add_events(tmp_path)
    found = account(folder)
    assert found.seen is not None
    assert (found.seen.ranks, found.seen.drafter, found.seen.offered) == (2, "LlamaForCausalLMEagle3", 5)
    assert (found.seen.dropped, found.seen.never_written) == (("layers.0.a",), ("mid",))
    assert (found.seen.captured, found.seen.chain) == ((2, 4, 6), ("Outer", "Inner"))
    assert [(each.phase, each.width, each.passes, each.fc_ran) for each in found.seen.boundary] == [
        ("decode", 64, 40, False), ("draft_extend", 192, 20, None), ("extend", 192, 3, True),
    ]  # fmt: skip
    assert [each.fused for each in found.seen.boundary] == [False, True, True], (
        "what was not seen, the width tells"
    )
    assert [each.rehearsal for each in found.seen.boundary] == [False, True, False]
    assert found.seen.notes == (
        "the probe found no set_embed", "the probe failed at boundary: ValueError: x",
    )  # fmt: skip


def test_the_report_says_it_all(tmp_path: Path) -> None:
    from rich.console import Console

    folder = run(tmp_path, [answer(4, 5 / 12, spec_accept_histogram=[1, 2, 0, 1])])
    add_events(tmp_path)
    workload = Workload(["a"], source="a file")
    found = account(folder)
    report = json.loads(json.dumps(as_json(found, workload), allow_nan=False))
    assert report["schema_version"] == 1
    assert report["acceptance"]["printed_rate"] == {"formula": "len/D", "rate": 0.5625}
    assert report["acceptance"]["per_position"][1] == {
        "position": 2, "accepted": 1, "unconditional": 0.25, "conditional": 1 / 3,
    }  # fmt: skip
    assert report["probe"]["boundary"][0]["hidden_shape"] == [7, 64]
    assert not report["cpu_profile"]
    console = Console(width=120, record=True, file=(tmp_path / "out").open("w"))
    for part in drawn(found, workload):
        console.print(part)
    console.file.close()
    text = console.export_text()
    for expected in (
        "2.250",
        "0.417",
        "0.562",
        "33.3%",
        "layers.0.a",
        "1 of 5 dropped",
        "Outer → Inner",
        "a file",
    ):
        assert expected in text, expected
