"""A repair, step by step: the accept length that real servers count at each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from eagle3lab.figures.theme import BAD, NEUTRAL, PALETTE, figure

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
