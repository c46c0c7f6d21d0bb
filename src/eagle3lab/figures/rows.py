"""The drafter's rows held against the target's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from eagle3lab.figures.theme import PALETTE, figure
from eagle3lab.vocabulary.target_rows import RowComparison

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
