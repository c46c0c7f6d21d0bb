"""What chapters display beside figures: tables, a form that ranks measured faults, facts of a run; escaped HTML."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.book.claims import inline_html
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.serving.account import Measurement


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


_SCRIPT = Path(__file__).parent / "assets" / "chooser.js"


class Chooser:
    """The form.

    Args:
        retained: Fault to what it leaves of a healthy head's conditional shares, position by position.
        promised: Conditional shares of the healthy head, the form's first values.
        links: Fault to the page about it; a fault without one is shown as text.
        label: What the figures come from, in a few words.
    """

    def __init__(
        self,
        retained: Mapping[str, Sequence[float]],
        promised: Sequence[float],
        links: Mapping[str, str] | None = None,
        label: str = "",
    ) -> None:
        self._retained = {name: [round(part, 4) for part in parts] for name, parts in retained.items()}
        self._promised = [round(share, 3) for share in promised]
        self._links = dict(links or {})
        self._label = label

    def _repr_html_(self) -> str:
        steps = range(1, len(self._promised) + 1)
        data = {"retained": self._retained, "promised": self._promised, "links": self._links}

        def field(kind: str, position: int, value: str) -> str:
            return (
                f'<label>{position} <input type="number" min="0" max="1" step="any" inputmode="decimal" '
                f'data-{kind}="{position}" value="{value}" style="width:5em"></label> '
            )

        promised = "".join(field("promised", k, str(self._promised[k - 1])) for k in steps)
        shares = "".join(field("share", k, "") for k in steps)
        return (
            '<form class="eagle3lab-chooser" onsubmit="return false">'
            f"{json_script(data)}"
            '<p><label>Accept length <input type="number" min="1" step="any" inputmode="decimal" data-length '
            'style="width:5em"></label>, or better, the share of verify steps that accepted position '
            f"{shares}</p><p>Accuracy that training promised at position, given the ones before: {promised}</p>"
            f'<ol data-result aria-live="polite"></ol><p><small>{html.escape(self._label)}</small></p>'
            f"<noscript><p>This form is worked by JavaScript.</p></noscript></form>"
            f"<script>{_SCRIPT.read_text('utf-8')}</script>"
        )

    def __repr__(self) -> str:
        return f"a form over {len(self._retained)} measured faults, for a notebook or a page"


def printed(run: Measurement) -> str:
    """Accept length and rate of the log's last decode line, as the release prints them: `1.00, 0.20`."""
    found = re.search(r"accept len: ([\d.]+), accept rate: ([\d.]+)", run.last_decode_line or "")
    return ", ".join(found.groups()) if found else ""


def dropped(run: Measurement) -> list[str]:
    """The names that went nowhere, `t2d` aside: it belongs to training, and no engine reads it.

    Raises:
        ValueError: The run was measured without the probe.
    """
    if run.seen is None:
        raise ValueError("the run was measured without the probe")
    return [name for name in run.seen.dropped if name != "t2d"]
