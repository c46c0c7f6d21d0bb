"""Claims: the sentences a chapter concludes with, each checked where it is made.

A claim that holds shows a tick, the sentence and the measured value. One that does not hold stops the
chapter, and with it the run. Every claim also travels in the cell's output under `CLAIM_MIME`, so whoever has
the executed notebook has its claims; no side channel is needed.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from eagle3lab.errors import Eagle3labError
from eagle3lab.text import printable

CLAIM_MIME = "application/vnd.eagle3lab.claim+json"

Value = str | int | float | bool | None
"""What a measured or expected value becomes: a JSON scalar."""

# Inline, because JupyterLab knows nothing of the book's style sheet. The green and the red keep a contrast of
# 3:1 or more on white and on the dark page; the text takes the page's own colour.
_STYLE = "border-left:0.25rem solid {colour};padding:0.35rem 0.8rem;margin:0.4rem 0"
_HOLDS, _FAILS = "#1b8a5a", "#d4483b"


class ClaimFailed(Eagle3labError, AssertionError):
    """A claim made in a chapter is not true; the message names the claim and the measured value."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        super().__init__(f"claim does not hold: {claim.to_text().removeprefix('✗ ')}")


@dataclass(frozen=True, slots=True)
class Claim:
    """One checked sentence.

    Attributes:
        text: The sentence. `backticks` mark code.
        passed: Whether it holds.
        measured: The value seen, or None when the sentence says it all.
        expected: The value that was expected, or None.
    """

    text: str
    passed: bool
    measured: Value = None
    expected: Value = None

    def to_text(self) -> str:
        """One plain line: mark, sentence, values."""
        values = "; ".join(f"{label} {value}" for label, value in self._values())
        return f"{self._mark} {printable(self.text)}" + (f" ({values})" if values else "")

    def to_html(self, anchor: str | None = None) -> str:
        """A block that reads on light and dark pages, with `anchor` as its id."""
        state, word, colour = (
            ("holds", "Holds", _HOLDS) if self.passed else ("fails", "Does not hold", _FAILS)
        )
        identity = f' id="{html.escape(anchor, quote=True)}"' if anchor else ""
        values = "".join(
            f' <span class="eagle3lab-claim-value">{label} <code>{html.escape(value)}</code></span>'
            for label, value in self._values()
        )
        classes = f"eagle3lab-claim eagle3lab-claim-{state}"
        mark_style = f"color:{colour};font-weight:bold"
        return (
            f'<div class="{classes}"{identity} style="{_STYLE.format(colour=colour)}">'
            f'<span role="img" aria-label="{word}:" style="{mark_style}">{self._mark}</span> '
            f"{inline_html(self.text)}{values}</div>"
        )

    def to_mime(self) -> dict[str, Any]:
        """The MIME bundle that a notebook stores: HTML, plain text and the claim itself as JSON."""
        return {
            "text/html": self.to_html(),
            "text/plain": self.to_text(),
            CLAIM_MIME: asdict(self),
        }

    @property
    def _mark(self) -> str:
        return "✓" if self.passed else "✗"

    def _values(self) -> Iterator[tuple[str, str]]:
        for label, value in (("measured", self.measured), ("expected", self.expected)):
            if value is not None:
                yield label, show(value)


def claim(text: str, passed: bool, measured: object = None, *, expected: object = None) -> None:
    """State `text` in a chapter, checked: show it with the measured value, or stop the chapter.

    Args:
        text: The sentence, in the indicative; `backticks` mark code.
        passed: Whether it holds: a bool (NumPy's included), so that a forgotten comparison is no tick.
        measured: What was measured. Scalars keep their type in `claims.json`, the rest becomes text.
        expected: What it was compared with, if that helps the reader.

    Raises:
        ClaimFailed: `passed` is false. The claim is shown first, so the notebook keeps it.
        TypeError: `passed` is not a bool.
    """
    if type(passed).__name__ not in {"bool", "bool_"}:  # NumPy calls its own `bool` since 2.0, `bool_` before
        raise TypeError(f"claim({text!r}): `passed` must be a bool, not {type(passed).__name__}")
    made = Claim(text, bool(passed), as_value(measured), as_value(expected))
    _display(made)
    if not made.passed:
        raise ClaimFailed(made)


def as_value(value: object) -> Value:
    """`value` as a JSON scalar: array scalars unpacked, NaN and infinities and everything else as text."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        value = item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def show(value: Value) -> str:
    """`value` for a reader: floats with four significant digits, text made printable."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))


def inline_html(text: str) -> str:
    """`text` escaped for HTML, with `code` in backticks marked up."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(printable(text)))


def _display(made: Claim) -> None:
    """Show the claim in the notebook it is made in; a plain script or test has none."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:  # the reading side alone is installed
        return
    shell = get_ipython()
    if shell is not None:
        shell.display_pub.publish(made.to_mime())
