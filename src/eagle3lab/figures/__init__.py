"""Plotly figures that explain: one theme for the rendered book, JupyterLab and a telephone."""

from eagle3lab.figures.theme import PALETTE, figure

__all__ = ["PALETTE", "figure"]
