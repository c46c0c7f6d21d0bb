"""Requests of a run by their accept length, and two runs by draft position; with the tables behind the plots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from eagle3lab.acceptance.comparison import Comparison
from eagle3lab.acceptance.points import by_position, distribution, points_over_time
from eagle3lab.acceptance.report import ServerReport
from eagle3lab.figures.acceptance import NOTHING, by_position_figure
from eagle3lab.figures.theme import BAD, PALETTE, figure

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
