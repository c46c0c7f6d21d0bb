"""The accept rate as releases print it, against the accept length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from eagle3lab.acceptance.formulas import NONE, formula_of, printed_rate
from eagle3lab.engines.release import parse_release
from eagle3lab.figures.theme import NEUTRAL, PALETTE, figure


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
