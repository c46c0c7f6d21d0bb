"""Formulas: what is printed, what it means, and what a pair of numbers gives away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.acceptance.formulas import (
    ACCEPTED,
    DRAFTS,
    LEN_D,
    LEN_STEPS,
    LEN_STEPS1,
    NONE,
    candidates,
    consistent,
    formula_of,
    formula_ranges,
    formula_texts,
    interpret,
    length_of,
    printed_rate,
    true_rate,
)
from eagle3lab.engines.release import Release, parse_release
from eagle3lab.errors import InputError
from tests.acceptance.loglines import line_ranges

RATED = (LEN_D, LEN_STEPS1, LEN_STEPS, DRAFTS, ACCEPTED)


@given(st.sampled_from(RATED), st.integers(2, 64), st.floats(0, 1))
def test_conversions_are_inverse(formula: str, d: int, share: float) -> None:
    length = 1 + share * (d - 1)
    assert length_of(formula, printed_rate(formula, length, d), d) == pytest.approx(length)
    assert true_rate(length, d) == pytest.approx(share, abs=1e-9)


@given(st.sampled_from((LEN_D, LEN_STEPS1, DRAFTS)), st.integers(2, 16), st.integers(1, 400), st.floats(0, 1))
def test_what_a_release_prints_fits_its_formula(formula: str, d: int, forwards: int, share: float) -> None:
    """Both numbers are rounded from the same counts; the printed pair must be found consistent."""
    accepted = round(share * forwards * (d - 1))
    length = 1 + accepted / forwards
    exact = printed_rate(formula, length, d)
    pair = (float(f"{length:.2f}"), float(f"{exact:.2f}"))
    edge = abs(length * 100 % 1 - 0.5) < 1e-6 or abs(exact * 100 % 1 - 0.5) < 1e-6
    assert edge or consistent(formula, *pair, d)
    assert edge or any(c.draft_tokens == d for c in candidates({pair: 1}, [formula]))


def test_a_tree_has_more_drafts_than_steps() -> None:
    assert printed_rate(LEN_STEPS1, 3.0, 64, 5) == pytest.approx(0.5)
    assert printed_rate(LEN_D, 3.0, 64, 5) == pytest.approx(3 / 64)
    reading = interpret({(3.0, 0.5): 3}, None, draft_tokens=64, steps=5)
    assert reading.formula == LEN_STEPS1
    assert interpret({(3.0, 0.05): 3}, None, draft_tokens=64, steps=5).formula == LEN_D
    assert interpret({(3.0, 0.03): 3}, None, draft_tokens=64, steps=5).formula == DRAFTS
    assert interpret({(3.0, 0.05): 3}, Release("sglang", "0.5.9"), 64, 5).formula == LEN_D


@pytest.mark.parametrize(
    ("pairs", "formula", "d"),
    [
        ({(1.0, 0.2): 3}, LEN_D, 5),
        ({(1.0, 0.25): 3}, LEN_D, 4),
        ({(1.0, 0.11): 1}, LEN_D, 9),
        ({(1.0, 0.0): 3}, DRAFTS, None),
        ({(2.7, 0.57): 2, (1.0, 0.0): 3}, DRAFTS, 4),
        ({(2.17, 0.54): 1}, LEN_D, 4),
        ({(1.75, 0.25): 1}, None, None),
        ({(1.75, 0.25): 1, (2.5, 0.5): 1}, DRAFTS, 4),
        ({(1.75, 0.25): 1, (2.5, 0.36): 1}, LEN_D, 7),
        ({(3.0, 0.01): 1}, None, None),
        ({}, NONE, None),
    ],
)
def test_lines_decide_alone(
    pairs: dict[tuple[float, float], int], formula: str | None, d: int | None
) -> None:
    reading = interpret(pairs, None)
    assert (reading.formula, reading.draft_tokens) == (formula, d)
    assert (reading.confidence > 0.5) == (formula is not None)


def test_draft_tokens_settle_what_the_line_leaves_open() -> None:
    assert interpret({(1.75, 0.25): 1}, None, draft_tokens=4).formula == DRAFTS
    assert interpret({(1.75, 0.25): 1}, None, draft_tokens=7).formula == LEN_D
    assert interpret({(1.75, 0.25): 1}, Release("sglang", "0.5.15")).draft_tokens == 4
    assert interpret({(1.75, 0.25): 1}, Release("sglang", "0.5.9")).draft_tokens == 7


def test_lines_against_the_stated_release() -> None:
    """A wrong --engine, or a patched server: the lines win, and it is said."""
    reading = interpret({(1.0, 0.0): 5, (2.5, 0.5): 5}, Release("sglang", "0.5.9"))
    assert reading.formula == DRAFTS
    assert "do not follow" in reading.note
    assert reading.confidence < 0.8


def test_a_wrong_number_of_draft_tokens_is_contradicted() -> None:
    reading = interpret({(2.31, 0.46): 2, (2.29, 0.46): 2}, Release("sglang", "0.5.9"), draft_tokens=24)
    assert reading.draft_tokens == 5
    assert "not the 24 given" in reading.note


def test_one_damaged_line_in_a_hundred_does_not_matter() -> None:
    reading = interpret({(2.0, 0.5): 50, (2.4, 0.6): 49, (3.0, 0.1): 1}, None)
    assert (reading.formula, reading.draft_tokens) == (LEN_D, 4)


def test_every_formula_has_words_and_every_range_a_source() -> None:
    assert {formula for _, _, formula in formula_ranges()} <= formula_texts().keys()
    assert {row.formula for row in line_ranges()} <= formula_texts().keys()
    assert all(row.source and row.prefix for row in line_ranges())


@pytest.mark.parametrize(
    ("engine", "formula"),
    [
        ("sglang==0.5.9", LEN_D),
        ("sglang==0.5.5", LEN_STEPS1),
        ("sglang==0.5.5.post3", LEN_D),
        ("sglang==0.5.11rc1", LEN_D),
        ("SGLang==v0.5.11", DRAFTS),
        ("sglang", None),
        ("vllm==0.20.2", ACCEPTED),
        ("sglang-jax", LEN_STEPS),
    ],
)
def test_engines(engine: str, formula: str | None) -> None:
    assert formula_of(parse_release(engine)) == formula


@pytest.mark.parametrize(
    "text",
    [
        "",
        "trt",
        "==1",
        "no engine==1",
        "sglang==",
        "sglang==new",
        "sglang==0.5.9; rm",
        "sglang==" + "1." * 100,
    ],
)
def test_engines_that_are_none(text: str) -> None:
    if text == "sglang==":
        assert parse_release(text) == Release("sglang")
        return
    with pytest.raises(InputError):
        parse_release(text)
