"""Every way a token map goes wrong, sorted and unsorted, with t2d and without."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.token_map import analyse_token_map
from tests.vocabulary.maps import kept_tokens, mask, stored, with_repeats

V, D = 2374, 500
ORDERS = ("sorted", "frequency")


def drawn(seed: int, order: str) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng, kept_tokens(rng, V, D, order=order)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_t2d", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["offsets", "absolute", "double-offset"])
def test_readings_are_told_apart(mode: str, order: str, with_t2d: bool, seed: int) -> None:
    _, ids = drawn(seed, order)
    report = analyse_token_map(stored(ids, mode), mask(ids, V) if with_t2d else None, V, D, D)
    assert report.kind == mode
    assert report.confidence == 1.0 if with_t2d else 0.9 <= report.confidence < 1
    assert report.fault == {"offsets": None}.get(mode, f"vocab.{mode}")
    if mode == "offsets":
        assert report.repair is None
        assert np.array_equal(report.hot_token_id, ids)
    else:
        assert report.repair is not None
        assert report.repair.proven is with_t2d
        assert np.array_equal(report.repair.offsets, ids - np.arange(D))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("with_t2d", [True, False])
def test_repeats_are_counted_and_located(order: str, with_t2d: bool) -> None:
    rng, ids = drawn(7, order)
    repeated = with_repeats(rng, ids)
    report = analyse_token_map(stored(repeated, "offsets"), mask(ids, V) if with_t2d else None, V, D)
    expected = D - len(set(repeated.tolist()))
    first = next(j for j in range(D) if repeated[j] in repeated[:j])
    assert report.kind is MapKind.REPEATING
    assert report.fault == "vocab.range"
    assert report.engine_reading is not None
    assert (report.engine_reading.repeats, report.engine_reading.first_repeat) == (expected, first)
    assert (
        f"at {expected:,} of {D:,} rows, first at draft id {first:,}: {repeated[first]:,}"
        in report.evidence[0]
    )
    if with_t2d and order == "sorted":
        assert report.repair is not None and not report.repair.proven
        assert np.array_equal(report.repair.offsets, ids - np.arange(D))
    else:
        assert report.repair is None


def sparse(seed: int) -> np.ndarray:
    """1,500 of 20,000 tokens, evenly likely: neighbours are few."""
    return np.sort(np.random.default_rng(seed).choice(20_000 - 2_000, 1500, replace=False))


def in_blocks(seed: int) -> np.ndarray:
    """Ten blocks of 30 tokens kept whole, and 1,000 scattered ones."""
    scattered = np.random.default_rng(seed).choice(50_000, 1000, replace=False)
    blocks = np.arange(0, 50_000, 5_000)[:, None] + np.arange(30)
    return np.unique(np.concatenate([scattered, blocks.ravel()]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ids_of", [sparse, in_blocks])
def test_a_second_subtraction_is_seen_in_sparse_and_in_patchy_maps(ids_of, seed: int) -> None:
    ids = ids_of(seed)
    report = analyse_token_map(stored(ids, "double-offset"), None, 60_000, ids.size)
    assert report.kind is MapKind.DOUBLE_OFFSET
    assert report.confidence == 0.9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "ids_of", [lambda seed: kept_tokens(np.random.default_rng(seed), V - D, D), sparse, in_blocks]
)
@pytest.mark.parametrize("share", [0.01, 0.03])
def test_accidental_repeats_are_not_taken_for_a_second_subtraction(ids_of, share: float, seed: int) -> None:
    """The maps leave room at the end, so that adding arange once more would give usable ids."""
    ids = with_repeats(np.random.default_rng(seed), ids_of(seed), share)
    report = analyse_token_map(stored(ids, "offsets"), None, 60_000, ids.size)
    assert report.readings[2].possible
    assert report.kind is MapKind.REPEATING
    assert "doubly offset" in report.open_questions[0]


def test_a_padded_tail_is_not_taken_for_a_second_subtraction() -> None:
    ids = kept_tokens(np.random.default_rng(0), V - D, D)
    ids[300:] = ids[300]
    assert analyse_token_map(stored(ids, "offsets"), None, V, D).kind is MapKind.REPEATING


def test_a_cause_is_less_sure_where_t2d_does_not_support_it() -> None:
    _, ids = drawn(0, "sorted")
    _, other = drawn(1, "sorted")
    alone = analyse_token_map(stored(ids, "absolute"), None, V, D)
    against = analyse_token_map(stored(ids, "absolute"), mask(other, V), V, D)
    assert alone.kind is against.kind is MapKind.ABSOLUTE
    assert (alone.confidence, against.confidence) == (0.98, pytest.approx(0.784))
    assert "fits none of the three readings" in against.evidence[-1]


@pytest.mark.parametrize("order", ORDERS)
def test_the_map_of_a_larger_vocabulary_is_out_of_range(order: str) -> None:
    ids = kept_tokens(np.random.default_rng(3), V * 5 // 4, D, order=order)
    report = analyse_token_map(stored(ids, "offsets"), None, V, D)
    first = int(np.argmax(ids >= V))
    assert report.kind is MapKind.OUT_OF_RANGE
    assert report.engine_reading is not None
    assert report.engine_reading.beyond == np.count_nonzero(ids >= V)
    assert report.evidence[0].endswith(f"first at draft id {first:,}: {ids[first]:,} ≥ {V:,}")


def test_negative_ids_are_out_of_range() -> None:
    d2t = stored(drawn(0, "sorted")[1], "offsets")
    d2t[3] = -9
    report = analyse_token_map(d2t, None, V, D)
    assert report.kind is MapKind.OUT_OF_RANGE
    assert "first at draft id 3: -6 < 0" in report.evidence[0]


def test_a_t2d_of_another_run_disagrees() -> None:
    _, ids = drawn(0, "sorted")
    _, other = drawn(1, "sorted")
    report = analyse_token_map(stored(ids, "offsets"), mask(other, V), V, D)
    shared = len(set(ids.tolist()) & set(other.tolist()))
    assert report.kind is MapKind.DISAGREES_WITH_T2D
    assert report.t2d is not None
    assert (report.t2d.shared, report.t2d.only_in_map, report.t2d.only_in_t2d) == (
        shared,
        D - shared,
        D - shared,
    )
    assert not report.t2d.same_set
    assert f"{shared:,} are in both" in report.evidence[0]
    assert report.open_questions


def test_t2d_agrees_as_a_set_and_in_order_only_when_sorted() -> None:
    for order in ORDERS:
        _, ids = drawn(0, order)
        report = analyse_token_map(stored(ids, "offsets"), mask(ids, V), V, D)
        assert report.t2d is not None
        assert report.t2d.same_set
        assert report.t2d.same_order is (order == "sorted")
        assert report.sorted_rows is (order == "sorted")
        assert bool(report.open_questions) is (order != "sorted")


def test_zeros_are_right_for_the_whole_vocabulary() -> None:
    report = analyse_token_map(np.zeros(D, dtype=np.int64), None, D, D)
    assert report.kind is MapKind.ZERO_BY_RIGHT
    assert report.fault is None


@pytest.mark.parametrize("t2d", ["none", "first", "other", "unfilled"])
def test_zeros_are_a_mistake_for_a_reduced_one(t2d: str) -> None:
    _, ids = drawn(0, "sorted")
    marks = {
        "none": None,
        "first": mask(np.arange(D), V),
        "other": mask(ids, V),
        "unfilled": np.zeros(V, dtype=bool),
    }[t2d]
    report = analyse_token_map(np.zeros(D, dtype=np.int64), marks, V, D)
    assert report.kind is MapKind.ZERO_BY_MISTAKE
    assert report.confidence == (1.0 if t2d in ("other", "unfilled") else 0.95)
    if t2d == "other":
        assert report.repair is not None
        assert np.array_equal(report.repair.offsets, ids - np.arange(D))


def test_zeros_that_leave_out_padding_are_undecided() -> None:
    report = analyse_token_map(np.zeros(151_665, dtype=np.int64), None, 151_936, 151_665)
    assert report.kind is MapKind.UNDECIDED
    assert "padding" in report.open_questions[0]


def test_a_missing_map() -> None:
    _, ids = drawn(0, "sorted")
    report = analyse_token_map(None, mask(ids, V), V, D, D)
    assert report.kind is MapKind.MISSING
    assert report.hot_token_id is None
    assert report.repair is not None and np.array_equal(report.repair.offsets, ids - np.arange(D))
    assert analyse_token_map(None, None, V, None, D).kind is MapKind.MISSING
    assert analyse_token_map(None, None, V, V).kind is MapKind.NOT_NEEDED
    assert analyse_token_map(None, None, V).kind is MapKind.NOT_NEEDED


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("t2d_dtype", ["bool", "uint8", "int64", "float32"])
def test_integers_of_any_width_are_fine(dtype: str, t2d_dtype: str) -> None:
    _, ids = drawn(0, "sorted")
    d2t = stored(ids, "offsets").astype(dtype)
    report = analyse_token_map(d2t, mask(ids, V).astype(t2d_dtype), V, D)
    assert report.kind is MapKind.OFFSETS
    assert report.hot_token_id is not None and report.hot_token_id.dtype == np.int64


def as_bf16(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each value, found among all of them (ties to an even pattern)."""
    patterns = np.arange(0x7F80, dtype=np.uint32)
    positive = (patterns << 16).view(np.float32).astype(np.float64)
    result = []
    for value in values:
        at = int(np.searchsorted(positive, abs(value)))
        around = [i for i in (at - 1, at) if 0 <= i < positive.size]
        best = min(around, key=lambda i: (abs(positive[i] - abs(value)), i % 2))
        result.append(np.copysign(positive[best], value))
    return np.array(result, dtype=np.float32)


@pytest.mark.parametrize("with_t2d", [True, False])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_a_cast_map_is_of_the_wrong_dtype(dtype: str, with_t2d: bool) -> None:
    ids = kept_tokens(np.random.default_rng(5), 12_000, D)
    offsets = stored(ids, "offsets")
    cast = {
        "BF16": as_bf16,
        "F16": lambda x: x.astype(np.float16),
        "F32": lambda x: x.astype(np.float32),
        "F64": lambda x: x.astype(np.float64),
    }[dtype](offsets)
    report = analyse_token_map(cast, mask(ids, 12_000) if with_t2d else None, 12_000, D, D, dtype)
    assert report.kind is MapKind.WRONG_DTYPE
    assert report.fault == "vocab.dtype"
    assert report.hot_token_id is None
    assert dtype in report.evidence[0]
    if with_t2d:
        assert report.repair is not None and report.repair.proven
        assert np.array_equal(report.repair.offsets, offsets)
    elif dtype in ("BF16", "F16"):
        assert report.repair is None
        assert "before the cast" in report.open_questions[0]
    else:
        assert any("holds offsets" in sentence for sentence in report.evidence)


def test_a_rounded_map_of_another_run_is_not_repaired_from_t2d() -> None:
    _, ids = drawn(0, "sorted")
    _, other = drawn(1, "sorted")
    report = analyse_token_map(as_bf16(stored(ids, "offsets")), mask(other, V), V, D, D, "BF16")
    assert report.kind is MapKind.WRONG_DTYPE
    assert report.repair is None or not report.repair.proven


def test_fractions_and_nan_are_counted() -> None:
    d2t = stored(drawn(0, "sorted")[1], "offsets").astype(np.float32)
    d2t[[4, 9]] = np.nan, 0.5
    d2t[11] = np.inf
    report = analyse_token_map(d2t, None, V, D)
    assert report.kind is MapKind.WRONG_DTYPE
    assert any(sentence.startswith("3 of 500 entries are not whole") for sentence in report.evidence)


@pytest.mark.parametrize("length", [1, D - 1, D + 1])
def test_a_map_of_the_wrong_length(length: int) -> None:
    ids = kept_tokens(np.random.default_rng(0), V, D + 1)[:length]
    report = analyse_token_map(stored(ids, "offsets"), None, V, D, length)
    assert report.kind is MapKind.WRONG_LENGTH
    assert report.evidence[0] == f"d2t has {length:,} entries, the config's draft vocabulary 500"
    assert "as many as d2t" in report.evidence[1]
    assert report.hot_token_id is not None and report.hot_token_id.size == length


@pytest.mark.parametrize("shape", [(), (0,), (D, 1), (2, D)])
def test_a_map_that_is_no_vector(shape: tuple[int, ...]) -> None:
    report = analyse_token_map(np.zeros(shape, dtype=np.int64), None, V, D)
    assert report.kind is MapKind.WRONG_LENGTH
    assert report.hot_token_id is None
    assert str(list(shape)) in report.evidence[0]


def test_the_whole_vocabulary_in_another_order_is_a_map() -> None:
    ids = np.random.default_rng(0).permutation(V)
    assert analyse_token_map(stored(ids, "offsets"), None, V, V).kind is MapKind.OFFSETS


@pytest.mark.parametrize("mode", ["absolute", "double-offset"])
def test_the_identity_stored_wrongly(mode: str) -> None:
    ids = np.arange(V)
    assert analyse_token_map(stored(ids, mode), mask(ids, V), V, V).kind == mode
    assert analyse_token_map(stored(ids, mode), None, V, V).kind == mode


def test_every_second_token_is_doubted_and_never_accused() -> None:
    ids = np.arange(D) * 2
    doubted = analyse_token_map(stored(ids, "offsets"), None, V, D)
    assert doubted.kind is MapKind.UNDECIDED
    assert doubted.fault is None
    assert doubted.open_questions
    assert analyse_token_map(stored(ids, "offsets"), mask(ids, V), V, D).kind is MapKind.OFFSETS


def test_absolute_ids_that_fit_are_undecided_with_a_candidate() -> None:
    ids = kept_tokens(np.random.default_rng(0), V - D, D)
    report = analyse_token_map(stored(ids, "absolute"), None, V, D)
    assert report.kind is MapKind.UNDECIDED
    assert report.repair is not None and not report.repair.proven
    assert np.array_equal(report.repair.offsets, ids - np.arange(D))


def test_a_longer_t2d_of_the_same_tokens_agrees() -> None:
    _, ids = drawn(0, "sorted")
    report = analyse_token_map(stored(ids, "offsets"), mask(ids, V + 26), V, D)
    assert report.kind is MapKind.OFFSETS
    assert f"t2d has {V + 26:,} entries where the target has {V:,} tokens" in report.evidence[-1]


def test_a_matching_t2d_does_not_excuse_ids_outside_the_target() -> None:
    _, ids = drawn(0, "sorted")
    smaller = V - 100
    assert analyse_token_map(stored(ids, "offsets"), mask(ids, V), smaller, D).kind is MapKind.OUT_OF_RANGE


def test_extreme_values_neither_wrap_nor_warn() -> None:
    for dtype, value in (("int64", 2**63 - 1), ("int64", -(2**63)), ("uint64", 2**64 - 1)):
        d2t = np.zeros(D, dtype=dtype)
        d2t[5] = value
        report = analyse_token_map(d2t, None, V, D)
        assert report.kind is MapKind.OUT_OF_RANGE
        assert report.engine_reading is not None and report.engine_reading.outside == 1


def test_the_head_is_mentioned_where_it_does_not_fit() -> None:
    _, ids = drawn(0, "sorted")
    report = analyse_token_map(stored(ids, "offsets"), mask(ids, V), V, D, V)
    assert report.kind is MapKind.OFFSETS
    assert report.evidence[-1] == f"lm_head has {V:,} rows for {D:,} entries of d2t"


def test_inputs_are_not_modified() -> None:
    _, ids = drawn(0, "sorted")
    d2t, t2d = stored(ids, "double-offset"), mask(ids, V)
    before = d2t.copy(), t2d.copy()
    analyse_token_map(d2t, t2d, V, D)
    assert np.array_equal(d2t, before[0]) and np.array_equal(t2d, before[1])


@pytest.mark.parametrize(("vocab", "draft"), [(0, 5), (-1, 5), (10, 0)])
def test_sizes_must_be_positive(vocab: int, draft: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        analyse_token_map(np.zeros(3, dtype=np.int64), None, vocab, draft)
