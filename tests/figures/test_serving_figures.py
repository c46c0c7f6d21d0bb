"""Figures of served drafters: what is drawn is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.acceptance.run import Counts
from eagle3lab.figures.acceptance import before_after_figure
from eagle3lab.figures.boundary import boundary_figure, captured_figure, state_of
from eagle3lab.serving.account import Crossing, Measurement, Seen

H = 64


def crossing(phase: str, width: int, fused: bool | None) -> Crossing:
    return Crossing(phase, width, 7, fused, (5, width), (5, H), fused)


def measurement(*crossings: Crossing) -> Measurement:
    seen = Seen(1, "LlamaForCausalLMEagle3", crossings, 14, (), (), None, (), ())
    return Measurement(Counts(10, 20), "requests", 5, "0.5.9", ((1, 2),), 2, 1.0, None, seen, Path("run"))


EAGLE3 = measurement(
    crossing("decode", H, False), crossing("draft_extend", 3 * H, True), crossing("extend", 3 * H, True)
)
EAGLE = measurement(*(crossing(phase, H, False) for phase in ("extend", "draft_extend", "decode")))


def test_a_state_of_one_width_is_the_drafter_s_own_in_a_later_draft_and_a_fault_elsewhere() -> None:
    assert state_of(crossing("extend", 3 * H, True)) == "fused by fc"
    assert state_of(crossing("decode", H, False)) == "the drafter's own state, fc not needed"
    assert state_of(crossing("draft_extend", H, False)) == "one state of the target, fc skipped"
    assert state_of(crossing("extend", 2 * H, None)) == "not seen"


def test_the_boundary_has_a_bar_for_every_server_and_phase_in_order() -> None:
    made = boundary_figure({"three": EAGLE3, "one": EAGLE}, H, "Boundary")
    labels = dict(zip(made.layout.yaxis.tickvals, made.layout.yaxis.ticktext, strict=True))
    bars = {
        place: (labels[place], bar.name, width, text)
        for bar in made.data
        for place, width, text in zip(bar.y, bar.x, bar.text, strict=True)
    }
    own, skipped = "the drafter's own state, fc not needed", "one state of the target, fc skipped"
    assert [bars[place] for place in sorted(bars)] == [
        ("prompt", "fused by fc", 3 * H, "3H"),
        ("after verify", "fused by fc", 3 * H, "3H"),
        ("later drafts", own, H, "H"),
        ("prompt", skipped, H, "H"),
        ("after verify", skipped, H, "H"),
        ("later drafts", own, H, "H"),
    ]
    heads = {note.text: note.y for note in made.layout.annotations}
    assert heads["<b>three</b>"] < sorted(bars)[0]
    assert sorted(bars)[2] < heads["<b>one</b>"] < sorted(bars)[3]
    assert made.layout.title.text == "Boundary"


def test_a_run_without_a_probe_has_no_bar() -> None:
    blind = Measurement(Counts(1, 0), "requests", 5, None, (), 0, 0.0, None, None, Path("run"))
    assert not boundary_figure({"blind": blind}, H, "Boundary").data


def test_points_that_were_not_trained_with_are_marked() -> None:
    made = captured_figure({"old": (3, 7, 10), "new": (2, 6, 9)}, 12, "Captured", trained=(2, 6, 9))
    marks = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in made.data if trace.name}
    assert marks["captured"] == [(2, "new"), (6, "new"), (9, "new")]
    assert marks["captured, not trained with"] == [(3, "old"), (7, "old"), (10, "old")]
    assert [shape.x0 for shape in made.layout.shapes] == [2, 6, 9]
    plain = captured_figure({"old": (3, 7, 10)}, 12, "Captured")
    assert [trace.name for trace in plain.data if trace.name] == ["captured"]


def test_before_and_after_draws_each_model_where_it_was_measured() -> None:
    made = before_after_figure([("first", {"a": 1.0, "b": 1.2}), ("second", {"a": 5.0})], 5, "Case")
    drawn = {
        trace.name: dict(zip(trace.customdata, trace.x, strict=True)) for trace in made.data if trace.name
    }
    assert drawn == {"a": {"first": 1.0, "second": 5.0}, "b": {"first": 1.2}}
    rows = {trace.name: [round(place) for place in trace.y] for trace in made.data if trace.name}
    assert rows == {"a": [0, 1], "b": [0]}
    assert made.layout.yaxis.ticktext == ("first", "second")
    assert [shape.x0 for shape in made.layout.shapes] == [1, 5]


@pytest.mark.parametrize("title", ["", "  "])
def test_each_needs_a_title(title: str) -> None:
    with pytest.raises(ValueError, match="title"):
        boundary_figure({}, H, title)
