"""The book's Sphinx extension: Plotly figures from one script for the whole site, and maths as MathML.

plotly.min.js comes from the installed plotly package; pages without a figure do not load it. Chromium, Firefox and
Safari draw MathML themselves: no script, no fonts to fetch, and the page's text colour. LaTeX that cannot be converted
in full is a warning, which the book's build treats as an error.
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
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


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


_NAMESPACE = "http://www.w3.org/1998/Math/MathML"
_LOGGER = logging.getLogger(__name__)


class MathError(ValueError):
    """LaTeX of which a part has no MathML."""


def to_mathml(latex: str, *, block: bool) -> str:
    r"""`latex` as a `<math>` element that carries its source as an annotation.

    Args:
        latex: LaTeX without delimiters. In a block, lines separated by `\\` are aligned at `&`.
        block: Display style on a line of its own, instead of inline.

    Raises:
        MathError: A command is unknown, or an environment was not understood.
    """
    from latex2mathml.converter import convert

    # latex2mathml knows `align` but neither of the two inner environments, which draw the same.
    source = re.sub(r"\\(begin|end)\{(?:aligned|split)\}", r"\\\1{align}", latex.strip())
    if block and r"\\" in source and r"\begin" not in source:
        source = rf"\begin{{align}}{source}\end{{align}}"
    try:
        drawn = ElementTree.fromstring(convert(source, display="block" if block else "inline"))
    except Exception as error:  # the converter lets through whatever its parser meets
        raise MathError(f"{type(error).__name__}: {error}") from error
    left = [text for element in drawn.iter() if (text := element.text or "").startswith("\\")]
    if left:
        raise MathError(f"no MathML for {', '.join(left)}")
    ElementTree.register_namespace("", _NAMESPACE)
    drawn.set("display", "block" if block else "inline")
    semantics = ElementTree.Element(f"{{{_NAMESPACE}}}semantics")
    semantics.extend(list(drawn))
    note = ElementTree.SubElement(semantics, f"{{{_NAMESPACE}}}annotation", encoding="application/x-tex")
    note.text = latex.strip()
    for child in list(drawn):
        drawn.remove(child)
    drawn.append(semantics)
    return ElementTree.tostring(drawn, encoding="unicode")


def _mathml_or_warn(node: nodes.Element, *, block: bool) -> str:
    latex = node.astext()
    try:
        return to_mathml(latex, block=block)
    except MathError as error:
        _LOGGER.warning("maths %r: %s", latex, error, location=node, type="eagle3lab", subtype="mathml")
        return f"<code>{html.escape(latex)}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write inline maths."""
    self.body.append(f'<span class="math notranslate">{_mathml_or_warn(node, block=False)}</span>')
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation, with its number and permalink if it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(f"{_mathml_or_warn(node, block=True)}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Ship the scripts with the site; register the renderer `mathml`, which `html_math_renderer` selects."""
    app.connect("builder-inited", _write_assets)
    app.connect("html-page-context", _load_scripts)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
