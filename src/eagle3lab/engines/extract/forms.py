"""The error for a statement that has no form that is known."""

from __future__ import annotations

from eagle3lab.engines.facts import Source


class UnreadableError(Exception):
    """A statement has no form that is known here.

    Attributes:
        reason: What is not understood.
        source: The statement.
    """

    def __init__(self, reason: str, source: Source) -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source
