"""Measured signatures carried over to another head, and the order of two faults."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.matrix.pairs import Pair, hider
from lab.matrix.ranking import carried_over, conditional, most_alike, retained
from lab.matrix.records import Cell, Matrix

ENGINE = "sglang==0.5.9"


def cell(fault: str, *accepted: int, way: str = "reference", outcome: str = "measured") -> Cell:
    length = 1 + sum(accepted) / 100 if accepted else None
    return Cell(
        fault=fault, slug=fault, engine=ENGINE, way=way, outcome=outcome, steps=3, topk=1, draft_tokens=4,  # type: ignore[arg-type]
        verify_steps=100, accepted=accepted, accept_length=length,
    )  # fmt: skip


MATRIX = Matrix(
    (
        cell("healthy", 80, 60, 30),
        cell("dead", 0, 0, 0),
        cell("cliff", 76, 4, 0),
        cell("weak", 40, 16, 6),
        cell("weak", 20, 2, 0, way="server"),
        cell("loud", outcome="stops"),
    )
)


def test_the_measured_shares_come_back_for_the_head_they_were_measured_with() -> None:
    for one in (*MATRIX.cells[:3], MATRIX.cells[4]):
        found = next(
            item for item in most_alike(MATRIX, ENGINE, shares=one.position_rates) if item.distance < 1e-9
        )
        assert found.expected == pytest.approx(found.cell.position_rates)


def test_the_most_alike_comes_first_by_shares_and_by_length() -> None:
    assert most_alike(MATRIX, ENGINE, shares=(0.75, 0.05, 0.0))[0].cell.fault == "cliff"
    assert most_alike(MATRIX, ENGINE, accept_length=1.0)[0].cell.fault == "dead"
    assert most_alike(MATRIX, ENGINE, accept_length=2.7)[0].cell.fault == "healthy"


def test_a_real_server_is_preferred_and_what_stops_is_left_out() -> None:
    found = {one.cell.fault: one.cell.way for one in most_alike(MATRIX, ENGINE, accept_length=1.5)}
    assert found == {"healthy": "reference", "dead": "reference", "cliff": "reference", "weak": "server"}


def test_a_better_head_keeps_the_same_part_of_its_own_accuracy() -> None:
    weak, healthy = MATRIX.cells[3], MATRIX.cells[0]
    assert retained(weak, healthy) == pytest.approx((0.5, 0.4 / 0.75, 0.375 / 0.5))
    assert carried_over((0.5, 0.5), (0.9, 0.8)) == pytest.approx((0.45, 0.45 * 0.4))
    best = most_alike(MATRIX, ENGINE, shares=(0.475, 0.475 * 0.8 * 0.5333), promised=(0.95, 0.8, 0.7))[0]
    assert best.cell.fault == "weak" or best.distance < 0.2


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_conditional_and_carried_over_are_inverse(parts: list[float]) -> None:
    shares = carried_over(parts, [1.0] * len(parts))
    again = carried_over(conditional(shares), [1.0] * len(parts))
    assert all(math.isclose(a, b, abs_tol=1e-12) for a, b in zip(shares, again, strict=True))


@pytest.mark.parametrize("arguments", [{}, {"accept_length": 2.0, "engine": "sglang==0.4.9"}])
def test_without_a_figure_or_a_healthy_head_nothing_is_said(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give the shares|not measured"):
        most_alike(MATRIX, **{"engine": ENGINE, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("together", "alone", "hides"),
    [
        (1.61, {"a": 1.60, "b": 1.0}, "a"),  # a dead fault that cannot be seen under the other
        (1.0, {"a": 2.5, "b": 1.01}, "b"),
        (1.0, {"a": 1.0, "b": 1.01}, None),  # alike
        (1.3, {"a": 1.6, "b": 1.5}, None),  # they add up
    ],
)
def test_what_hides_what(together: float, alone: dict[str, float], hides: str | None) -> None:
    assert hider(Pair("a", "b", together, (), ()), alone) == hides
