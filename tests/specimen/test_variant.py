"""Copies of a checkpoint with one thing changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.checkpoint.config import flat_config
from eagle3lab.errors import InputError
from lab.specimen.variant import write_flat, write_variant
from tests.support.make_case import materialise
from tests.support.project import ROOT


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    case = json.loads((ROOT / "tests/cases/multi-speculators-qwen3-layer-0.5.9.json").read_text())
    return open_checkpoint(materialise(case, tmp_path / "case") / "drafter")


def stored(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {name: checkpoint.read_stored(name).tobytes() for name in checkpoint.tensors}


def test_a_plain_copy_has_the_same_bytes_and_the_original_is_untouched(
    source: Checkpoint, tmp_path: Path
) -> None:
    before = (source.path / "model.safetensors").read_bytes()
    copy = open_checkpoint(write_variant(source, tmp_path / "copy"))
    assert stored(copy) == stored(source)
    assert {n: (t.dtype, t.shape) for n, t in copy.tensors.items()} == {
        n: (t.dtype, t.shape) for n, t in source.tensors.items()
    }
    assert copy.raw_config == source.raw_config
    assert (source.path / "model.safetensors").read_bytes() == before


def test_only_what_was_asked_for_changes(source: Checkpoint, tmp_path: Path) -> None:
    doubled = source.read("d2t") - np.arange(len(source.read("d2t")))
    copy = open_checkpoint(
        write_variant(
            source,
            tmp_path / "copy",
            rename=lambda name: name.replace("layers.0.", "midlayer."),
            drop=["t2d"],
            replace={"d2t": doubled},
            config={"note": "changed"},
        )
    )
    kept = {name.replace("layers.0.", "midlayer."): value for name, value in stored(source).items()}
    del kept["t2d"]
    assert stored(copy) == kept | {"d2t": doubled.astype("<i8").tobytes()}
    assert copy.raw_config == {**source.raw_config, "note": "changed"}


def test_a_flat_copy_says_the_same_in_the_dialect_that_sglang_reads(
    source: Checkpoint, tmp_path: Path
) -> None:
    assert source.config.dialect == "speculators"
    flat = open_checkpoint(write_flat(source, tmp_path / "flat")).config
    assert flat.dialect == "huggingface"
    for field in flat_config(source.config).keys() - {
        "architectures",
        "model_type",
        "torch_dtype",
        "rope_scaling",
    }:
        assert getattr(flat, field) == getattr(source.config, field), field


def test_mistakes_are_refused(source: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="matches 'nothing\\*'"):
        write_variant(source, tmp_path / "a", drop=["nothing*"])
    with pytest.raises(InputError, match="twice"):
        write_variant(source, tmp_path / "b", rename=lambda name: "same")
    with pytest.raises(InputError, match="not empty"):
        write_variant(source, source.path)
