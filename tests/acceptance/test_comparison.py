"""Is B better: right about known differences, silent about none, and more sure where the prompts are the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from eagle3lab.acceptance.comparison import (
    BETTER,
    NO_DIFFERENCE,
    UNKNOWN,
    WORSE,
    compare_runs,
    comparison_text,
    says,
)
from eagle3lab.acceptance.report import Given
from eagle3lab.acceptance.statistics import compare, paired
from eagle3lab.cli import app
from eagle3lab.engines.release import parse_release
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import LOG, REQUESTS, Request
from lab.simulated_acceptance import change_coverage, request_coverage, rows_of, simulate_requests
from tests.acceptance.loglines import decode_line, newest
from tests.acceptance.runs import totals_of, write_run
from tests.acceptance.test_cli import case_study

Requests = tuple[Request, ...]


def two(count: int, gain: float, seed: int = 1) -> tuple[Requests, Requests]:
    """The same prompts answered twice, the second time by a drafter whose chance per draft is `gain` higher."""
    random = np.random.default_rng(seed)
    ease = random.beta(6.0, 4.0, count)
    a, b = (simulate_requests(random, requests=count, ease=ease, gain=more) for more in (0.0, gain))
    return a, b


def folders(tmp_path: Path, a: Requests, b: Requests) -> tuple[str, str]:
    return str(write_run(tmp_path / "a", a)), str(write_run(tmp_path / "b", b))


def test_a_better_drafter_is_found_prompt_by_prompt(tmp_path: Path) -> None:
    a, b = two(40, 0.1)
    found = compare_runs(*folders(tmp_path, a, b))
    assert found.verdict == BETTER
    assert found.pairs == 40
    lengths = [1 + t.accepted / t.steps for t in (totals_of(a), totals_of(b))]
    assert found.length.change == pytest.approx(lengths[1] - lengths[0])
    assert found.length.low < found.length.change < found.length.high
    assert found.sure is not None
    assert found.sure > 0.999
    assert [one.difference.different for one in found.per_position if one.difference] == [True] * 3
    assert found.rate == pytest.approx((lengths[1] - lengths[0]) / 3)
    assert says(found).startswith("B is better than A: +0.")


def test_the_other_way_round_it_is_worse_by_as_much(tmp_path: Path) -> None:
    a, b = folders(tmp_path, *two(40, 0.1))
    there, back = compare_runs(a, b), compare_runs(b, a)
    assert back.verdict == WORSE
    assert back.length.change == -there.length.change
    assert back.length.p == pytest.approx(there.length.p, rel=0.2, abs=1e-6)


def test_the_same_run_twice_is_no_difference(tmp_path: Path) -> None:
    a, _ = two(12, 0.0)
    found = compare_runs(*folders(tmp_path, a, a))
    assert found.verdict == NO_DIFFERENCE
    assert (found.length.low, found.length.high, found.length.p) == (0.0, 0.0, 1.0)


def test_the_same_prompts_show_what_independent_runs_cannot(tmp_path: Path) -> None:
    a, b = two(40, 0.08, seed=7)
    matched = compare_runs(*folders(tmp_path, a, b))
    other = compare_runs(str(tmp_path / "a" / REQUESTS), str(tmp_path / "b" / LOG))
    assert matched.verdict == BETTER
    assert (matched.pairs, other.pairs) == (40, 0)
    apart = compare(matched.a.rows(), matched.b.rows(), exact=True)
    assert matched.resolution is not None
    assert matched.resolution < 0.7 * (apart.high - apart.low) / 2


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised() -> None:
    """120 pairs of runs without a difference: about 5 % are called different, whichever way they are judged."""
    alarms = {"paired": 0, "independent": 0}
    for seed in range(120):
        a, b = two(24, 0.0, seed)
        rows = [rows_of(side) for side in (a, b)]
        alarms["paired"] += paired(rows[0], rows[1]).different
        other, _ = two(24, 0.0, seed + 10_000)
        alarms["independent"] += compare(rows[0], rows_of(other), exact=True).different
    assert all(1 <= count <= 14 for count in alarms.values()), alarms


@pytest.mark.slow
def test_intervals_of_requests_and_of_changes_hold_the_truth() -> None:
    """The whole of it is `benchmarks/interval_coverage.py`."""
    assert 0.90 <= request_coverage(trials=120, requests=24) <= 0.995
    assert 0.90 <= change_coverage(trials=120, requests=24) <= 0.995


def test_other_prompts_are_judged_independently(tmp_path: Path) -> None:
    a, b = two(12, 0.0)
    found = compare_runs(*folders(tmp_path, a, b[:9]))
    assert found.pairs == 0
    assert any("same prompts" in note for note in found.notes)
    assert found.same_answers is None


def test_two_logs_that_are_both_nothing(tmp_path: Path) -> None:
    case_study(tmp_path)
    lines = (tmp_path / "server.log").read_text().splitlines()
    (tmp_path / "a.log").write_text("\n".join(lines[:5]) + "\n")
    (tmp_path / "b.log").write_text("\n".join(lines[5:]) + "\n")
    given = Given(parse_release("sglang==0.5.9"), 5)
    found = compare_runs(str(tmp_path / "a.log"), str(tmp_path / "b.log"), given)
    assert found.verdict == BETTER
    assert any("next to nothing" in note for note in found.notes)


def test_one_measurement_tells_nothing(tmp_path: Path) -> None:
    for name, length in (("a.log", 2.0), ("b.log", 3.0)):
        (tmp_path / name).write_text(decode_line(newest(), length) + "\n")
    found = compare_runs(str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    assert found.verdict == UNKNOWN
    assert found.sure is None
    assert "cannot be told" in comparison_text(found)


def test_a_run_that_measured_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("nothing\n")
    with pytest.raises(InputError, match=r"nothing to compare: 1 line read"):
        compare_runs(str(tmp_path / "a.log"), str(tmp_path / "a.log"))


def test_answers_and_speed_are_compared_too(tmp_path: Path) -> None:
    import msgspec

    a, b = two(6, 0.0)
    with_ids = [
        tuple(msgspec.structs.replace(r, output_ids=[r.index, seed if r.index == 2 else 0]) for r in side)
        for seed, side in enumerate((a, b))
    ]
    found = compare_runs(*folders(tmp_path, *with_ids))
    assert found.same_answers == 5
    assert found.speed is not None
    assert found.speed[0] == pytest.approx(totals_of(a).kept / 6)


def test_the_command(tmp_path: Path) -> None:
    a, b = folders(tmp_path, *two(40, 0.1))
    text = CliRunner().invoke(app, ["compare", a, b])
    assert text.exit_code == 0
    assert "prompt by prompt, 40 prompts" in text.output
    made = json.loads(CliRunner().invoke(app, ["compare", a, b, "--format", "json"]).output)
    assert (made["schema_version"], made["verdict"], made["pairs"]) == (1, "better", 40)
    assert made["change_ci"][0] < made["change"] < made["change_ci"][1]
    assert [one["position"] for one in made["per_position"]] == [1, 2, 3]
    assert made["a"]["signature"] == "healthy"
