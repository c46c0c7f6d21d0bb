"""What the target's weights prove or supply: a missing head, a doubtful token map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.safetensors import TensorToWrite, write_safetensors
from eagle3lab.repair import undo_repair, write_repair
from lab.specimen.variant import write_variant
from tests.repair.heads import NEW, OLD, faults, hashes, plan, refused, specforge
from tests.support.make_case import materialise

VOCAB, DRAFT, HIDDEN = 2004, 500, 64


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A healthy head, `drafter`, and a target with weights, `target`."""
    folder = materialise(specforge(), tmp_path / "case")
    rows = np.random.default_rng(3).normal(0, 0.05, (VOCAB, HIDDEN)).astype("<f4")
    write_safetensors(
        folder / "target" / "model.safetensors",
        [TensorToWrite("lm_head.weight", "F32", rows.shape, lambda: (rows.tobytes(),))],
    )
    return folder


def head_of(folder: Path, name: str, **changes: object) -> Path:
    """The healthy head with changes, its lm_head the target's rows."""
    source, target = open_checkpoint(folder / "drafter"), open_checkpoint(folder / "target")
    ids = source.read("d2t") + np.arange(DRAFT)
    rows = {"lm_head.weight": target.read_selected("lm_head.weight", ids)}
    return write_variant(source, folder / name, **{"replace": rows, **changes})  # type: ignore[arg-type]


def test_a_missing_head_is_refused_without_a_target_and_taken_from_it_with_one(
    case: Path, tmp_path: Path
) -> None:
    source = write_variant(open_checkpoint(case / "drafter"), case / "headless", drop=["lm_head.weight"])
    alone = plan(source, OLD)
    assert refused(alone) == {"head.lm-head-missing"}
    assert "--target" in alone.refusals[0].alternatives[0]
    planned = plan(source, OLD, case / "target")
    assert faults(planned) == ["head.lm-head-missing"]
    before = hashes(source)
    write_repair(planned, tmp_path / "out")
    copy = open_checkpoint(tmp_path / "out")
    ids = copy.read("d2t") + np.arange(DRAFT)
    assert np.array_equal(
        copy.read("lm_head.weight"), open_checkpoint(case / "target").read_selected("lm_head.weight", ids)
    )
    undo_repair(tmp_path / "out", tmp_path / "undone")
    assert hashes(tmp_path / "undone") == before


def test_a_whole_vocabulary_leaves_the_head_to_the_engine(case: Path, tmp_path: Path) -> None:
    source = write_variant(
        open_checkpoint(case / "drafter"),
        case / "whole",
        drop=["lm_head.weight", "d2t", "t2d"],
        config={"draft_vocab_size": VOCAB},
    )
    assert refused(plan(source, NEW)) == {"head.lm-head-missing"}
    planned = plan(source, NEW, case / "target")
    assert faults(planned) == ["head.lm-head-missing"]
    written = write_repair(planned, tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").raw_config["draft_vocab_size"] is None
    assert [p.name for p in written.load.parameters_with("taken from target")] == ["lm_head.weight"]


def test_a_target_of_another_width_gives_no_head(case: Path) -> None:
    source = write_variant(open_checkpoint(case / "drafter"), case / "headless", drop=["lm_head.weight"])
    rows = np.zeros((VOCAB, 32), "<f4")
    (case / "target" / "model.safetensors").unlink()
    write_safetensors(
        case / "target" / "model.safetensors",
        [TensorToWrite("lm_head.weight", "F32", rows.shape, lambda: (rows.tobytes(),))],
    )
    (refusal,) = plan(source, OLD, case / "target").refusals
    assert refusal.fault == "head.lm-head-missing"


@pytest.mark.parametrize("lost", ["zeros", "dropped"])
def test_the_targets_rows_prove_a_lost_map(lost: str, case: Path, tmp_path: Path) -> None:
    healthy = head_of(case, "healthy")
    right = open_checkpoint(healthy).read("d2t").copy()
    source = open_checkpoint(healthy)
    if lost == "zeros":
        broken = write_variant(source, case / "broken", replace={"d2t": np.zeros(DRAFT, "<i8")})
    else:
        broken = write_variant(source, case / "broken", drop=["d2t"])
    assert refused(plan(broken, OLD)) == {"vocab.zero" if lost == "zeros" else "vocab.missing"}
    planned = plan(broken, OLD, case / "target")
    assert faults(planned) == ["vocab.zero" if lost == "zeros" else "vocab.missing"]
    assert "100%" in planned.changes[0].proof
    write_repair(planned, tmp_path / "out")
    assert np.array_equal(open_checkpoint(tmp_path / "out").read("d2t"), right)


def test_the_targets_rows_do_not_prove_what_they_contradict(case: Path) -> None:
    """Rows in another order than ascending: nonzero(t2d) is the wrong map, and the target says so."""
    healthy = head_of(case, "healthy")
    source = open_checkpoint(healthy)
    shuffled = source.read("lm_head.weight")[np.random.default_rng(1).permutation(DRAFT)]
    broken = write_variant(source, case / "broken", drop=["d2t"], replace={"lm_head.weight": shuffled})
    assert refused(plan(broken, OLD, case / "target")) == {"vocab.missing"}


def test_norms_before_fc_are_switched_on_where_the_release_has_them(tmp_path: Path) -> None:
    source = materialise(specforge(template__with=["input_norm"]), tmp_path / "case") / "drafter"
    assert refused(plan(source, OLD)) == {"layer.norm-before-fc"}
    planned = plan(source, NEW)
    assert faults(planned) == ["layer.norm-before-fc"]
    assert planned.copy.raw["norm_before_fc"] is True
    assert planned.after is not None and not planned.after.tensors_with("dropped")


@pytest.mark.parametrize(
    ("changes", "fault", "after"),
    [
        ({"target_hidden_size": None}, "head-kind.config-value", {"target_hidden_size": ...}),
        ({"draft_vocab_size": ...}, "head-kind.config-value", {"draft_vocab_size": DRAFT}),
        ({"draft_vocab_size": 400}, "head.lm-head-rows", {"draft_vocab_size": DRAFT}),
        ({"model_type": ...}, "head-kind.config-value", {"model_type": "llama"}),
        ({"num_hidden_layers": 32}, "head-kind.layer-count", {"num_hidden_layers": 1}),
    ],
)
def test_config_values(
    changes: dict[str, object], fault: str, after: dict[str, object], tmp_path: Path
) -> None:
    source = materialise(specforge(), tmp_path / "case") / "drafter"
    config = json.loads((source / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not ...}
    (source / "config.json").write_text(json.dumps(config))
    planned = plan(source, OLD)
    assert (faults(planned), planned.refusals) == ([fault], ())
    for key, value in after.items():
        assert planned.copy.raw.get(key, ...) == value


def test_quantised_heads_are_refused(tmp_path: Path) -> None:
    case = specforge(config__quantization_config={"quant_method": "fp8"})
    assert refused(plan(materialise(case, tmp_path / "a") / "drafter", NEW)) == {"layer.quantisation"}
    scale = {"fc.weight_scale": {"dtype": "F32", "shape": [1], "fill": "scale"}}
    case = specforge(edits={"add": scale})
    assert refused(plan(materialise(case, tmp_path / "b") / "drafter", NEW)) == {"layer.quantisation"}
