"""The line of a release that a fact was read from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """The line of the release that a fact was read from.

    Attributes:
        file: Relative to the engine's source root (`sglang/srt` for SGLang).
        line: 1-based.
        text: The line without surrounding blanks.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"
