"""What commands print with: the choice of a format, JSON, and a console of a sensible width."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Format(StrEnum):
    """How a result is printed."""

    text = "text"
    json = "json"


def print_json(value: Any, *, ascii: bool = True, allow_nan: bool = True) -> None:
    """Print a value as JSON.

    Raises:
        ValueError: It holds a number that JSON does not have, and `allow_nan` is false.
    """
    import json

    text = json.dumps(value, indent=2, ensure_ascii=ascii, allow_nan=allow_nan)
    # A text from a file may hold a lone surrogate, which cannot be encoded; JSON has an escape for it.
    typer.echo(text.encode(errors="backslashreplace").decode())


def console(width: int, *, markup: bool = True) -> Console:
    """A console as wide as the terminal or $COLUMNS says; `width` characters where neither is there to ask."""
    import os
    import sys

    from rich.console import Console

    asked = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=markup, width=None if asked else width)
