"""Figures: what is drawn is what the report says, whatever the names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.checkpoint.statistics import tensor_statistics
from eagle3lab.checkpoint.training_state import judge_training
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.loading import simulate_load
from eagle3lab.figures.acceptance import rate_figure
from eagle3lab.figures.checkpoint import key_map_figure, key_matrix_figure, weights_figure
from eagle3lab.figures.theme import short_names
from eagle3lab.figures.vocabulary import cosine_figure
from eagle3lab.vocabulary.target_rows import RowComparison
from tests.support.make_case import materialise
from tests.support.project import ROOT


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    case = json.loads((ROOT / "tests/cases/seed-kimi-layers0-eagle.json").read_text())
    return open_checkpoint(materialise(case, tmp_path_factory.mktemp("case")) / "drafter")


def test_short_names_stay_distinct_and_printable() -> None:
    names = [
        "layers.0.self_attn.q_proj.weight",
        "midlayer.self_attn.q_proj.weight",
        "fc.weight",
        "evil\x1b[31m",
    ]
    labels = short_names(names)
    assert labels["fc.weight"] == "fc"
    assert len(set(labels.values())) == len(names)
    assert labels["midlayer.self_attn.q_proj.weight"] == "midlayer.self_attn.q_proj.weight"
    assert "\x1b" not in "".join(labels.values())


def test_the_key_map_has_a_link_for_every_tensor_and_shows_what_is_dropped(drafter: Checkpoint) -> None:
    plan = simulate_load(drafter, resolve_engine("sglang==0.5.9"))
    (sankey,) = key_map_figure(plan, "Keys").data
    ends = [sankey.node.label[target] for target in sankey.link.target]
    assert len(ends) == len(plan.tensors)
    assert ends.count("dropped, in silence") == len(plan.tensors_with("dropped")) == 10
    assert list(sankey.node.label[: len(plan.tensors)]) == [
        f"{label} " for label in short_names(t.name for t in plan.tensors).values()
    ]


def test_the_matrix_shows_each_outcome_under_its_release(drafter: Checkpoint) -> None:
    plans = {
        spec: simulate_load(drafter, resolve_engine(spec)) for spec in ("sglang==0.5.9", "sglang==0.5.23")
    }
    (heat,) = key_matrix_figure(plans, "Keys").data
    text = dict(zip(heat.y, heat.text, strict=True))
    assert list(heat.x) == list(plans)
    assert list(text["q_proj"]) == ["dropped", "loaded"]
    assert list(text["d2t"]) == ["special", "special"]


def test_every_weight_is_drawn_once_with_its_standard_deviation(drafter: Checkpoint) -> None:
    statistics = tensor_statistics(drafter)
    made = weights_figure(statistics, judge_training(drafter, statistics), "Weights")
    drawn = {label: x for trace in made.data for label, x in zip(trace.y, trace.x, strict=True)}
    assert drawn["fc"] == statistics["fc.weight"].std
    assert set(drawn) == set(short_names(n for n in statistics if n not in {"d2t", "t2d"}).values())


def test_cosines_are_drawn_as_shares_of_all_rows() -> None:
    cosine = np.array([1.0, 1.0, 0.0, np.nan], np.float32)
    (curve,) = cosine_figure({"head": RowComparison("a", "b", cosine, 2, 1.0, 4)}, "Rows").data
    assert sum(curve.y) == pytest.approx(0.75)
    assert curve.y[-1] == 0.5


def test_rate_curves_start_at_what_zero_prints() -> None:
    old, new = rate_figure(5, ["sglang==0.5.9", "sglang==0.5.23", "sglang==0.4.9"]).data
    assert (old.y[0], new.y[0]) == (0.2, 0.0)
    assert old.y[-1] == new.y[-1] == 1.0


def test_no_figure_module_is_without_a_title() -> None:
    source = "".join(path.read_text() for path in Path(ROOT / "src/eagle3lab/figures").glob("*.py"))
    assert "go.Figure()" in source and source.count("go.Figure()") == 1, (
        "figures start from figures.theme.figure"
    )
