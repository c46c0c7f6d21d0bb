"""Coverage and its ceiling against the definition written as loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.vocabulary.coverage import measure_coverage


def by_hand(text: list[int], kept: set[int], steps: int) -> tuple[float | None, int]:
    """(accept length, verify steps): drafts accepted while covered, then the bonus token."""
    at, lengths = 0, []
    while True:
        accepted = 0
        while accepted < steps and at + accepted + 1 < len(text) and text[at + accepted + 1] in kept:
            accepted += 1
        bonus = at + accepted + 1
        if bonus >= len(text):
            break
        lengths.append(accepted + 1)
        at = bonus
    return (sum(lengths) / len(lengths) if lengths else None), len(lengths)


def fewest_steps(text: list[int], kept: set[int], steps: int, goal: int) -> int:
    """The fewest verify steps to reach position `goal`, over all ways to accept less than one could."""
    best = {0: 0}
    for at in range(goal):
        if at not in best:
            continue
        for accepted in range(steps + 1):
            if accepted and text[at + accepted] not in kept:
                break
            if at + accepted + 1 > goal:
                break
            end = at + accepted + 1
            best[end] = min(best.get(end, len(text)), best[at] + 1)
    return best[goal]


texts = st.lists(st.integers(0, 12), min_size=1, max_size=60)
vocabularies = st.sets(st.integers(0, 14), max_size=14)


@settings(max_examples=400, deadline=None)
@given(texts, vocabularies, st.integers(1, 7))
def test_against_loops(text: list[int], kept: set[int], steps: int) -> None:
    report = measure_coverage(np.array(text), np.array(sorted(kept), dtype=np.int64), steps)
    length, verify_steps = by_hand(text, kept, steps)
    assert report.verify_steps == verify_steps
    assert report.accept_length_ceiling == (None if length is None else pytest.approx(length))
    assert report.is_covered.tolist() == [token in kept for token in text]
    assert report.covered == sum(token in kept for token in text)
    share = report.covered / len(text)
    assert report.accept_length_if_independent == pytest.approx(sum(share**k for k in range(steps + 1)))
    counts = Counter(token for token in text if token not in kept)
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    assert list(zip(report.uncovered_ids.tolist(), report.uncovered_counts.tolist(), strict=True)) == expected
    inside = sorted((n for token, n in Counter(text).items() if token in kept), reverse=True)
    assert report.by_rank.tolist() == pytest.approx(
        [sum(inside[: k + 1]) / len(text) for k in range(len(kept))]
    )
    best = sorted(Counter(text).values(), reverse=True)
    assert report.best_by_rank.tolist() == pytest.approx(
        [sum(best[: k + 1]) / len(text) for k in range(len(kept))]
    )
    assert report.coverage <= report.best_coverage + 1e-12


@settings(max_examples=200, deadline=None)
@given(texts, vocabularies, st.integers(1, 5))
def test_no_way_of_accepting_needs_fewer_steps(text: list[int], kept: set[int], steps: int) -> None:
    report = measure_coverage(np.array(text), np.array(sorted(kept), dtype=np.int64), steps)
    if report.verify_steps:
        assert report.accept_length_ceiling is not None
        goal = round(report.accept_length_ceiling * report.verify_steps)
        assert fewest_steps(text, kept, steps, goal) == report.verify_steps


def test_bursts_differ_from_independence() -> None:
    """Half the tokens covered, in one block: 8000 tokens in 1000 + 4000 steps, 1.6 instead of 1.875."""
    text = np.repeat([1, 0], 4000)
    report = measure_coverage(text, np.array([1]), steps=3)
    assert report.coverage == 0.5
    assert report.accept_length_if_independent == pytest.approx(1.875)
    assert report.accept_length_ceiling == pytest.approx(1.6, abs=0.001)


def test_all_and_nothing_covered() -> None:
    text = np.arange(401)
    assert measure_coverage(text, text, steps=3).accept_length_ceiling == 4.0
    assert measure_coverage(text, np.array([9999]), steps=3).accept_length_ceiling == 1.0
    assert measure_coverage(text, np.array([], dtype=np.int64), steps=3).coverage == 0.0


def test_repeated_and_foreign_ids_count_once() -> None:
    report = measure_coverage(np.array([5, 5, 6]), np.array([5, 5, 5, -3, 10**9]), steps=1)
    assert (report.draft_vocab_size, report.covered) == (3, 2)


@pytest.mark.parametrize(("text", "steps"), [([], 3), ([1], 0)])
def test_bad_arguments(text: list[int], steps: int) -> None:
    with pytest.raises(ValueError):
        measure_coverage(np.array(text, dtype=np.int64), np.array([1]), steps)
