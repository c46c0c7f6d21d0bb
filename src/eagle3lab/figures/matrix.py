"""The matrix of measured faults: a heat map, acceptance by position in small multiples, and two faults at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from eagle3lab.figures.theme import NEUTRAL, PALETTE, figure

_ROW, _AROUND, _TITLES = 19, 130, 34
"""Pixels: a row of the heat map, what stands around a plot, two lines of a small plot's title."""
_STOPS = {"stops": "stops", "timeout": "hangs", "not applicable": "", "not modelled": "", "not made": ""}


def matrix_figure(
    rows: Mapping[str, Sequence[tuple[float | None, str]]],
    columns: Sequence[str],
    title: str = "Accept length with each fault",
) -> go.Figure:
    """Accept length by fault and column.

    Args:
        rows: Fault to one (accept length or None, outcome) a column.
        columns: What was measured where.
        title: The figure's title.
    """
    names = list(rows)
    made = figure(title, height=_AROUND + _ROW * len(names))
    values = [[length for length, _ in row] for row in rows.values()]
    texts = [[f"{length:.2f}" if length is not None else "" for length, _ in row] for row in rows.values()]
    words = [
        (column, name, _STOPS.get(outcome, ""))
        for name, row in rows.items()
        for column, (length, outcome) in zip(columns, row, strict=True)
        if length is None
    ]
    hover = [
        [f"{length:.3f} tokens a step" if length is not None else outcome for length, outcome in row]
        for row in rows.values()
    ]
    made.add_heatmap(
        z=values,
        x=list(columns),
        y=names,
        text=texts,
        customdata=hover,
        texttemplate="%{text}",
        hovertemplate="%{y}, %{x}: %{customdata}<extra></extra>",
        zmin=1,
        colorscale="Cividis",
        xgap=2,
        ygap=1,
        showscale=False,  # every field has its number, and a telephone no room
        hoverongaps=False,
    )
    # Not in the heat map: on a field without a colour it would write in one that a dark page swallows.
    made.add_scatter(
        x=[column for column, _, _ in words],
        y=[name for _, name, _ in words],
        text=[word for _, _, word in words],
        mode="text",
        textfont={"size": 11},
        hoverinfo="skip",
        showlegend=False,
    )
    made.update_yaxes(autorange="reversed", tickfont={"size": 10}, showgrid=False)
    made.update_xaxes(side="top", tickangle=0, showgrid=False)
    return made


def positions_figure(
    faults: Mapping[str, Sequence[float]],
    healthy: Sequence[float],
    title: str = "Share of verify steps that accept each position",
    columns: int = 3,
) -> go.Figure:
    """One small plot a fault: its shares by position in front of the healthy head's.

    Args:
        faults: Name to the share of verify steps that accepted position 1, 2, …
        healthy: The same of the healthy head.
        title: The figure's title.
        columns: Plots in a row.
    """
    rows = -(-len(faults) // columns)
    grid = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes=True,
        subplot_titles=[name.replace("/", "<br>") for name in faults],
        vertical_spacing=min(0.16, 0.5 / max(1, rows)),
        horizontal_spacing=0.03,
    )
    made = figure(title, height=_AROUND + 170 * rows)
    for place, shares in enumerate(faults.values()):
        where = {"row": place // columns + 1, "col": place % columns + 1}
        positions = list(range(1, max(len(healthy), len(shares)) + 1))
        grid.add_bar(
            x=positions, y=list(healthy), name="healthy", marker_color=NEUTRAL, opacity=0.45, showlegend=place == 0,
            hovertemplate="position %{x}: %{y:.1%} healthy<extra></extra>", **where,
        )  # fmt: skip
        grid.add_bar(
            x=positions, y=list(shares), name="with the fault", marker_color=PALETTE["blue"], showlegend=place == 0,
            width=0.5, hovertemplate="position %{x}: %{y:.1%}<extra></extra>", **where,
        )  # fmt: skip
    # The page gives a figure no margin at the top: the first row's titles need room inside the plot.
    room = 1 - _TITLES / (_AROUND + 170 * rows)
    for axis in grid.select_yaxes():
        axis.domain = [end * room for end in axis.domain]
    for title_of_one in grid.layout.annotations:
        title_of_one.y *= room
    layout = grid.layout.to_plotly_json()
    layout.pop("template", None)
    made.update_layout(**layout)
    made.add_traces(grid.data)
    made.update_layout(barmode="overlay", legend={"y": -0.06, "yanchor": "top"})
    made.update_annotations(font_size=11)
    made.update_xaxes(dtick=1)
    made.update_yaxes(range=[0, 1], tickformat=".0%")
    return made


def pairs_figure(
    names: Sequence[str],
    lengths: Mapping[tuple[str, str], float | None],
    title: str = "Accept length with two faults at once",
) -> go.Figure:
    """Accept length of every two faults together; on the diagonal each by itself.

    Args:
        names: The faults, in the order in which they act.
        lengths: (first, second) to the accept length, both orders alike; None where the engine stops.
        title: The figure's title.
    """
    known = {frozenset(pair): length for pair, length in lengths.items()}
    values = [
        [known.get(frozenset((row, column))) if at <= down else None for at, column in enumerate(names)]
        for down, row in enumerate(names)
    ]
    made = figure(title, height=460)
    labels = [name.replace("/", "<br>") for name in names]
    made.add_heatmap(
        z=values,
        x=labels,
        y=labels,
        texttemplate="%{z:.2f}",
        zmin=1,
        colorscale="Cividis",
        xgap=2,
        ygap=2,
        showscale=False,
        hovertemplate="%{y} and %{x}: %{z:.2f}<extra></extra>",
        hoverongaps=False,
    )
    for down, row in enumerate(names):
        for at, column in enumerate(names[: down + 1]):
            if known.get(frozenset((row, column)), 0.0) is None:
                made.add_annotation(x=labels[at], y=labels[down], text="stops", showarrow=False)
    made.update_yaxes(autorange="reversed", tickfont={"size": 10}, showgrid=False)
    made.update_xaxes(tickangle=-90, tickfont={"size": 10}, showgrid=False)
    return made
