"""Properties over maps of every shape: no right map is accused, no wrong one passed off as right."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.readings import collisions, read_as, surprise
from eagle3lab.vocabulary.token_map import analyse_token_map
from tests.vocabulary.maps import kept_tokens, mask, stored, with_repeats

NOT_ACCUSED = {MapKind.OFFSETS, MapKind.ZERO_BY_RIGHT, MapKind.UNDECIDED}


@st.composite
def id_lists(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """(V, target ids of the rows): any set of tokens, sorted or not, regular ones included."""
    vocab = draw(st.integers(1, 400))
    shape = draw(st.sampled_from(["any", "stride", "block", "all"]))
    if shape == "any":
        ids = sorted(draw(st.sets(st.integers(0, vocab - 1), min_size=1, max_size=vocab)))
    elif shape == "stride":
        ids = list(range(draw(st.integers(0, vocab - 1)), vocab, draw(st.integers(1, 9))))
    elif shape == "block":
        start = draw(st.integers(0, vocab - 1))
        ids = list(range(start, draw(st.integers(start + 1, vocab))))
    else:
        ids = list(range(vocab))
    if draw(st.booleans()):
        ids = draw(st.permutations(ids))
    return vocab, np.array(ids, dtype=np.int64)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(id_lists(), st.sampled_from(["none", "match", "unfilled"]))
def test_a_right_map_is_never_accused(drawn: tuple[int, np.ndarray], t2d: str) -> None:
    vocab, ids = drawn
    d2t = stored(ids, "offsets")
    # The stated exception: all zeros for a reduced vocabulary.
    assume(d2t.any() or ids.size == vocab)
    marks = {"none": None, "match": mask(ids, vocab), "unfilled": np.zeros(vocab, dtype=bool)}[t2d]
    report = analyse_token_map(d2t, marks, vocab, ids.size, ids.size)
    assert report.kind in NOT_ACCUSED
    assert report.fault is None
    assert np.array_equal(report.hot_token_id, ids)
    if t2d == "match":
        assert report.kind is not MapKind.UNDECIDED
        assert report.confidence == 1.0


@settings(max_examples=300, deadline=None)
@given(id_lists(), st.sampled_from(["absolute", "double-offset"]))
def test_t2d_proves_which_reading_it_is(drawn: tuple[int, np.ndarray], mode: str) -> None:
    vocab, ids = drawn
    assume(ids.size > 1)
    d2t = stored(ids, mode)
    assume(d2t.any())
    report = analyse_token_map(d2t, mask(ids, vocab), vocab, ids.size)
    assert report.kind == mode
    assert sum(bool(reading.matches_t2d) for reading in report.readings) == 1
    assert report.repair is not None and report.repair.proven
    assert np.array_equal(report.repair.offsets, stored(ids, "offsets"))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300), min_size=1, max_size=60),
    st.none() | st.lists(st.booleans(), min_size=1, max_size=80),
    st.integers(1, 90),
    st.none() | st.integers(1, 70),
)
def test_any_numbers_get_a_verdict_that_arithmetic_supports(
    values: list[int], marks: list[bool] | None, vocab: int, draft: int | None
) -> None:
    report = analyse_token_map(
        np.array(values, dtype=np.int64), None if marks is None else np.array(marks), vocab, draft
    )
    assert 0 < report.confidence <= 1
    assert report.evidence
    usable = len(set(values)) >= 1 and all(0 <= v + j < vocab for j, v in enumerate(values))
    usable = usable and len({v + j for j, v in enumerate(values)}) == len(values)
    if report.kind in (MapKind.OFFSETS, MapKind.ZERO_BY_RIGHT, MapKind.DISAGREES_WITH_T2D, MapKind.UNDECIDED):
        assert usable
    if report.kind in (MapKind.OUT_OF_RANGE, MapKind.REPEATING):
        assert not usable


def wrong_maps(seed: int, vocab: int, draft: int, order: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = kept_tokens(rng, vocab, draft, order=order)
    if seed % 2:  # not reaching the end of the vocabulary, where absolute ids are the hardest to see
        ids = kept_tokens(rng, max(draft + 1, vocab * 3 // 5), draft, order=order)
    return {
        "absolute": stored(ids, "absolute"),
        "double-offset": stored(ids, "double-offset"),
        "repeating": stored(with_repeats(rng, ids), "offsets"),
        "out-of-range": stored(kept_tokens(rng, vocab * 5 // 4, draft, order=order), "offsets"),
    }


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(8, 3000),
    st.floats(0.01, 0.9),
    st.sampled_from(["sorted", "frequency"]),
)
def test_a_wrong_map_without_t2d_is_recognised_or_left_open(
    seed: int, vocab: int, share: float, order: str
) -> None:
    draft = max(3, int(vocab * share))
    for mode, d2t in wrong_maps(seed, vocab, draft, order).items():
        report = analyse_token_map(d2t, None, vocab, draft)
        if report.kind is MapKind.OFFSETS:  # engines can use it; the doubt is stated
            assert report.confidence <= 0.8, mode
            assert any("fit" in question for question in report.open_questions), mode
        else:
            assert not report.kind.sound, mode


FLOOR = {
    # (V, D): share of the wrong maps that must be named without t2d, all else equal to the real thing
    (2374, 500): 1.0,
    (128_256, 32_000): 1.0,
    (151_936, 32_000): 1.0,
}


@pytest.mark.parametrize("order", ["sorted", "frequency"])
@pytest.mark.parametrize("sizes", FLOOR)
def test_the_floor_at_real_sizes(sizes: tuple[int, int], order: str) -> None:
    """Maps that hold the vocabulary's last token, as trained ones do: every mistake is named without t2d."""
    vocab, draft = sizes
    verdicts: Counter[bool] = Counter()
    for seed in range(0, 40 if vocab < 10_000 else 6, 2):
        for mode, d2t in wrong_maps(seed, vocab, draft, order).items():
            report = analyse_token_map(d2t, None, vocab, draft)
            verdicts[report.kind == mode] += 1
            assert report.confidence >= 0.9
    assert verdicts[True] / verdicts.total() >= FLOOR[sizes]


def test_the_surprise_is_the_counted_share_of_maps() -> None:
    """Every set of 5 ids with ends 0 and S − 1, counted: the share whose d2t has no two equal entries."""
    for span, steps in itertools.product((13, 15, 18), (1, 2)):
        sets = [(0, *inner, span - 1) for inner in itertools.combinations(range(1, span - 1), 3)]
        without = [s for s in sets if all(b - a > steps for a, b in itertools.pairwise(s))]
        ids = np.array(without[0], dtype=np.int64) - steps * np.arange(5)
        reading = read_as(ids, steps, span, None)
        assert math.isclose(10 ** -surprise(reading, 0), len(without) / len(sets), rel_tol=1e-9)


def test_unordered_maps_collide_at_least_as_often_as_stated() -> None:
    rng = np.random.default_rng(0)
    counted = [60 - len(set((rng.permutation(900)[:60] - np.arange(60)).tolist())) for _ in range(600)]
    assert np.mean(counted) >= 0.9 * collisions(60, 900)
    assert np.mean(counted) <= 1.3 * collisions(60, 900)
