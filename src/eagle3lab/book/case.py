"""The case study's two kinds of statement that are not claims: what was told, and what is inferred, with its reason.

All that the account states stands in `book/case/told.yaml`; a chapter can print it from there and from nowhere else.
What a chapter measured is a claim (`eagle3lab.book.claim`).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.book.claims import inline_html
from eagle3lab.errors import InputError

TOLD = Path("book/case/told.yaml")


class Statement:
    """A labelled statement, shown as a block in a notebook.

    Args:
        kind: "Told" or "Inferred".
        text: The statement; `backticks` mark code.
        lines: Lines that were quoted, shown as they are.
        because: Why it can be inferred; empty for what was told.
    """

    def __init__(self, kind: str, text: str, lines: Sequence[str] = (), because: str = "") -> None:
        self.kind, self.text, self.lines, self.because = kind, text, tuple(lines), because

    def _repr_html_(self) -> str:
        quoted = "".join(f"{html.escape(line)}\n" for line in self.lines)
        return (
            f'<div class="eagle3lab-statement eagle3lab-{self.kind.lower()}">'
            f"<p><strong>{self.kind}.</strong> {inline_html(self.text)}</p>"
            + (f'<pre tabindex="0">{quoted}</pre>' if quoted else "")
            + (f"<p><em>Because</em> {inline_html(self.because)}</p>" if self.because else "")
            + "</div>"
        )

    def __repr__(self) -> str:
        because = [f"Because {self.because}"] if self.because else []
        return "\n".join([f"{self.kind}. {self.text}", *self.lines, *because])


def told(*names: str) -> Statement:
    """What the account states under these names of `book/case/told.yaml`, as one block.

    Raises:
        InputError: There is no such file above the working folder, or a name is not in it: then it was not told.
    """
    entries = [_entry(name) for name in names]
    return Statement(
        "Told", " ".join(text for text, _ in entries), [line for _, lines in entries for line in lines]
    )


def inferred(text: str, *, because: str) -> Statement:
    """A statement that was not told and follows from what was, with the reason."""
    return Statement("Inferred", text, because=because)


def _entry(name: str) -> tuple[str, list[str]]:
    account = _account()
    if name not in account:
        raise InputError(f"{name!r} was not told", advice=f"Told are: {', '.join(account)}")
    entry = account[name]
    return (entry, []) if isinstance(entry, str) else (entry["text"], entry["lines"])


@cache
def _account() -> dict[str, Any]:
    import yaml

    here = Path.cwd()
    file = next((place / TOLD for place in (here, *here.parents) if (place / TOLD).is_file()), None)
    if file is None:
        raise InputError(
            f"there is no {TOLD} in or above this folder", path=here, advice="Run it in a checkout."
        )
    account: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return account
