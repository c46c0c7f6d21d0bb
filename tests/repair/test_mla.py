"""Heads with low-rank attention: renamed like any other, for the class that serves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.loading import simulate_load
from eagle3lab.repair import write_repair
from tests.engines.drafters import TensorInfo, raw_config, write_checkpoint
from tests.engines.other_cases import mla_config, mla_head
from tests.repair.heads import NEW, OLD, faults, plan, refused


def checkpoint(folder: Path, tensors: list[TensorInfo]) -> Path:
    """A head over the whole vocabulary: no token map, whose zeros would be a fault of their own."""
    kept = [one for one in tensors if not one.name.endswith(("d2t", "t2d", "lm_head.weight"))]
    return write_checkpoint(folder, mla_config(draft_vocab_size=None), kept)


@pytest.mark.parametrize(
    ("layer", "outer"), [("midlayer.", "model."), ("layers.0.", "model."), ("midlayer.0.", "")]
)
def test_names_are_repaired_for_the_class_of_low_rank_attention(
    tmp_path: Path, layer: str, outer: str
) -> None:
    planned = plan(checkpoint(tmp_path / "head", mla_head(layer, outer)), NEW)
    assert faults(planned) == ["names.dropped"] and not planned.refusals
    assert "Eagle3DeepseekV2ForCausalLM" in planned.changes[0].proof
    write_repair(planned, tmp_path / "repaired")
    loaded = simulate_load(open_checkpoint(tmp_path / "repaired"), resolve_engine(NEW))
    assert not loaded.tensors_with("dropped") and not loaded.parameters_with("left as initialised")


def test_a_healthy_head_is_left_alone_and_a_missing_half_is_refused(tmp_path: Path) -> None:
    assert plan(checkpoint(tmp_path / "whole", mla_head("layers.0.")), NEW).status == "unchanged"
    half = mla_head(without=("kv_a_proj_with_mqa.weight",))
    assert "names.missing" in refused(plan(checkpoint(tmp_path / "half", half), NEW))


def test_a_class_that_is_not_described_is_refused(tmp_path: Path) -> None:
    raw = raw_config(architectures=["MistralLarge3ForCausalLMEagle"])
    planned = plan(write_checkpoint(tmp_path / "head", raw, mla_head()), OLD)
    assert planned.refusals and "does not describe" in planned.refusals[0].reason
