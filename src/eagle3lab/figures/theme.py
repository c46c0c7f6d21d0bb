"""What all figures share: colours that read well in light and dark, fonts, and names that fit."""

from __future__ import annotations

from collections.abc import Iterable

import plotly.graph_objects as go
import plotly.io as pio

from eagle3lab.text import printable

PALETTE = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#B8608F",
    "sky": "#3A94CC",
    "ochre": "#B87A00",
}
"""Okabe and Ito's colours, told apart with any colour vision; those too light for a white page are darkened.
Each has a contrast of at least 3:1 on the book's white and on its dark page."""

TEXT = "#767676"
"""A grey with a contrast of 4.5:1 on white and 4.2:1 on JupyterLab's dark page."""

GRID = "rgba(128, 128, 128, 0.28)"
GOOD, BAD, NEUTRAL = PALETTE["green"], PALETTE["vermilion"], "#8A8A8A"
"""For what was loaded, holds or is accepted; for what was dropped or is rejected; for what is neither."""

HEIGHT = 420
"""Pixels; a figure keeps its height at every width."""

_COLORBAR = {
    "thickness": 12,
    "outlinewidth": 0,
    "ticks": "outside",
    "ticklen": 4,
    "x": 1.01,
    "xanchor": "left",
}
_DIVERGING = [[0.0, PALETTE["blue"]], [0.5, "#BDBDBD"], [1.0, PALETTE["vermilion"]]]


def _template() -> go.layout.Template:
    axis = {
        "automargin": True,
        "gridcolor": GRID,
        "linecolor": GRID,
        "zerolinecolor": GRID,
        "tickcolor": GRID,
        "ticks": "outside",
        "ticklen": 4,
        "title": {"standoff": 10},
    }
    return go.layout.Template(
        layout=go.Layout(
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            colorway=list(PALETTE.values()),
            colorscale={"sequential": "Cividis", "sequentialminus": "Cividis", "diverging": _DIVERGING},
            font={"family": "system-ui, sans-serif", "size": 13, "color": TEXT},
            title={
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"t": 10},
                "font": {"size": 16},
            },
            margin={"l": 8, "r": 8, "t": 84, "b": 8},  # the title and two rows of legend
            xaxis=axis,
            yaxis=axis,
            # Above the plot and lying down: a legend at the side leaves nothing of a plot 375 px wide.
            legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
            hoverlabel={"align": "left"},
            dragmode=False,  # on a telephone a finger on the figure scrolls the page
        ),
        data={
            # Neither takes these from the layout: heatmaps have a scale of their own, Sankey links a light
            # grey.
            "heatmap": [go.Heatmap(colorscale="Cividis", colorbar=_COLORBAR)],
            "sankey": [go.Sankey(link={"color": "rgba(128, 128, 128, 0.4)"}, node={"line": {"width": 0}})],
        },
    )


pio.templates["eagle3lab"] = _template()


def figure(
    title: str, *, x: str | None = None, y: str | None = None, height: int = HEIGHT, **layout: object
) -> go.Figure:
    """An empty figure in the theme.

    Args:
        title: What the figure shows; in the book its caption and accessible label, so never empty.
        x: Title of the x axis, with its unit.
        y: Title of the y axis, with its unit.
        height: Pixels.
        **layout: Further `plotly.graph_objects.Layout` properties.

    Raises:
        ValueError: `title` is empty.
    """
    if not title.strip():
        raise ValueError("a figure needs a title: it is its caption and its accessible label")
    made = go.Figure()
    made.update_layout(
        template="eagle3lab",
        title_text=title,
        xaxis_title_text=x,
        yaxis_title_text=y,
        height=height,
        **layout,
    )
    return made


_IMPLIED = {"weight", "self_attn", "mlp", "model", "midlayer", "layers"}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Full name → a label without the parts that every drafter has; the full name where two would be equal.

    `layers.0.self_attn.q_proj.weight` becomes `q_proj`. Names are untrusted and come out printable.
    """
    names = list(names)
    labels = {name: _shorten(name) for name in names}
    shared = {label for label in labels.values() if list(labels.values()).count(label) > 1}
    return {name: printable(name if label in shared else label, 40) for name, label in labels.items()}


def _shorten(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _IMPLIED and not part.isdigit()]
    return ".".join(parts) or name
