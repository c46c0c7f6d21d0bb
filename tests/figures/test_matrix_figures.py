"""The matrix drawn: every figure stands where its fault and column are."""

from __future__ import annotations

import pytest

from eagle3lab.figures.matrix import matrix_figure, pairs_figure, positions_figure


def test_the_heat_map_has_numbers_and_words() -> None:
    made = matrix_figure(
        {"a/b": [(1.5, "measured"), (None, "stops")], "c": [(None, ""), (2.0, "measured")]}, ["x", "y"]
    )
    heat = made.data[0]
    assert [list(row) for row in heat.text] == [["1.50", ""], ["", "2.00"]]
    words = made.data[1]
    assert list(zip(words.x, words.y, words.text, strict=True)) == [("y", "a/b", "stops"), ("x", "c", "")]
    assert list(heat.y) == ["a/b", "c"] and list(heat.x) == ["x", "y"]
    assert made.layout.title.text


def test_small_multiples_keep_healthy_behind_each_fault_and_titles_inside() -> None:
    shares = {f"slug/{k}": (0.1 * k, 0.0) for k in range(1, 6)}
    made = positions_figure(shares, (0.8, 0.5), columns=2)
    assert len(made.data) == 10
    assert [list(one.y) for one in made.data[1::2]] == [list(one) for one in shares.values()]
    assert all(list(one.y) == [0.8, 0.5] for one in made.data[::2])
    assert len(made.layout.annotations) == 5 and all(one.y < 1 for one in made.layout.annotations)


def test_pairs_are_drawn_once_below_the_diagonal() -> None:
    lengths = {("a", "a"): 1.0, ("b", "b"): 2.0, ("a", "b"): 1.1}
    values = [list(row) for row in pairs_figure(["a", "b"], lengths).data[0].z]
    assert values == [[1.0, None], [1.1, 2.0]]
    with pytest.raises(ValueError, match="title"):
        pairs_figure(["a"], {("a", "a"): 1.0}, title=" ")
