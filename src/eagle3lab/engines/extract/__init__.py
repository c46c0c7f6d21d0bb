"""The facts of an SGLang release read from its source: as text and syntax tree, never imported."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.engines.extract.model import (
    Algorithms,
    CaptureWiring,
    DecodeLog,
    Drafter,
    Reading,
    ReleaseFacts,
    Shift,
    Target,
    Unknown,
)

__all__ = [
    "Algorithms",
    "CaptureWiring",
    "DecodeLog",
    "Drafter",
    "Reading",
    "ReleaseFacts",
    "Shift",
    "Target",
    "Unknown",
    "extract",
]


def extract(path: Path) -> ReleaseFacts:
    """The facts of the SGLang source tree at `path`, read as text and syntax tree.

    Args:
        path: A checkout, an installed package, the folder that holds one, or a wheel.

    Raises:
        InputError: There is no SGLang there.
    """
    # The readers are of no use to those who only need the types.
    from eagle3lab.engines.extract.read import read_tree

    return read_tree(path)
