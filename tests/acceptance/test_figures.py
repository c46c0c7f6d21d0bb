"""The figures show what the reports say."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.acceptance.comparison import compare_runs
from eagle3lab.acceptance.expectation import STEP, Accuracies
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.report import AcceptanceReport, Given, account
from eagle3lab.acceptance.run import account_run
from tests.acceptance.loglines import decode_line, newest, sample_lines, samples
from tests.acceptance.runs import made_up, write_run
from tests.acceptance.test_cli import case_study

pytest.importorskip("plotly")

from eagle3lab.acceptance.points import POINTS, points_over_time
from eagle3lab.figures.acceptance import (
    change_figure,
    change_table,
    comparison_figure,
    distribution_figure,
    distribution_table,
    over_time_figure,
    over_time_table,
    per_position_figure,
    per_position_table,
    runs_table,
)


def report_of(log: Path, **more: object) -> AcceptanceReport:
    return account(read_logs([log]), Given(**more))  # type: ignore[arg-type]


def test_over_time_marks_restarts_and_the_promise(tmp_path: Path) -> None:
    accuracies = Accuracies((0.745, 0.69, 0.66), STEP, "a test")
    made = over_time_figure(report_of(case_study(tmp_path), accuracies=accuracies))
    curves = [trace for trace in made.data if trace.mode == "lines+markers"]
    assert [list(curve.y) for curve in curves] == [[1.0, 1.0, 1.0], [1.05, 1.04, 1.05]]
    texts = [note.text for note in made.layout.annotations]
    assert "restart" in texts
    assert "nothing accepted" in texts
    assert any("training promises 2.8" in text for text in texts)


def test_over_time_of_a_long_log_has_bands(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [
        decode_line(newest(), 2.0 + i % 7 / 10, time=f"2026-03-11 10:{i // 60:02d}:{i % 60:02d}")
        for i in range(600)
    ]
    log.write_text("\n".join(lines) + "\n")
    report = report_of(log)
    assert report.main is not None
    points = points_over_time(report.main)
    assert len(points) == POINTS
    assert sum(point.lines for point in points) == 600
    assert all(point.low < point.accept_length < point.high for point in points)
    assert len(over_time_figure(report).data) == 2


def test_over_time_without_times(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("accept len: 1.00, accept rate: 0.00\naccept len: 1.01, accept rate: 0.00\n")
    made = over_time_figure(report_of(log))
    assert made.layout.xaxis.title.text == "interval"
    assert list(made.data[1].x) == [0, 1]


def test_over_time_of_nothing(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    assert not over_time_figure(report_of(log)).data


def test_per_position_beside_the_promise(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join(sample_lines(next(s for s in samples() if s["id"] == "V04"))) + "\n")
    server = report_of(log, accuracies=Accuracies((0.6, 0.6, 0.6), STEP, "a test")).main
    assert server is not None
    promised, measured, conditional = per_position_figure(server).data
    assert list(promised.y) == pytest.approx([0.6, 0.36, 0.216])
    assert list(measured.y) == pytest.approx([0.543, 0.357, 0.264], abs=1e-3)
    assert list(conditional.y) == pytest.approx([0.543, 0.657, 0.739], abs=1e-2)


def test_per_position_needs_positions(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(decode_line(newest(), 2.0) + "\n")
    server = report_of(log).main
    assert server is not None
    with pytest.raises(ValueError, match="neither"):
        per_position_figure(server)


def test_comparison_writes_the_difference(tmp_path: Path) -> None:
    report = report_of(case_study(tmp_path))
    made = comparison_figure([("dropped", report.servers[0]), ("renamed", report.servers[1])])
    first, second = made.data[:2]
    assert first.text[0] == "1.00"
    assert second.text[0].startswith("1.05 (+0.05, ")


def test_distribution_and_its_table(tmp_path: Path) -> None:
    server = account_run(write_run(tmp_path / "run", made_up(20)), Given())
    made = distribution_figure(server)
    assert sum(made.data[0].y) == pytest.approx(1.0)
    heads, rows = distribution_table(server)
    assert len(heads) == len(rows[0])
    assert sum(int(row[2]) for row in rows) == 20


def test_before_and_after_by_position(tmp_path: Path) -> None:
    a, b = made_up(20), made_up(20, gain=0.1)
    found = compare_runs(str(write_run(tmp_path / "a", a)), str(write_run(tmp_path / "b", b)))
    before, after = change_figure(found).data
    assert before.name.startswith("before: accept length ")
    assert all(x > y for x, y in zip(after.y, before.y, strict=True))
    assert min(after.error_y.array) > 0
    _, rows = change_table(found)
    assert [row[0] for row in rows] == ["accept length", "position 1", "position 2", "position 3"]


def test_before_and_after_needs_positions(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(decode_line(newest(), 2.0) + "\n" + decode_line(newest(), 2.1) + "\n")
    with pytest.raises(ValueError, match="by position"):
        change_figure(compare_runs(str(tmp_path / "a"), str(tmp_path / "b")))


def test_every_table_has_as_many_cells_as_heads(tmp_path: Path) -> None:
    server = account_run(write_run(tmp_path / "run", made_up(20)), Given())
    for heads, rows in (
        over_time_table(server),
        per_position_table(server),
        runs_table([("one", server), ("two", server)]),
    ):
        assert rows
        assert all(len(row) == len(heads) for row in rows)
