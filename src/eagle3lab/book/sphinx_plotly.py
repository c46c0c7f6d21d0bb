"""Plotly figures in the book: one `<figure>` each, and one plotly.min.js for the whole site.

The file comes from the installed plotly package. Pages without a figure do not load it.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

from eagle3lab.book.tables import json_script
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PLOTLY_MIME = "application/vnd.plotly.v1+json"
_MARK = 'class="eagle3lab-figure"'
_SCRIPT = Path(__file__).parent / "assets" / "figures.js"


def figure_html(spec: Mapping[str, Any]) -> str:
    """The `<figure>` for a figure's JSON: its title as label and caption, its data for the page's script.

    The title leaves the drawing and becomes the caption, because Plotly does not wrap titles on a narrow
    screen.

    Raises:
        InputError: The figure has no title.
    """
    layout = dict(spec.get("layout", {}))
    title = layout.pop("title", None)
    text = (title.get("text") if isinstance(title, Mapping) else title) or ""
    if not text.strip():
        raise InputError(
            "a Plotly figure has no title", advice="Make it with eagle3lab.figures.figure(title)"
        )
    label = html.escape(printable(text), quote=True)
    layout["margin"] = {**layout.get("margin", {}), "t": 8}  # a legend above the plot makes room for itself
    height = layout.get("height", 420)
    data = {"data": spec.get("data", []), "layout": layout, "config": spec.get("config", {})}
    return (
        f'<figure {_MARK} aria-label="{label}"><figcaption>{label}</figcaption>'
        f"{json_script(data)}"
        f'<div class="eagle3lab-plot" style="min-height:{int(height)}px"></div>'
        f"<noscript><p>This figure is drawn by JavaScript.</p></noscript></figure>"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Ship the scripts with the site and load them where there are figures."""
    app.connect("builder-inited", _write_assets)
    app.connect("html-page-context", _load_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _write_assets(app: Sphinx) -> None:
    if app.builder.format != "html":
        return
    import plotly

    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", static)
    shutil.copy(_SCRIPT, static / "eagle3lab-figures.js")


def _load_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if doctree is not None and any(_MARK in node.astext() for node in doctree.findall(nodes.raw)):
        app.add_js_file("plotly.min.js", loading_method="defer")
        app.add_js_file("eagle3lab-figures.js", loading_method="defer")
