"""Where an engine puts each tensor of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from eagle3lab.engines.loading.plan import LoadPlan, Outcome, TensorPlan
from eagle3lab.figures.names import short_names
from eagle3lab.figures.theme import BAD, GOOD, GRID, NEUTRAL, PALETTE, figure

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
