"""What crosses from target to drafter, drawn: layers captured, and the widths that arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import plotly.graph_objects as go

from eagle3lab.figures.theme import BAD, GOOD, GRID, NEUTRAL, PALETTE, figure
from eagle3lab.serving.account import Crossing, Measurement

PHASES = {"extend": "prompt", "draft_extend": "after verify", "decode": "later drafts"}
"""The drafter's passes in order: over the prompt, over the tokens a verification accepted, once per later draft."""

_STATES = {
    "fused by fc": GOOD,
    "the drafter's own state, fc not needed": NEUTRAL,
    "one state of the target, fc skipped": BAD,
    "not seen": PALETTE["ochre"],
}


def state_of(crossing: Crossing) -> str:
    """What arrived, in words: one of the legend's.

    Later drafts start from the drafter's own state; in the other phases the states are the target's.
    """
    fused, own, skipped, unseen = _STATES
    if crossing.fused is None:
        return unseen
    if crossing.fused:
        return fused
    return own if crossing.phase == "decode" else skipped


def in_order(crossings: Iterable[Crossing]) -> list[Crossing]:
    """The crossings in the order of `PHASES`."""
    return sorted(crossings, key=lambda one: list(PHASES).index(one.phase))


def boundary_figure(runs: Mapping[str, Measurement], hidden_size: int, title: str) -> go.Figure:
    """Width of the incoming hidden states by server and phase, coloured by what became of them.

    Args:
        runs: Label to measurement, in the order to show; a run without a probe shows nothing.
        hidden_size: H of the drafter.
        title: The figure's title.
    """
    rows: list[tuple[float, Crossing]] = []
    heads: list[tuple[float, str]] = []
    at = 0.0
    for label, run in runs.items():
        if run.seen is None:
            continue
        heads.append((at, label))
        for crossing in in_order(run.seen.boundary):
            at += 1
            rows.append((at, crossing))
        at += 1.2
    made = figure(title, x="columns", height=150 + 27 * (len(rows) + len(heads)), barmode="overlay")
    for state, colour in _STATES.items():
        of_state = [(place, one) for place, one in rows if state_of(one) == state]
        if not of_state:
            continue
        made.add_bar(
            x=[one.width for _, one in of_state],
            y=[place for place, _ in of_state],
            orientation="h",
            width=0.72,
            name=state,
            marker={"color": colour},
            text=[_multiple(one.width, hidden_size) for _, one in of_state],
            textposition="outside",
            cliponaxis=False,
            customdata=[[PHASES[one.phase], one.passes] for _, one in of_state],
            hovertemplate="%{customdata[0]}: %{x} columns in %{customdata[1]} passes<extra></extra>",
        )
    for place, label in heads:
        made.add_annotation(
            x=0, y=place, text=f"<b>{label}</b>", showarrow=False, xanchor="left", xshift=-2, yanchor="middle"
        )
    widest = max((one.width for _, one in rows), default=hidden_size)
    made.update_xaxes(range=[0, 1.15 * widest], tickvals=[0, *range(hidden_size, widest + 1, hidden_size)])
    made.update_yaxes(
        tickvals=[place for place, _ in rows],
        ticktext=[PHASES[one.phase] for _, one in rows],
        range=[at - 0.6, -0.6],
        showgrid=False,
        zeroline=False,
        ticks="",
    )
    made.update_layout(showlegend=True, margin={"t": 104})  # three rows of legend on a narrow screen
    return made


def _multiple(width: int, hidden_size: int) -> str:
    whole, rest = divmod(width, hidden_size)
    if rest or not whole:
        return str(width)
    return "H" if whole == 1 else f"{whole}H"


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
