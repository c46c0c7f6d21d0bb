"""Lines in every release's format are read back to the numbers put in, in bulk and one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3lab.acceptance import bulk as fast
from eagle3lab.acceptance import log as reader
from eagle3lab.acceptance.formulas import NONE, printed_rate
from eagle3lab.acceptance.grammar import parse_line
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.observations import Observation
from eagle3lab.acceptance.report import Given, account
from eagle3lab.engines.release import Release
from tests.acceptance.loglines import LineRange, all_shapes, decode_line, line_ranges, newest, row_of

pytestmark = pytest.mark.usefixtures("both_ways")

SHAPES = list(all_shapes())
LENGTHS = (1.0, 1.01, 2.17, 3.5, 4.0)


@pytest.mark.parametrize(("row", "shape"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_a_line_reads_back(row: LineRange, shape: dict[str, Any]) -> None:
    for length in LENGTHS:
        seen = parse_line(decode_line(row, length, **shape))
        assert isinstance(seen, Observation)
        assert seen.accept_length == pytest.approx(length)
        rate = (
            None if row.formula == NONE else pytest.approx(printed_rate(row.formula, length, 4), abs=0.0051)
        )
        assert seen.accept_rate == rate
        assert (seen.running, seen.tokens, seen.throughput, seen.label) == (3, 900, 80.11, "TP0")
        assert seen.graph_label == (shape["graph"] or None)
        assert seen.iteration == (4120 if shape["prefix"] == "[N]," else None)


@pytest.mark.parametrize(("row", "shape"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_a_log_reads_back(row: LineRange, shape: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(decode_line(row, length, **shape) + "\n" for length in LENGTHS))
    release = Release("sglang", row.first or "0.4.5")
    server = account(read_logs([log]), Given(release, draft_tokens=4)).main
    assert server is not None
    assert server.accept_length is not None
    assert server.accept_length.mean == pytest.approx(np.mean(LENGTHS))
    assert server.reading.formula == row.formula
    assert server.accept_rate == pytest.approx((np.mean(LENGTHS) - 1) / 3)


def test_the_common_line_takes_the_fast_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All formats but few go in bulk; a regression here would only show as time."""
    singly = 0

    def counted(text: str) -> object:
        nonlocal singly
        singly += 1
        return parse_line(text)

    monkeypatch.setattr(reader, "parse_line", counted)
    monkeypatch.setattr(reader, "SMALL", 0)
    lines = [decode_line(row, 2.0, **shape) for _, row, shape in SHAPES for _ in range(5)]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    assert read_logs([log]).servers[0].series["TP0"].lines == len(lines)
    assert singly == 1  # the first line, to tell SGLang from its JAX sister


@pytest.mark.parametrize(
    "ranks", ["", " TP0", " DP3 TP1", " DP0 PP1 TP7 EP7", " DP1 PP0 ATTN_CP0 MOE_DP1 TP2 EP3", " TP123"]
)
def test_rank_labels(ranks: str, tmp_path: Path) -> None:
    line = decode_line(newest(), 2.0, ranks=ranks)
    seen = parse_line(line)
    assert isinstance(seen, Observation)
    assert seen.label == ranks.strip()
    log = tmp_path / "server.log"
    log.write_text(line + "\n")
    assert list(read_logs([log]).servers[0].series) == [ranks.strip()]


@pytest.mark.parametrize(
    "head",
    [
        "(SGLangEngine pid=1234, ip=10.0.0.3) ",
        "\x1b[36m(RayWorker pid=77)\x1b[0m ",
        "[36m(RayWorker pid=77)[0m ",
        "2026-03-01 10:00:00 INFO 151972 [scheduler_metrics_mixin.py:287] ",
        "INFO:sglang.srt.managers.scheduler:",
        "2026-03-01T10:00:00.123456Z stdout F ",
        "server-0  | ",
    ],
)
def test_prefixes_of_others(head: str, tmp_path: Path) -> None:
    line = head + decode_line(newest(), 2.35)
    log = tmp_path / "server.log"
    log.write_text(line + "\n")
    (server,) = read_logs([log]).servers
    (series,) = server.series.values()
    assert series.table()["length_sum"].tolist() == [2.35]
    assert "TP0" in series.label
    assert ("pid" in head) == ("pid" in series.label)


@pytest.mark.parametrize("logger", ["2026-03-01 10:00:00 INFO x.py:12 ", ""])
def test_without_sglangs_own_head(logger: str) -> None:
    body = decode_line(newest(), 2.35).partition("] ")[2]
    seen = parse_line(logger + body)
    assert isinstance(seen, Observation)
    assert seen.accept_length == 2.35


def test_times_are_read(tmp_path: Path) -> None:
    times = [
        "2024-02-29 23:59:59",
        "2025-12-31 00:00:00",
        "2000-01-01 12:30:01",
        "2026-13-01 00:00:00",
        "2025-02-29 00:00:00",
    ]
    log = tmp_path / "server.log"
    log.write_text("".join(decode_line(newest(), 2.0, time=time) + "\n" for time in times))
    bulk = read_logs([log]).servers[0].series["TP0"].table()["time"]
    single = [parse_line(decode_line(newest(), 2.0, time=time)).time for time in times]  # type: ignore[union-attr]
    np.testing.assert_array_equal(bulk, single)
    assert np.isnan(bulk[3:]).all()
    assert np.datetime64(int(bulk[0]), "s") == np.datetime64("2024-02-29T23:59:59")


def test_many_labels_and_iterations(tmp_path: Path) -> None:
    """More labels than a chunk tells apart, and a different iteration number on every line."""
    lines = [decode_line(row_of("0.5.4"), 2.0, ranks=f" DP{i % 100} TP0", iteration=i) for i in range(1000)]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    series = read_logs([log]).servers[0].series
    assert len(series) == 100
    assert {one.lines for one in series.values()} == {10}
    assert fast.MOST_LABELS < 100


def test_hybrid_token_fields(tmp_path: Path) -> None:
    line = decode_line(newest(), 2.35).replace(
        "#token: 900, token usage: 0.01",
        "#full token: 900, full token usage: 0.02, #swa token: 3, swa token usage: 0.01",
    )
    log = tmp_path / "server.log"
    log.write_text(line + "\n")
    assert read_logs([log]).servers[0].series["TP0"].table()["length_sum"].tolist() == [2.35]


def test_ranges_do_not_overlap_and_leave_no_gap() -> None:
    for release, formula in {
        "0.4.5": "none", "0.4.6.post5": "none", "0.4.9.post6": "none", "0.5.3.post1": "none",
        "0.5.3.post2": "len/(steps+1)", "0.5.4": "len/(steps+1)", "0.5.4.post3": "len/(steps+1)",
        "0.5.5": "len/(steps+1)",
        "0.5.5.post3": "len/D", "0.5.9": "len/D", "0.5.10.post1": "len/D",
        "0.5.11": "(len-1)/(D-1)", "0.5.16": "(len-1)/(D-1)", "0.5.23": "(len-1)/(D-1)", "0.6.0": "(len-1)/(D-1)",
    }.items():  # fmt: skip
        assert [row.formula for row in line_ranges() if row.holds(release)] == [formula], release
