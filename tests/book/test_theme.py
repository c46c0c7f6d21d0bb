"""The figure theme: readable on both pages, and every figure labelled."""

from __future__ import annotations

import plotly.io as pio
import pytest

from eagle3lab.figures import PALETTE, figure
from eagle3lab.figures.theme import NEUTRAL, TEXT

LIGHT, DARK = "#ffffff", "#121212"


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", [LIGHT, DARK])
@pytest.mark.parametrize("colour", [*PALETTE.values(), NEUTRAL])
def test_colours_stand_out_from_both_pages(colour: str, ground: str) -> None:
    assert _contrast(colour, ground) >= 3.0


@pytest.mark.parametrize(("ground", "least"), [(LIGHT, 4.5), (DARK, 4.0)])
def test_text_reads_on_both_pages(ground: str, least: float) -> None:
    assert _contrast(TEXT, ground) >= least


def test_a_figure_is_in_the_theme_and_has_its_title() -> None:
    made = figure("What it shows", x="step", y="share", height=300)
    assert made.layout.template == pio.templates["eagle3lab"]
    assert (made.layout.title.text, made.layout.xaxis.title.text, made.layout.height) == (
        "What it shows",
        "step",
        300,
    )
    assert made.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"


@pytest.mark.parametrize("title", ["", "  "])
def test_a_figure_without_a_title_cannot_be_made(title: str) -> None:
    with pytest.raises(ValueError, match="needs a title"):
        figure(title)
