"""What each fault looked like when it was measured: the data behind the ranking.

`signatures.json` is written by `make matrix` from the measured matrix: for each slug, the
number of measurements, one for each variant of it in a release, and how many of them show each signature of
`eagle3lab.acceptance.signature`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Signatures that differ by a few hundredths of accept length or by what the reader knows of the training.
_ALIKE = (
    frozenset({"dead", "near-dead", "random-head"}),
    frozenset({"partial", "weak-training", "below-expectation"}),
)

SIGNATURES = Path(__file__).parents[1] / "signatures.json"


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one fault.

    Attributes:
        cells: How many there are, over releases and variants of the fault.
        alike: How many of them show the signature in question, or one next to it.
    """

    cells: int
    alike: int


def measured(fault: str, signature: str) -> Measured:
    """How often a fault, put into a healthy head, showed a signature."""
    row = _table().get(fault, {})
    group = next((names for names in _ALIKE if signature in names), frozenset({signature}))
    alike = sum(row.get(name, 0) for name in group)
    return Measured(row.get("cells", 0), min(alike, row.get("cells", 0)))


@cache
def _table() -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads(SIGNATURES.read_text("utf-8"))["faults"]
    return table
