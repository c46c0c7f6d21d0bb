"""The figures of the token map hold what the reports say."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3lab.vocabulary.coverage import measure_coverage
from eagle3lab.vocabulary.token_map import analyse_token_map
from tests.vocabulary.maps import kept_tokens, mask, stored, with_repeats

pytest.importorskip("plotly")
from eagle3lab.figures.vocabulary import POINTS, coverage_figure, map_figure, readings_figure

V, D = 128_256, 32_000


def test_readings() -> None:
    ids = kept_tokens(np.random.default_rng(0), V, D)
    made = readings_figure(analyse_token_map(stored(ids, "offsets"), mask(ids, V), V, D))
    assert made.layout.title.text
    assert [trace.name.split(":")[0] for trace in made.data] == ["absolute ids", "offsets", "doubly offset"]
    assert made.data[1].name == "offsets: usable"
    assert "outside" in made.data[2].name
    assert all(len(trace.x) <= POINTS and trace.mode == "lines" for trace in made.data)
    assert (made.data[1].x[-1], made.data[1].y[-1]) == (D - 1, V - 1)
    assert {line.y0 for line in made.layout.shapes} == {0, V}


def test_ids_in_frequency_order_are_drawn_ascending() -> None:
    ids = kept_tokens(np.random.default_rng(0), V, D, order="frequency")
    made = readings_figure(analyse_token_map(stored(ids, "offsets"), None, V, D))
    assert "ascending" in made.layout.xaxis.title.text
    for trace in made.data:
        assert (np.diff(trace.y) >= 0).all()
    assert (made.data[1].y[0], made.data[1].y[-1]) == (ids.min(), ids.max())
    assert made.data[0].y[0] == (ids - np.arange(D)).min()


def test_the_map_shows_every_kind_of_row() -> None:
    rng = np.random.default_rng(0)
    ids = with_repeats(rng, kept_tokens(rng, 1000, 200))
    ids[7] = 5000
    made = map_figure(analyse_token_map(stored(ids, "offsets"), None, 1000, 200))
    counts = {trace.name.rpartition(": ")[0]: len(trace.x) for trace in made.data}
    assert sum(counts.values()) == 200
    assert counts["outside the vocabulary"] == 1
    assert counts["repeats an earlier id"] == 200 - len(set(ids.tolist()))
    assert all((ids[trace.x] == trace.y).all() for trace in made.data)


def test_coverage() -> None:
    rng = np.random.default_rng(0)
    text = rng.zipf(1.3, 20_000) % V
    report = measure_coverage(text, kept_tokens(rng, V, D))
    made = coverage_figure(report)
    assert f"{report.coverage:.1%}" in made.layout.title.text
    best, own = made.data
    assert len(own.x) <= POINTS
    assert (own.x[0], own.x[-1]) == (1, D)
    assert own.y[-1] == pytest.approx(report.coverage)
    assert (np.asarray(best.y) >= np.asarray(own.y) - 1e-12).all()


def test_coverage_of_an_empty_vocabulary() -> None:
    made = coverage_figure(measure_coverage(np.array([1, 2]), np.array([], dtype=np.int64)))
    assert made.layout.title.text


def test_nothing_to_draw_is_an_error() -> None:
    report = analyse_token_map(None, None, V, D)
    with pytest.raises(ValueError, match="no d2t"):
        readings_figure(report)
    with pytest.raises(ValueError, match="no ids"):
        map_figure(report)
