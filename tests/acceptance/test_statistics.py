"""Means, intervals, comparisons and changes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eagle3lab.acceptance.statistics import (
    change_points,
    compare,
    dependence,
    estimate,
    student_p,
    student_quantile,
    trend,
    variance_inflation,
)
from lab.simulated_acceptance import coverage, simulate


def test_student_against_tables() -> None:
    assert student_quantile(0.975, 1) == pytest.approx(12.7062, abs=1e-3)
    assert student_quantile(0.975, 10) == pytest.approx(2.2281, abs=1e-3)
    assert student_quantile(0.975, 1e6) == pytest.approx(1.95996, abs=1e-3)
    assert student_quantile(0.95, 5) == pytest.approx(2.0150, abs=1e-3)
    assert student_p(2.228138, 10) == pytest.approx(0.05, abs=1e-5)
    assert student_p(0, 7) == pytest.approx(1)


def test_the_mean_is_weighted() -> None:
    assert estimate(np.array([1.0, 3.0]), np.array([30.0, 10.0])).mean == pytest.approx(1.5)


def test_one_row_has_no_interval() -> None:
    single = estimate(np.array([2.0]), np.array([1.0]))
    assert not single.known
    assert single.mean == 2.0


def test_equal_rows_keep_the_rounding() -> None:
    """Twenty times 1.00 may be 1.004 each time: the interval says so, and stays above the smallest length."""
    found = estimate(np.full(20, 1.0), np.ones(20), floor=1.0)
    assert found.low == 1.0
    assert 1.004 < found.high < 1.02


def test_coverage_of_the_interval() -> None:
    """A small version of the benchmark: requests that span intervals, batches that change, two decimals."""
    assert 0.90 <= coverage(trials=250, intervals=60, seed=11) <= 0.99


def test_neighbours_that_share_requests_widen_the_interval() -> None:
    values, weights, _ = simulate(np.random.default_rng(5), intervals=400, slots=2, mean_steps=800.0)
    naive = 2 * 1.96 * values.std() / math.sqrt(len(values))
    found = estimate(values, weights)
    assert found.high - found.low > 1.5 * naive
    assert variance_inflation(values - values.mean()) > 2
    shuffled = np.random.default_rng(6).permutation(values)
    assert variance_inflation(shuffled - shuffled.mean()) < 1.6


@pytest.mark.slow
def test_compare_says_different_only_when_it_is() -> None:
    random = np.random.default_rng(7)
    ones = np.ones(80)
    a, b = random.normal(2.0, 0.2, 80), random.normal(2.3, 0.2, 80)
    different = compare((a, ones), (b, ones))
    assert different.different
    assert different.p < 1e-6
    assert different.low < 0.3 < different.high
    false = sum(
        compare((random.normal(2, 0.2, 40), ones[:40]), (random.normal(2, 0.2, 40), ones[:40])).different
        for _ in range(200)
    )
    assert false <= 20
    alone = compare((a[:1], ones[:1]), (b, ones))
    assert not alone.different
    assert alone.p == 1.0


def test_a_step_is_found_where_it_is_and_nowhere_else() -> None:
    random = np.random.default_rng(8)
    values = np.concatenate([random.normal(2.5, 0.15, 60), random.normal(1.8, 0.15, 40)])
    times = np.arange(100.0)
    (change,) = change_points(values, np.ones(100), times, p=0.01, size=0.1)
    assert abs(change.row - 60) <= 1
    assert (change.before, change.after) == pytest.approx((2.5, 1.8), abs=0.1)
    false = sum(
        bool(change_points(random.normal(2.5, 0.15, 100), np.ones(100), times, p=0.01, size=0.05))
        for _ in range(100)
    )
    assert false <= 5


def test_a_drift_has_a_trend() -> None:
    falling = trend(np.array([2.92, 2.68, 2.35, 2.02, 1.68]), np.ones(5))
    assert falling is not None
    assert falling.correlation == pytest.approx(-1)
    assert falling.p == pytest.approx(2 / math.factorial(5))
    assert (falling.start, falling.end) == pytest.approx((2.96, 1.70), abs=0.05)
    assert trend(np.array([2.0, 1.9, 1.8]), np.ones(3)) is None
    flat = trend(np.random.default_rng(9).normal(2, 0.1, 60), np.ones(60))
    assert flat is not None
    assert flat.p > 0.05


def test_dependence_on_load() -> None:
    random = np.random.default_rng(10)
    running = random.integers(1, 40, 80).astype(float)
    falling = dependence(3.0 - running / 40 + random.normal(0, 0.1, 80), np.ones(80), running)
    assert falling is not None
    assert falling.correlation < -0.8
    assert falling.p < 1e-6
    assert falling.low - falling.high == pytest.approx(0.5, abs=0.15)
    none = dependence(random.normal(2, 0.1, 80), np.ones(80), running)
    assert none is not None
    assert none.p > 0.01
    assert dependence(running, np.ones(80), np.full(80, 3.0)) is None
    assert dependence(running, np.ones(80), np.full(80, np.nan)) is None
    two = dependence(np.arange(8.0), np.ones(8), np.array([1.0, 1, 1, 1, 1, 2, 2, 2]))
    assert two is not None
    assert (two.low, two.high) == (2.0, 6.0)
