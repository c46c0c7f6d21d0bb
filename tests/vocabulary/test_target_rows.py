"""Output head and embeddings against the target's rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.errors import InputError
from eagle3lab.vocabulary.target_rows import compare_embeddings, compare_head, compare_rows, target_tensor
from tests.support.make_case import safetensors_bytes

V, D, H = 300, 120, 16
RNG = np.random.default_rng(3)
TARGET_ROWS = RNG.normal(0, 0.05, (V, H)).astype(np.float32)
IDS = np.sort(RNG.choice(V, D, replace=False))


def folder(path: Path, tensors: dict[str, np.ndarray], config: str = "{}", dtype: str = "F32") -> Checkpoint:
    path.mkdir()
    (path / "config.json").write_text(config)
    if tensors:
        (path / "model.safetensors").write_bytes(
            safetensors_bytes({k: (v, dtype) for k, v in tensors.items()})
        )
    return open_checkpoint(path)


def target(path: Path, prefix: str = "") -> Checkpoint:
    tensors = {
        f"{prefix}lm_head.weight": TARGET_ROWS,
        f"{prefix}model.embed_tokens.weight": TARGET_ROWS[::-1].copy(),
    }
    return folder(path, tensors)


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_rows_taken_from_the_target_are_identical_and_in_order(tmp_path: Path, prefix: str) -> None:
    drafter = folder(
        tmp_path / "d", {"lm_head.weight": TARGET_ROWS[IDS], "embed_tokens.weight": TARGET_ROWS[::-1]}
    )
    whole = target(tmp_path / "t", prefix)
    head = compare_head(drafter, whole, IDS)
    assert head.identical == head.rows == D
    assert head.nearest_is_own == 1.0
    assert head.median_cosine == pytest.approx(1.0, abs=1e-6)
    assert compare_embeddings(drafter, whole).identical == V


def test_shuffled_rows_resemble_other_rows(tmp_path: Path) -> None:
    rolled = np.roll(TARGET_ROWS[IDS], 1, axis=0)
    head = compare_head(folder(tmp_path / "d", {"lm_head.weight": rolled}), target(tmp_path / "t"), IDS)
    assert head.identical == 0
    assert head.nearest_is_own == 0.0
    assert abs(head.median_cosine) < 0.3


def test_a_trained_head_resembles_its_rows_without_being_equal(tmp_path: Path) -> None:
    trained = TARGET_ROWS[IDS] + RNG.normal(0, 0.01, (D, H))
    head = compare_head(folder(tmp_path / "d", {"lm_head.weight": trained}), target(tmp_path / "t"), IDS)
    assert head.identical == 0
    assert head.nearest_is_own == 1.0
    assert 0.9 < head.median_cosine < 1.0


def test_cosines_equal_those_of_plain_numpy_across_block_borders(tmp_path: Path) -> None:
    rows = RNG.normal(0, 1, (2500, 8)).astype(np.float32)
    other = RNG.normal(0, 1, (4000, 8)).astype(np.float32)
    ids = RNG.permutation(4000)[:2500]
    rows[7] = 0  # no direction, no cosine
    drafter = folder(tmp_path / "d", {"lm_head.weight": rows})
    comparison = compare_rows(
        drafter, "lm_head.weight", folder(tmp_path / "t", {"lm_head.weight": other}), "lm_head.weight", ids
    )
    with np.errstate(invalid="ignore"):
        expected = (
            (rows * other[ids]).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(other[ids], axis=1)
        )
    np.testing.assert_allclose(comparison.cosine, expected, atol=1e-5)
    assert np.isnan(comparison.cosine[7])


def test_bfloat16_on_both_sides(tmp_path: Path) -> None:
    drafter = folder(tmp_path / "d", {"lm_head.weight": TARGET_ROWS[IDS]}, dtype="BF16")
    whole = folder(tmp_path / "t", {"lm_head.weight": TARGET_ROWS}, dtype="BF16")
    assert compare_head(drafter, whole, IDS).identical == D


def test_a_tied_target_lends_its_embeddings(tmp_path: Path) -> None:
    tied = folder(tmp_path / "t", {"model.embed_tokens.weight": TARGET_ROWS}, '{"tie_word_embeddings": true}')
    assert target_tensor(tied, "lm_head") == "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("rows", "ids", "message"),
    [
        (TARGET_ROWS[:D, :8], IDS, "does not fit"),
        (TARGET_ROWS[: D - 1], IDS, f"has {D - 1} rows, but the token map names {D}"),
        (TARGET_ROWS[:D], np.arange(D) + V - D + 1, "outside the target's 300 rows"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, rows: np.ndarray, ids: np.ndarray, message: str
) -> None:
    drafter = folder(tmp_path / "d", {"lm_head.weight": rows})
    with pytest.raises(InputError, match=message) as caught:
        compare_head(drafter, target(tmp_path / "t"), ids)
    assert caught.value.tensor == "lm_head.weight"


def test_a_target_without_weights_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no tensor for lm_head"):
        target_tensor(folder(tmp_path / "t", {}), "lm_head")
