"""Which layers' inputs an engine captures, release by release and config by config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from eagle3lab.figures.theme import BAD, GRID, NEUTRAL, PALETTE, figure


def captured_figure(
    rows: Mapping[str, Sequence[int]], layers: int, title: str, trained: Sequence[int] = ()
) -> go.Figure:
    """One line a row: the residual stream from the embedding to the last layer's output, captured points marked.

    Args:
        rows: Label to capture points; point i is the input of layer i, that is the output of layer i - 1.
        layers: n of the target: points go from 0 (the embedding) to n.
        title: The figure's title.
        trained: Points that the head was trained with; others are marked as differing. Empty if not known.
    """
    made = figure(
        title,
        x="point: input of this layer",
        height=150 + 32 * max(len(rows), 2),
        hovermode="closest",
    )
    for label in rows:
        made.add_scatter(
            x=[0, layers], y=[label, label], mode="lines", line={"color": GRID, "width": 4},
            hoverinfo="skip", showlegend=False,
        )  # fmt: skip
    marks = [(point, label) for label, points in rows.items() for point in points]
    usual = [mark for mark in marks if not trained or mark[0] in trained]
    for name, colour, symbol, shown in (
        ("captured", PALETTE["blue"], "circle", usual),
        ("captured, not trained with", BAD, "x", [mark for mark in marks if mark not in usual]),
    ):
        if shown:
            made.add_scatter(
                x=[point for point, _ in shown], y=[label for _, label in shown], name=name, mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 11},
                hovertemplate="%{y}: input of layer %{x}<extra></extra>",
            )  # fmt: skip
    for point in trained:
        made.add_vline(x=point, line={"color": NEUTRAL, "dash": "dot", "width": 1})
    made.update_xaxes(range=[-0.5, layers + 0.5], dtick=1 if layers <= 16 else 10)
    made.update_yaxes(autorange="reversed", type="category")
    made.update_layout(showlegend=True)
    return made
