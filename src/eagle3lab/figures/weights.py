"""What the values of a checkpoint look like, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import plotly.graph_objects as go

from eagle3lab.checkpoint.statistics import TensorStatistics
from eagle3lab.checkpoint.training_state import Judgement
from eagle3lab.figures.names import short_names
from eagle3lab.figures.theme import BAD, GOOD, NEUTRAL, PALETTE, figure

_STATES = {
    "trained": (GOOD, "circle"),
    "untouched": (PALETTE["ochre"], "diamond"),
    "constant": (PALETTE["purple"], "square"),
    "broken": (BAD, "x"),
    "undecided": (NEUTRAL, "circle-open"),
}


def weights_figure(
    statistics: Mapping[str, TensorStatistics], judgements: Mapping[str, Judgement], title: str
) -> go.Figure:
    """The spread of every tensor's values, and whether it looks trained.

    A dot at the standard deviation, a bar from the mean absolute value to it; colour and symbol say what the
    values look like. Integers and booleans (d2t, t2d) are left out.

    Args:
        statistics: From `tensor_statistics`.
        judgements: From `judge_training`, of the same checkpoint.
        title: The figure's title.
    """
    shown = [name for name in statistics if judgements[name].state in _STATES]
    labels = short_names(shown)
    made = figure(
        title, x="standard deviation of the values", height=90 + 24 * max(len(shown), 4), hovermode="closest"
    )
    for state, (colour, symbol) in _STATES.items():
        names = [name for name in shown if judgements[name].state == state]
        if not names:
            continue
        made.add_scatter(
            x=[statistics[name].std if isfinite(statistics[name].std) else None for name in names],
            y=[labels[name] for name in names],
            name=f"{state}: {len(names)}",
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 10},
            customdata=[
                [statistics[n].mean, statistics[n].row_norm_spread, judgements[n].reason] for n in names
            ],
            hovertemplate=(
                "%{y}<br>std %{x:.4f}, mean %{customdata[0]:.4f}, row norms ±%{customdata[1]:.1%}"
                "<br>%{customdata[2]}<extra></extra>"
            ),
        )
    made.update_layout(showlegend=True)
    made.update_xaxes(type="log", dtick="D2")
    made.update_yaxes(categoryorder="array", categoryarray=[labels[name] for name in reversed(shown)])
    return made
