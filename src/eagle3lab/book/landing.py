"""What the first page shows beside its prose: the drawing of a token's way, and the field that reads a log line."""

from __future__ import annotations

from eagle3lab.acceptance.formulas import formula_ranges
from eagle3lab.book.tables import json_script
from eagle3lab.figures.token_path import token_path

_FIELD = """\
<div class="eagle3lab-rate">
<label for="eagle3lab-rate-line">Paste a decode line, or just its two numbers:</label>
<input id="eagle3lab-rate-line" type="text" spellcheck="false" autocomplete="off"
 value="accept len: 1.00, accept rate: 0.20">
<output for="eagle3lab-rate-line"><noscript>This field needs JavaScript; chapter 1 has the formulas.</noscript></output>
{ranges}
</div>
"""


def landing_parts() -> dict[str, str]:
    """Files that `book/intro.md` includes, by name: HTML."""
    ranges = [
        {"releases": f"{first} to {last}", "formula": formula} for first, last, formula in formula_ranges()
    ]
    return {
        "token-path.html": token_path() + "\n" + token_path(columns=1) + "\n",
        "rate-reader.html": _FIELD.format(ranges=json_script(ranges)),
    }
