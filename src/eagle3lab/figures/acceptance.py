"""Acceptance drawn: by position, over time, of several runs, before and after, and what a rate can mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
import plotly.graph_objects as go

from eagle3lab.acceptance.comparison import Comparison
from eagle3lab.acceptance.formulas import NONE, formula_of, printed_rate
from eagle3lab.acceptance.points import Point, by_position, distribution, has_times, points_over_time
from eagle3lab.acceptance.report import AcceptanceReport, ServerReport
from eagle3lab.engines.release import parse_release
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


Rows = tuple[list[str], list[list[str]]]
"""Heads and rows of a table."""


def distribution_figure(server: ServerReport, title: str = "Requests by accept length") -> go.Figure:
    """How the accept length is spread over the requests (or over the intervals of a log), with its mean.

    Args:
        server: A server with rows.
        title: The figure's title.

    Raises:
        ValueError: There are no rows.
    """
    bins = distribution(server)
    if not bins or server.accept_length is None:
        raise ValueError("nothing was measured")
    what = "requests" if server.source == "sglang-request" else "intervals"
    made = figure(title, x="tokens per verify step", y=f"share of the {what}")
    made.add_bar(
        x=[(one.low + one.high) / 2 for one in bins],
        y=[one.share for one in bins],
        width=[0.92 * (one.high - one.low) for one in bins],
        customdata=[[one.low, one.high, one.rows] for one in bins],
        marker={"color": PALETTE["blue"]},
        hovertemplate=f"%{{customdata[0]:.1f}} to %{{customdata[1]:.1f}}: %{{customdata[2]}} {what}<extra></extra>",
    )
    made.add_vline(x=1, line={"color": BAD, "dash": "dot", "width": 1}, annotation_text=NOTHING)
    mean = server.accept_length.mean
    made.add_vline(
        x=mean,
        line={"color": PALETTE["vermilion"], "width": 2},
        annotation_text=f"mean by verify steps {mean:.2f}",
    )
    # Room above the bars for the two labels.
    made.update_yaxes(tickformat=".0%", range=[0, 1.2 * max(one.share for one in bins)])
    made.update_layout(showlegend=False)
    return made


def change_figure(found: Comparison, title: str = "Before and after, by draft position") -> go.Figure:
    """Two runs by draft position, with the 95 % interval of each difference; the accept lengths stand in the legend.

    Args:
        found: The comparison of the two.
        title: The figure's title.

    Raises:
        ValueError: The runs do not both say what happened at each position.
    """
    if not found.per_position:
        raise ValueError("the runs do not both report acceptance by position")
    made = by_position_figure(title)
    positions = [one.position for one in found.per_position]
    shown = (
        ("before", found.length.before.mean, [one.before for one in found.per_position], PALETTE["sky"]),
        ("after", found.length.after.mean, [one.after for one in found.per_position], PALETTE["blue"]),
    )
    reach = [
        (one.difference.high - one.difference.low) / 2
        if one.difference is not None and math.isfinite(one.difference.low)
        else 0.0
        for one in found.per_position
    ]
    for name, length, shares, colour in shown:
        made.add_bar(
            x=positions, y=shares, name=f"{name}: accept length {length:.2f}", marker={"color": colour},
            error_y={"type": "data", "array": reach, "thickness": 1.5} if name == "after" and any(reach) else None,
            hovertemplate="position %{x}: %{y:.1%} of the steps",
        )  # fmt: skip
    return made


def over_time_table(server: ServerReport, most: int = 12) -> Rows:
    """The numbers behind `over_time_figure`, in at most `most` groups of rows."""
    return ["From", "Rows", "Accept length", "95 % interval"], [
        [str(one.time), str(one.lines), f"{one.accept_length:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
        for one in points_over_time(server, most)
    ]


def per_position_table(server: ServerReport) -> Rows:
    """The numbers behind `per_position_figure`."""
    return ["Position", "Measured", "Given the ones before", "Promised by training"], [
        [str(one.position), *(_share(v) for v in (one.measured, one.conditional, one.promised))]
        for one in by_position(server)
    ]


def distribution_table(server: ServerReport) -> Rows:
    """The numbers behind `distribution_figure`, empty bins left out."""
    return ["From", "To", "Rows", "Share"], [
        [f"{one.low:.1f}", f"{one.high:.1f}", str(one.rows), _share(one.share)]
        for one in distribution(server)
        if one.rows
    ]


def change_table(found: Comparison) -> Rows:
    """The numbers behind `change_figure`."""
    rows = [
        ["accept length", *_pair(found.length.before.mean, found.length.after.mean, ".3f"), _reach(found)]
    ]
    for one in found.per_position:
        d = one.difference
        reach = f"{d.low * 100:+.1f} to {d.high * 100:+.1f} points" if d and math.isfinite(d.low) else ""
        rows.append([f"position {one.position}", *_pair(one.before, one.after, ".1%"), reach])
    return ["", "Before", "After", "Change, 95 % interval"], rows


def runs_table(runs: Sequence[tuple[str, ServerReport]]) -> Rows:
    """The numbers behind `comparison_figure`: many runs side by side."""
    rows = []
    for label, server in runs:
        length = server.accept_length
        shown = f"{length.mean:.2f}" if length else "no data"
        interval = f"{length.low:.2f} to {length.high:.2f}" if length and length.known else ""
        rows.append([label, shown, interval, _share(server.accept_rate), server.signature.name])
    return ["Run", "Accept length", "95 % interval", "Drafts accepted", "Signature"], rows


def _reach(found: Comparison) -> str:
    d = found.length
    return f"{d.low:+.3f} to {d.high:+.3f}" if math.isfinite(d.low) else "one measurement"


def _pair(before: float, after: float, form: str) -> tuple[str, str]:
    return format(before, form), format(after, form)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


_MARKS = ((PALETTE["blue"], "circle"), (PALETTE["ochre"], "diamond"), (PALETTE["purple"], "square"))


def before_after_figure(
    steps: Sequence[tuple[str, Mapping[str, float]]], draft_tokens: int, title: str
) -> go.Figure:
    """A row a step, from the first one tried to the last, a mark for each model that it was measured on.

    Args:
        steps: What was tried, with model to accept length; a model may be missing at a step.
        draft_tokens: D: nothing accepted is 1, everything D.
        title: The figure's title.
    """
    models = list(dict.fromkeys(model for _, lengths in steps for model in lengths))
    made = figure(title, x="tokens per verify step", height=130 + 25 * len(models) * max(len(steps), 2))
    for index, (model, (colour, symbol)) in enumerate(zip(models, _MARKS, strict=False)):
        known = [(row, lengths[model]) for row, (_, lengths) in enumerate(steps) if model in lengths]
        # A step's models lie one under the other; each mark stands on a line from "nothing accepted".
        shift = 0.44 * (index - (len(models) - 1) / 2) if len(models) > 1 else 0.0
        places = [row + shift for row, _ in known]
        made.add_scatter(
            x=[end for _, length in known for end in (1, length, None)],
            y=[end for place in places for end in (place, place, None)],
            mode="lines",
            line={"color": colour, "width": 3},
            hoverinfo="skip",
            showlegend=False,
        )
        made.add_scatter(
            x=[length for _, length in known],
            y=places,
            name=model,
            mode="markers+text",
            marker={"color": colour, "symbol": symbol, "size": 10},
            text=[f"{length:.2f}" for _, length in known],
            textposition="middle right",
            cliponaxis=False,
            customdata=[steps[row][0] for row, _ in known],
            hovertemplate="%{customdata}: %{x:.2f}<extra></extra>",
        )
    made.add_vline(x=1, line={"color": BAD, "dash": "dot", "width": 1})
    made.add_vline(x=draft_tokens, line={"color": NEUTRAL, "dash": "dot", "width": 1})
    made.update_xaxes(range=[0.9, draft_tokens + 0.9], dtick=1)
    made.update_yaxes(
        tickvals=list(range(len(steps))),
        ticktext=[label for label, _ in steps],
        range=[len(steps) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        ticks="",
    )
    made.update_layout(showlegend=True)
    return made


def rate_figure(draft_tokens: int, engines: Sequence[str]) -> go.Figure:
    """What each release prints as accept rate, from no draft accepted to all of them.

    Args:
        draft_tokens: D, at least 2.
        engines: Releases such as "sglang==0.5.9"; those that print no rate are left out.
    """
    made = figure(
        f"Printed accept rate at {draft_tokens} draft tokens",
        x="accept length, tokens per verify step",
        y="accept rate, as printed",
        legend={"y": -0.24, "yanchor": "top"},
    )
    lengths = np.linspace(1, draft_tokens, 60)
    for engine, (colour, dash) in zip(
        dict.fromkeys(engines), [(PALETTE["vermilion"], "solid"), (PALETTE["blue"], "dash")], strict=False
    ):
        formula = formula_of(parse_release(engine))
        if formula in (None, NONE):
            continue
        made.add_scatter(
            x=lengths,
            y=[printed_rate(str(formula), float(length), draft_tokens) for length in lengths],
            name=f"{engine}: {formula}",
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate="accept length %{x:.2f} prints %{y:.2f}<extra></extra>",
        )
    made.add_vline(x=1, line={"color": NEUTRAL, "dash": "dot", "width": 1})
    made.update_layout(showlegend=True)
    made.update_yaxes(range=[0, 1.05])
    return made
