"""HTML for chapters and generated pages, above all tables: escaped, accessible, and readable on a telephone."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence

from eagle3lab.book.claims import inline_html
from eagle3lab.text import printable

# Where a long name may be broken: after a dot, an underscore or a slash behind a letter; version numbers stay whole.
_JOINT = re.compile(r"(?<=[A-Za-z])([._/])(?=\w)")


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", *, search: str = ""
) -> str:
    """A table whose cells are HTML already; on a narrow screen the book's style sheet makes each row a block.

    Args:
        head: Titles of the columns, as HTML.
        rows: Cells, as HTML.
        caption: What stands above the table, as HTML.
        search: Where it is given, the label of a field that the book's script puts above the table: only rows
            that hold every word typed there stay. Without the script the table is whole.
    """
    heads = "".join(f'<th scope="col">{title or "<span class=sr-only>Result</span>"}</th>' for title in head)
    body = "\n".join(
        "<tr>"
        + "".join(f'<td data-label="{title}">{cell}</td>' for title, cell in zip(head, row, strict=True))
        + "</tr>"
        for row in rows
    )
    field = f' data-search="{html.escape(search, quote=True)}"' if search else ""
    return (
        f'<div class="eagle3lab-table"{field}><table class="table">\n'
        + (f"<caption>{caption}</caption>\n" if caption else "")
        + f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def json_script(value: object) -> str:
    """A `<script>` element that holds `value` as JSON, for a script of the page; nothing in it can end the element."""
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


class Table:
    """A table that a notebook displays, as HTML or as plain text.

    Cells may be anything; they are shown as text, with control characters escaped and `code` in backticks marked up.
    """

    def __init__(self, head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> None:
        self.head = list(head)
        self.rows = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
        self.caption = caption

    def _repr_html_(self) -> str:
        rows = ([_JOINT.sub(r"\1<wbr>", inline_html(cell)) for cell in row] for row in self.rows)
        return html_table(
            [html.escape(title, quote=True) for title in self.head], rows, inline_html(self.caption)
        )

    def __repr__(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        ]
        return "\n".join(([self.caption] if self.caption else []) + [line.rstrip() for line in text])
