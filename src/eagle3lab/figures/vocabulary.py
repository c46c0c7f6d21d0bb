"""The draft vocabulary drawn: the token map, its coverage, and the head's rows against the target's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from eagle3lab.figures.theme import BAD, GOOD, NEUTRAL, PALETTE, figure
from eagle3lab.vocabulary.coverage import CoverageReport
from eagle3lab.vocabulary.readings import Reading, mostly_ascending
from eagle3lab.vocabulary.target_rows import RowComparison
from eagle3lab.vocabulary.token_map import TokenMapReport

# More points than pixels of a wide screen only make the page heavier.
POINTS = 1500
_STYLE = ((PALETTE["vermilion"], "dash"), (PALETTE["blue"], "solid"), (PALETTE["purple"], "dot"))
_FORMULA = ("d2t", "d2t + arange", "d2t + 2·arange")
# Entries with counts wrap to several lines on a telephone; above the plot they would run into the title.
_LEGEND_BELOW: dict[str, Any] = {"legend": {"y": -0.24, "yanchor": "top"}}


def readings_figure(report: TokenMapReport) -> go.Figure:
    """The target ids that d2t stands for under each of the three readings, and the range of the vocabulary.

    A map in frequency order would be a cloud; its ids are drawn in ascending order, where ids out of range
    and repeats (level stretches) show as well.

    Args:
        report: Of a drafter with a d2t of numbers.

    Raises:
        ValueError: The report has no readings.
    """
    if not report.readings:
        raise ValueError("there is no d2t to draw")
    in_order = mostly_ascending(report.readings[1].ids)
    made = figure(
        "d2t in three readings",
        x="draft id" if in_order else "rows, by ascending id",
        y="target id",
        **_LEGEND_BELOW,
    )
    for reading in report.readings:
        colour, dash = _STYLE[reading.multiple]
        ids = reading.ids if in_order else np.sort(reading.ids)
        rows = _sample(ids.size)
        made.add_scatter(
            x=rows,
            y=ids[rows],
            name=_legend(reading),
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate=f"row %{{x:,}}<br>{_FORMULA[reading.multiple]} = %{{y:,}}<extra></extra>",
        )
    _mark_range(made, report.vocab_size)
    return made


def map_figure(report: TokenMapReport) -> go.Figure:
    """Each draft id with the target id an engine takes it for; ids that cannot be used stand out.

    Args:
        report: Of a drafter whose d2t holds integers.

    Raises:
        ValueError: The report has no `hot_token_id`.
    """
    ids = report.hot_token_id
    if ids is None:
        raise ValueError("an engine computes no ids from this map")
    outside = (ids < 0) | (ids >= report.vocab_size)
    repeated = np.ones(ids.size, dtype=bool)
    repeated[np.unique(ids, return_index=True)[1]] = False
    made = figure("Draft id to target id, as served", x="draft id", y="target id", **_LEGEND_BELOW)
    groups = (
        ("distinct and inside", ~outside & ~repeated, GOOD, "circle"),
        ("repeats an earlier id", ~outside & repeated, PALETTE["ochre"], "diamond"),
        ("outside the vocabulary", outside, BAD, "x"),
    )
    for name, mask, colour, symbol in groups:
        rows = np.flatnonzero(mask)
        if not rows.size:
            continue
        shown = rows[_sample(rows.size)]
        made.add_scatter(
            x=shown,
            y=ids[shown],
            name=f"{name}: {rows.size:,}",
            mode="markers",
            marker={"color": colour, "size": 5, "symbol": symbol, "opacity": 0.75},
            hovertemplate="draft id %{x:,} → target id %{y:,}<extra></extra>",
        )
    made.update_layout(showlegend=True)
    _mark_range(made, report.vocab_size)
    return made


def coverage_figure(coverage: CoverageReport) -> go.Figure:
    """Share of the text covered by the draft vocabulary's k most frequent tokens and by the best k."""
    made = figure(
        f"Draft vocabulary: {coverage.coverage:.1%} of the text",
        x="tokens kept, most frequent first",
        y=f"share of {coverage.tokens:,} tokens",
        **_LEGEND_BELOW,
    )
    size = coverage.draft_vocab_size
    # Evenly spaced on the logarithmic axis.
    rows = np.unique(np.geomspace(1, max(size, 1), min(POINTS, max(size, 1))).round().astype(np.int64)) - 1
    rows = rows[rows < size]
    curves = (
        ("best choice of that size", coverage.best_by_rank, NEUTRAL, "dash"),
        ("draft vocabulary", coverage.by_rank, PALETTE["blue"], "solid"),
    )
    for name, share, colour, dash in curves:
        made.add_scatter(
            x=rows + 1,
            y=share[rows],
            name=name,
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate="%{x:,} tokens cover %{y:.2%}<extra></extra>",
        )
    made.update_xaxes(type="log", dtick=1)
    made.update_yaxes(range=[0, 1.02], tickformat=".0%")
    return made


def _legend(reading: Reading) -> str:
    problems = []
    if reading.outside:
        problems.append(f"{reading.outside:,} outside")
    if reading.repeats:
        problems.append(f"{reading.repeats:,} repeats")
    return f"{reading.name}: {', '.join(problems) if problems else 'usable'}"


def _sample(size: int) -> NDArray[np.int64]:
    """At most `POINTS` indices below `size`, evenly spaced, first and last among them."""
    indices: NDArray[Any] = np.unique(np.linspace(0, size - 1, min(size, POINTS)).round())
    return indices.astype(np.int64)


def _mark_range(made: go.Figure, vocab_size: int) -> None:
    for y in (0, vocab_size):
        made.add_hline(y=y, line={"color": NEUTRAL, "dash": "dashdot", "width": 1})
    made.add_annotation(
        x=0,
        xref="paper",
        xanchor="left",
        y=vocab_size,
        yanchor="bottom",
        showarrow=False,
        text=f"vocabulary: {vocab_size:,} tokens",
        font={"color": NEUTRAL, "size": 12},
    )


_BINS = np.linspace(-1, 1, 81)


def cosine_figure(comparisons: Mapping[str, RowComparison], title: str) -> go.Figure:
    """How similar each row is to the target row that it stands for, as one step curve a comparison.

    Args:
        comparisons: Legend entry → comparison.
        title: The figure's title.
    """
    made = figure(
        title,
        x="cosine of a row with its target row",
        y="share of rows",
        legend={"y": -0.24, "yanchor": "top"},
    )
    for (label, comparison), (colour, dash) in zip(
        comparisons.items(),
        [(PALETTE["blue"], "solid"), (PALETTE["vermilion"], "dash"), (PALETTE["ochre"], "dot")],
        strict=False,
    ):
        finite = comparison.cosine[np.isfinite(comparison.cosine)]
        counts, _ = np.histogram(np.clip(finite, -1, 1), bins=_BINS)
        made.add_scatter(
            x=(_BINS[:-1] + _BINS[1:]) / 2,
            y=counts / max(comparison.rows, 1),
            name=f"{label}: median {comparison.median_cosine:.2f}",
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2, "shape": "hvh"},
            hovertemplate="cosine %{x:.2f}: %{y:.1%} of the rows<extra></extra>",
        )
    made.update_layout(showlegend=True)
    made.update_xaxes(range=[-1.02, 1.05])
    made.update_yaxes(range=[0, 1.05], tickformat=".0%")
    return made
