"""The errors that a user's input can cause: one sentence that names the place, one that says what to do."""

from __future__ import annotations

from os import PathLike, fspath

from eagle3lab.text import printable


class Eagle3labError(Exception):
    """Base of every error that eagle3lab raises on purpose."""


class InputError(Eagle3labError):
    """Something the user gave cannot be read as what it claims to be.

    Args:
        problem: What is wrong, one sentence without the place, no trailing full stop needed.
        path: The file or folder at fault.
        tensor: The tensor name at fault (untrusted; escaped when printed).
        line: 1-based line number in `path`.
        advice: What to do about it, one sentence.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | PathLike[str] | None = None,
        tensor: str | None = None,
        line: int | None = None,
        advice: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = fspath(path) if path is not None else None
        self.tensor = tensor
        self.line = line
        self.advice = advice
        super().__init__(str(self))

    def __str__(self) -> str:
        """`path:line: tensor 'name': problem (advice)`, with every untrusted part escaped."""
        place = ""
        if self.path is not None:
            place = printable(self.path) + (f":{self.line}" if self.line is not None else "") + ": "
        if self.tensor is not None:
            place += f"tensor '{printable(self.tensor)}': "
        advice = f". {printable(self.advice)}" if self.advice else ""
        return f"{place}{printable(self.problem.rstrip('.'))}{advice}"
