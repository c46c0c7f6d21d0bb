"""Signatures: on the logs of the cases, and on made-up evidence at their borders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.acceptance.counts import COLUMNS, PerPosition
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.report import Given, ServerReport, account
from eagle3lab.acceptance.signature import MEANINGS, Evidence, signature, thresholds
from eagle3lab.acceptance.statistics import Estimate, trend
from eagle3lab.engines.release import parse_release
from tests.acceptance.loglines import CASES, decode_line, newest


def of_case(name: str, folder: Path) -> ServerReport:
    case = json.loads((CASES / f"{name}.json").read_text("utf-8"))
    log = folder / "server.log"
    log.write_text("\n".join(case["log"]) + "\n", "utf-8")
    report = account(read_logs([log]), Given(release=parse_release(case["engine"]))).main
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("capture-eagle-for-eagle3", "dead"),
        ("capture-use-aux-false", "dead"),
        ("files-stale-partial", "dead"),
        ("metric-floor-not-25-percent", "dead"),
        ("seed-kimi-layers0-eagle", "dead"),
        ("vocab-absolute", "dead"),
        ("seed-kimi-renamed-eagle", "near-dead"),
        ("vocab-map-not-saved", "near-dead"),
        ("vocab-zero-first-n", "near-dead"),
        ("vocab-t2d-other-run", "near-dead"),
        ("layer-norm-before-residual", "partial"),
        ("layer-rope-parameters", "partial"),
        ("capture-ids-top-level", "partial"),
        ("training-weak-vllm", "weak-training"),
        ("training-other-target", "weak-training"),
        ("runtime-drift-uptime", "drift"),
        ("runtime-switched-off", "switched-off"),
        ("runtime-degenerate", "collapse"),
        ("runtime-not-speculating", "not-speculating"),
        ("metric-idle-nan", "no-data"),
        ("ok-rate-quarter-new", "healthy"),
        ("ok-reading-0.54", "healthy"),
        ("ok-log-old-no-rate", "healthy"),
        ("ok-vllm-native-speculators", "healthy"),
        ("ok-gptoss-v3-0.5.18", "healthy"),
    ],
)
def test_of_the_cases(case: str, name: str, tmp_path: Path) -> None:
    found = of_case(case, tmp_path).signature
    assert found.name == name, found.reason
    assert 0.5 < found.confidence <= 0.97


def test_a_quarter_is_not_a_quarter(tmp_path: Path) -> None:
    """The same printed 0.25: nothing accepted in one release, a quarter of the drafts in another."""
    old, new = of_case("metric-floor-not-25-percent", tmp_path), of_case("ok-rate-quarter-new", tmp_path)
    assert old.accept_rate_reported == new.accept_rate_reported == pytest.approx(0.25)
    assert old.accept_rate == pytest.approx(0)
    assert new.accept_rate == pytest.approx(0.25)


def test_the_case_study(tmp_path: Path) -> None:
    """1.00/0.20 at 5 draft tokens, then 1.05/0.21 after renaming: both are nothing."""
    before, after = of_case("seed-kimi-layers0-eagle", tmp_path), of_case("seed-kimi-renamed-eagle", tmp_path)
    assert (before.draft_tokens, after.draft_tokens) == (5, 5)
    assert before.accept_rate == pytest.approx(0, abs=1e-9)
    assert after.accept_rate == pytest.approx(0.0117, abs=0.001)
    assert before.algorithm == after.algorithm == "EAGLE"


def test_a_crash_is_noted(tmp_path: Path) -> None:
    notes = of_case("runtime-crash-oom", tmp_path).notes
    assert any("exception on TP2: torch.OutOfMemoryError" in note for note in notes)


def evidence(mean: float, shares: tuple[float, ...], **more: object) -> Evidence:
    length = Estimate(mean, mean - 0.01, mean + 0.01, 0.95, 50, 50.0)
    return Evidence(length, None, PerPosition.from_unconditional(shares) if shares else None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (evidence(1.0723, (0.0723, 0.0, 0.0)), "random-head"),
        (evidence(1.65, (0.6, 0.05, 0.0)), "recurrence-cliff"),
        (evidence(2.2, (0.6, 0.38, 0.22)), "healthy"),
        (evidence(1.69, (0.44, 0.18, 0.07)), "weak-training"),
        (evidence(1.8, (), expected=2.9, draft_tokens=4), "below-expectation"),
        (evidence(2.7, (), expected=2.9, draft_tokens=4), "healthy"),
        (evidence(1.45, (), draft_tokens=2), "healthy"),
        (evidence(1.3, (), draft_tokens=4), "partial"),
        (Evidence(None, plain_decode=4), "not-speculating"),
        (Evidence(None, idle=4), "no-data"),
        (Evidence(None), "no-data"),
    ],
)
def test_of_made_up_evidence(seen: Evidence, name: str) -> None:
    found = signature(seen)
    assert found.name == name
    assert found.meaning == MEANINGS[name]


def test_busy_and_dead_at_the_same_load_is_not_switched_off(tmp_path: Path) -> None:
    lines = [decode_line(newest(), x, running=8) for x in (2.5, 2.6, 2.4, 1.0, 1.0, 1.0, 1.0)]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    report = account(read_logs([log]), Given()).main
    assert report is not None
    assert report.signature.name == "collapse"


def test_steady_noise_has_no_story(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    lines = [
        decode_line(newest(), float(x), running=int(random.integers(1, 40)))
        for x in random.normal(2.5, 0.2, 200)
    ]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    report = account(read_logs([log]), Given(draft_tokens=4)).main
    assert report is not None
    assert report.signature.name == "healthy"
    assert report.changes == ()


def test_every_threshold_has_a_reason() -> None:
    assert all(len(threshold.reason) > 20 for threshold in thresholds().values())
    order = [thresholds()[name].value for name in ("dead", "near_dead", "partial")]
    assert order == sorted(order)


@pytest.mark.parametrize(("seconds", "name"), [(5.0, "healthy"), (60.0, "drift")])
def test_a_short_run_does_not_drift_with_uptime(seconds: float, name: str) -> None:
    """The same fall over 20 lines: within two minutes it is the last requests, within twenty it is the server."""
    lengths = np.linspace(3.4, 2.2, 20)
    ones = np.ones(20)
    table = {column: ones.copy() for column in COLUMNS} | {
        "time": np.arange(20) * seconds,
        "tokens": lengths,
        "length_sum": lengths,
    }
    length = Estimate(float(lengths.mean()), 2.6, 3.0, 0.95, 20, 20.0)
    seen = Evidence(length, table=table, draft_tokens=5, trend=trend(lengths, ones))
    assert signature(seen).name == name
