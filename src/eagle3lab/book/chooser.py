"""A form in a page: the reader types what their server shows, and measured faults are ranked by likeness.

Everything it needs is inside it, so it works offline in the rendered book and in a notebook. A test runs its
arithmetic beside the laboratory's.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from eagle3lab.book.tables import json_script

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
