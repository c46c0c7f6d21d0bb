"""Acceptance over time, by draft position, and of several servers side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import plotly.graph_objects as go

from eagle3lab.acceptance.points import Point, has_times, points_over_time
from eagle3lab.acceptance.report import AcceptanceReport, ServerReport
from eagle3lab.figures.theme import BAD, GOOD, GRID, NEUTRAL, PALETTE, figure

NOTHING = "nothing accepted"
"""What stands at an accept length of 1."""


def over_time_figure(report: AcceptanceReport, title: str = "Accept length over time") -> go.Figure:
    """Accept length of every server over time, with 95 % bands, restarts, changes and what training promises.

    Args:
        report: The account of one or several logs.
        title: The figure's title.
    """
    measured = [server for server in report.servers if len(server.table["lines"])]
    timed = all(map(has_times, measured))
    made = figure(title, x="time" if timed else "interval", y="tokens per verify step")
    colours = list(PALETTE.values())
    offset = 0
    for index, server in enumerate(measured):
        points = points_over_time(server, timed=timed)
        xs = [point.time if timed else int(str(point.time)) + offset for point in points]
        colour = colours[index % len(colours)]
        name = "accept length" if len(measured) == 1 else f"server {index + 1}"
        _add_band(made, xs, points, colour)
        made.add_scatter(
            x=xs,
            y=[point.accept_length for point in points],
            customdata=[[point.low, point.high, point.lines] for point in points],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 5},
            hovertemplate="%{x}: %{y:.2f} (%{customdata[0]:.2f} to %{customdata[1]:.2f}), %{customdata[2]} lines",
        )
        if index and xs:
            made.add_vline(x=xs[0], line={"color": NEUTRAL, "dash": "dash", "width": 1})
            made.add_annotation(x=xs[0], yref="paper", y=1, text="restart", showarrow=False, xanchor="left")
        offset += len(server.table["lines"])
    made.add_hline(y=1, line={"color": BAD, "dash": "dot", "width": 1}, annotation_text=NOTHING)
    expected = next((server.expected for server in measured if server.expected), None)
    if expected is not None:
        text = f"training promises {expected.accept_length:.2f}"
        made.add_hline(
            y=expected.accept_length, line={"color": GOOD, "dash": "dot", "width": 1}, annotation_text=text
        )
    made.update_layout(showlegend=len(measured) > 1)
    made.update_yaxes(rangemode="tozero")
    return made


def _add_band(made: go.Figure, xs: Sequence[datetime | int], points: Sequence[Point], colour: str) -> None:
    made.add_scatter(
        x=[*xs, *reversed(xs)],
        y=[*(point.high for point in points), *(point.low for point in reversed(points))],
        fill="toself",
        fillcolor=_faint(colour),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        name="95 % interval",
    )


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.22)"


def per_position_figure(server: ServerReport, title: str = "Acceptance by draft position") -> go.Figure:
    """Share of verify steps that accept each draft position, measured beside promised, and the conditional share.

    Args:
        server: A server whose engine prints positions, or whose training accuracies are known, or both.
        title: The figure's title.

    Raises:
        ValueError: neither is known.
    """
    measured = server.per_position.unconditional if server.per_position else ()
    promised = server.expected.per_position if server.expected else ()
    if not measured and not promised:
        raise ValueError("neither measured nor expected acceptance by position is known")
    made = by_position_figure(title)
    if promised:
        made.add_bar(
            x=_positions(promised), y=promised, name="training promises",
            marker={"color": GRID, "line": {"color": NEUTRAL, "width": 1}},
            hovertemplate="position %{x}: %{y:.1%} promised<extra></extra>",
        )  # fmt: skip
    if measured and server.per_position is not None:
        made.add_bar(
            x=_positions(measured), y=measured, name="measured", marker={"color": PALETTE["blue"]},
            hovertemplate="position %{x}: %{y:.1%} of the steps<extra></extra>",
        )  # fmt: skip
        made.add_scatter(
            x=_positions(measured), y=server.per_position.conditional, name="given the ones before", mode="markers",
            marker={"color": PALETTE["vermilion"], "symbol": "diamond", "size": 9},
            hovertemplate="position %{x}: %{y:.1%} of the steps that accepted the ones before<extra></extra>",
        )  # fmt: skip
    return made


def by_position_figure(title: str) -> go.Figure:
    """An empty figure for groups of bars by draft position: shares of the verify steps, from none to all of them."""
    made = figure(title, x="draft position", y="share of verify steps", barmode="group", showlegend=True)
    made.update_xaxes(dtick=1)
    made.update_yaxes(range=[0, 1.05], tickformat=".0%")
    return made


def _positions(shares: Sequence[float]) -> list[int]:
    return list(range(1, len(shares) + 1))


def comparison_figure(
    servers: Sequence[tuple[str, ServerReport]], title: str = "Before and after"
) -> go.Figure:
    """Accept length of several servers with 95 % intervals; each difference from the one before is written beside it.

    Args:
        servers: (label, report) in the order to show; those without a measurement are left out.
        title: The figure's title.
    """
    made = figure(title, x="tokens per verify step")
    shown = [
        (label, server, server.accept_length) for label, server in servers if server.accept_length is not None
    ]
    for index, (label, server, length) in enumerate(shown):
        known = length.known
        made.add_scatter(
            x=[length.mean], y=[label], mode="markers+text", showlegend=False,
            marker={"size": 11, "color": PALETTE["blue"], "symbol": "circle" if known else "circle-open"},
            error_x={
                "type": "data", "symmetric": False, "thickness": 2,
                "array": [length.high - length.mean if known else 0],
                "arrayminus": [length.mean - length.low if known else 0],
            },
            text=[_difference(server) if index else f"{length.mean:.2f}"], textposition="top center",
            hovertemplate=f"%{{y}}: %{{x:.2f}}{'' if known else ' (no interval)'}<extra></extra>",
        )  # fmt: skip
    made.add_vline(x=1, line={"color": BAD, "dash": "dot", "width": 1}, annotation_text=NOTHING)
    made.update_yaxes(autorange="reversed", type="category")
    made.update_xaxes(rangemode="tozero")
    return made


def _difference(server: ServerReport) -> str:
    length, previous = server.accept_length, server.previous
    assert length is not None
    if previous is None or not math.isfinite(previous.low):
        return f"{length.mean:.2f}"
    return f"{length.mean:.2f} ({previous.change:+.2f}, {previous.low:+.2f} to {previous.high:+.2f})"
