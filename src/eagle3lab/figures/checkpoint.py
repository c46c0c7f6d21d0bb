"""A checkpoint drawn: where an engine puts each tensor, and which look trained."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import plotly.graph_objects as go

from eagle3lab.checkpoint.statistics import TensorStatistics
from eagle3lab.checkpoint.training_state import Judgement
from eagle3lab.engines.loading.plan import LoadPlan, Outcome, TensorPlan
from eagle3lab.figures.theme import BAD, GOOD, GRID, NEUTRAL, PALETTE, figure, short_names

_DROPPED, _STOPPED, _SKIPPED = "dropped, in silence", "the engine stops", "skipped"
_COLOUR: dict[Outcome, str] = {
    "loaded": GOOD,
    "dropped": BAD,
    "rejected": PALETTE["purple"],
    "not reached": NEUTRAL,
    "special": PALETTE["blue"],
}
# One code an outcome, for a heat map with a stepped colour scale.
_CODES: dict[Outcome, int] = {"loaded": 0, "special": 1, "dropped": 2, "rejected": 3, "not reached": 4}


def key_map_figure(plan: LoadPlan, title: str) -> go.Figure:
    """A Sankey diagram from the checkpoint's tensors (left) to the drafter's parameters (right).

    Every tensor counts the same, whatever its size: what matters is whether it arrives. Parameters that
    nothing reaches stand at the right with a mark, since a Sankey diagram has no node without a link.
    """
    tensors = short_names(tensor.name for tensor in plan.tensors)
    parameters = short_names(parameter.name for parameter in plan.parameters)
    left = [f"{tensors[tensor.name]} " for tensor in plan.tensors]  # a blank keeps both sides' labels apart
    right: list[str] = []
    links: list[tuple[int, int, str, str]] = []
    for index, tensor in enumerate(plan.tensors):
        destination = _destination(tensor, parameters)
        if destination not in right:
            right.append(destination)
        links.append((index, len(left) + right.index(destination), _COLOUR[tensor.outcome], tensor.reason))
    colours = [_COLOUR[tensor.outcome] for tensor in plan.tensors]
    colours += [BAD if name == _DROPPED else NEUTRAL for name in right]
    made = figure(title, height=110 + 26 * max(len(left), 4))
    made.add_sankey(
        arrangement="snap",
        node={"label": left + right, "color": colours, "pad": 12, "thickness": 10},
        link={
            "source": [source for source, *_ in links],
            "target": [target for _, target, *_ in links],
            "value": [1] * len(links),
            "color": [_faint(colour) for *_, colour, _ in links],
            "customdata": [reason for *_, reason in links],
            "hovertemplate": "%{source.label}→ %{target.label}<br>%{customdata}<extra></extra>",
        },
    )
    return made


def key_matrix_figure(plans: Mapping[str, LoadPlan], title: str) -> go.Figure:
    """Tensors (rows) against engines or settings (columns), coloured by what becomes of them.

    Args:
        plans: Column heading → the plan of the same checkpoint.
        title: The figure's title.
    """
    names = list(dict.fromkeys(tensor.name for plan in plans.values() for tensor in plan.tensors))
    labels = short_names(names)
    made = figure(title, height=120 + 24 * max(len(names), 4))
    codes, texts = [], []
    for name in names:
        found = [next((t for t in plan.tensors if t.name == name), None) for plan in plans.values()]
        codes.append([None if tensor is None else _CODES[tensor.outcome] for tensor in found])
        texts.append(["" if tensor is None else tensor.outcome for tensor in found])
    steps = len(_CODES)
    scale = [
        [edge, _COLOUR[outcome]]
        for outcome, code in _CODES.items()
        for edge in (code / steps, (code + 1) / steps)
    ]
    made.add_heatmap(
        z=codes,
        x=list(plans),
        y=[labels[name] for name in names],
        text=texts,
        texttemplate="%{text}",
        textfont={"color": "#FFFFFF", "size": 12},
        colorscale=scale,
        zmin=-0.5,
        zmax=steps - 0.5,
        showscale=False,
        xgap=3,
        ygap=3,
        hovertemplate="%{y} in %{x}: %{text}<extra></extra>",
    )
    made.update_yaxes(autorange="reversed", showgrid=False)
    made.update_xaxes(type="category", side="top", showgrid=False, linecolor=GRID)
    made.update_layout(margin={"t": 84})
    return made


def _destination(tensor: TensorPlan, parameters: Mapping[str, str]) -> str:
    if tensor.parameter is not None and tensor.outcome in {"loaded", "special"}:
        return parameters.get(tensor.parameter, tensor.parameter)
    return {"dropped": _DROPPED, "special": _SKIPPED}.get(tensor.outcome, _STOPPED)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.35)"


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
