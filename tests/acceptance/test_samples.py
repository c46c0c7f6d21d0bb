"""Every sample log is read with the values it is known to mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3lab.acceptance.grammar import parse_line
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.observations import Observation
from eagle3lab.acceptance.report import AcceptanceReport, Given, ServerReport, account
from eagle3lab.engines.release import parse_release
from tests.acceptance.loglines import sample_lines, samples

pytestmark = pytest.mark.usefixtures("both_ways")

TOLERANCE = 0.01

# What a bare excerpt cannot tell by itself: the release (from the sample's version_range).
RELEASES = {"D-iteration-number": "sglang==0.5.4", "D-new-formula": "sglang==0.5.15"}


def read(sample: dict[str, Any], folder: Path) -> AcceptanceReport:
    log = folder / "server.log"
    log.write_text("\n".join(sample_lines(sample)) + "\n", "utf-8")
    stated = RELEASES.get(sample["id"])
    return account(read_logs([log]), Given(release=parse_release(stated) if stated else None))


def by_id(name: str) -> dict[str, Any]:
    return next(sample for sample in samples() if sample["id"] == name)


def server_of(report: AcceptanceReport) -> ServerReport:
    assert report.main is not None
    return report.main


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample["id"])
def test_numbers(sample: dict[str, Any], tmp_path: Path) -> None:
    report = read(sample, tmp_path)
    expect, server = sample["expect"], report.main
    assert report.reading.unparsed == 0
    checked = 0
    if "accept_len" in expect:
        checked += 1
        length = server.accept_length if server else None
        if expect["accept_len"] is None:
            assert length is None
        else:
            assert length is not None
            assert length.mean == pytest.approx(expect["accept_len"], abs=TOLERANCE)
    if "accept_rate" in expect:
        checked += 1
        rate = server.accept_rate_reported if server else None
        if expect["accept_rate"] is None:
            assert rate is None
        else:
            assert rate == pytest.approx(expect["accept_rate"], abs=TOLERANCE)
    if expect.get("formula", "emitted") not in ("emitted", "emitted/(draft/k)"):
        checked += 1
        assert server is not None
        assert server.reading.formula == expect["formula"]
    if "D" in expect:
        checked += 1
        assert server is not None
        assert server.draft_tokens == expect["D"]
    if "k" in expect:
        checked += 1
        assert server is not None
        assert server.draft_tokens == expect["k"] + 1
    if "true_rate" in expect:
        checked += 1
        assert server is not None
        assert server.accept_rate == pytest.approx(expect["true_rate"], abs=TOLERANCE)
    if "per_pos" in expect or "n_pos" in expect:
        checked += 1
        assert server is not None
        assert server.per_position is not None
        shares = server.per_position.unconditional
        assert len(shares) == expect.get("n_pos", len(expect.get("per_pos", shares)))
        assert shares == pytest.approx(expect.get("per_pos", shares), abs=TOLERANCE)
    if "n_decode" in expect:
        checked += 1
        assert server is not None
        assert server.lines == expect["n_decode"]
    assert checked or {"event", "strip"} & expect.keys()


@pytest.mark.parametrize(
    "sample", [s for s in samples() if {"tp", "dp", "cuda_graph", "graph_label"} & s["expect"].keys() and "line" in s],
    ids=lambda sample: sample["id"],
)  # fmt: skip
def test_what_else_a_line_says(sample: dict[str, Any]) -> None:
    seen, expect = parse_line(sample["line"]), sample["expect"]
    if not isinstance(seen, Observation):
        assert seen is not None
        assert not hasattr(seen, "reason")
        assert seen.values["TP"] == expect["tp"]  # type: ignore[union-attr]
        return
    for key, rank in (("tp", "TP"), ("dp", "DP")):
        if key in expect:
            assert seen.ranks[rank] == expect[key]
    if "cuda_graph" in expect:
        assert (seen.graph_label, seen.graph) == ("cuda graph", expect["cuda_graph"])
    if "graph_label" in expect:
        assert seen.graph_label == expect["graph_label"]


def test_ranks_are_kept_apart(tmp_path: Path) -> None:
    sample = by_id("D-two-ranks")
    ranks = {rank.label: rank.accept_length for rank in server_of(read(sample, tmp_path)).ranks}
    assert ranks == pytest.approx(sample["expect"]["accept_len_by_rank"])


def test_a_fall_is_dated(tmp_path: Path) -> None:
    server = server_of(read(by_id("D-falling"), tmp_path))
    assert server.signature.name == "collapse"
    (change,) = server.changes
    assert (change.before, change.after) == pytest.approx((2.7, 1.0))
    assert change.row == 2


def test_idle_is_no_data(tmp_path: Path) -> None:
    server = server_of(read(by_id("V03"), tmp_path))
    assert server.signature.name == "no-data"
    assert (server.accept_length, server.accept_rate, server.idle) == (None, None, 1)


@pytest.mark.parametrize("name", ["S13", "D-not-speculating"])
def test_not_speculating(name: str, tmp_path: Path) -> None:
    assert server_of(read(by_id(name), tmp_path)).signature.name == "not-speculating"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("S16", ["draft_tokens_adjusted"]),
        ("D-adjusted-then-lines", ["draft_tokens_adjusted"]),
        ("V12", ["embed_distinct"]),
        ("V13", ["embed_shared"]),
        ("V14", ["aux_layers"]),
        ("D-ranks-contradict", ["embed_distinct", "embed_shared"]),
        ("D-first-traceback", ["traceback", "error", "traceback", "error"]),
        ("V07", []),
    ],
)
def test_events(name: str, kinds: list[str], tmp_path: Path) -> None:
    report = read(by_id(name), tmp_path)
    assert [event.kind for event in report.reading.events] == kinds
    if name == "V14":
        assert report.reading.events[0].values["ids"] == (2, 30, 58)


def test_the_first_traceback_is_the_cause(tmp_path: Path) -> None:
    sample = by_id("D-first-traceback")
    server = read(sample, tmp_path).reading.servers[0]
    assert server.tracebacks[0] == (sample["expect"]["first_rank"], sample["expect"]["first_error"])
    assert len(server.tracebacks) == sample["expect"]["n_tracebacks"]


def test_contradicting_ranks_are_noted(tmp_path: Path) -> None:
    assert any("contradict" in note for note in server_of(read(by_id("D-ranks-contradict"), tmp_path)).notes)


def test_a_rate_with_two_meanings_is_not_decided(tmp_path: Path) -> None:
    server = server_of(read(by_id("S11"), tmp_path))
    assert server.reading.formula is None
    assert "more than one way" in server.reading.note
