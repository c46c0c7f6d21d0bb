"""From the matrix, and a few measurements besides it, to the signatures that the diagnosis ranks by."""

from __future__ import annotations

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eagle3lab.acceptance.counts import PerPosition
from eagle3lab.acceptance.signature import Evidence, signature
from eagle3lab.acceptance.statistics import Estimate
from eagle3lab.diagnosis.evidence.measured import SIGNATURES
from lab.matrix.likeness import best_cell
from lab.matrix.records import HEALTHY, Cell, Matrix

_REPORTED = Path(__file__).with_name("reported.toml")


def signatures_of(cell: Cell, expected: float | None) -> set[str]:
    """The signatures that a cell's figures have: by themselves, and for a reader who knows what was promised."""
    assert cell.accept_length is not None
    low, high = (float("-inf"), float("inf")) if cell.low is None else (cell.low, cell.high or cell.low)
    length = Estimate(cell.accept_length, low, high, 0.95, cell.prompts, float(cell.prompts))
    positions = PerPosition.from_unconditional(cell.position_rates, cell.verify_steps)
    return {
        signature(
            Evidence(length, per_position=positions, draft_tokens=cell.draft_tokens, expected=promised)
        ).name
        for promised in (None, expected)
    }


def tabulate(matrix: Matrix) -> dict[str, Any]:
    """The content of `signatures.json`: by slug the number of measurements and of those with each signature."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in _counted(matrix):
        healthy = best_cell(matrix, HEALTHY, cell.engine)
        counts[cell.slug].update(["cells", *signatures_of(cell, healthy.accept_length if healthy else None)])
    for row in tomllib.loads(_REPORTED.read_text("utf-8"))["reported"]:
        counts[row["fault"]].update({"cells": row["cells"], row["signature"]: row["cells"]})
    dates = sorted({cell.made for cell in matrix.cells if cell.made})
    return {
        "about": "Measurements by fault and signature; written by `make matrix`.",
        "measured": [dates[0], dates[-1]] if dates else [],
        "faults": {slug: dict(sorted(counts[slug].items())) for slug in sorted(counts)},
    }


def _counted(matrix: Matrix) -> Iterable[Cell]:
    """The cells that count: a fault in a release once, by the server if it was; the reference's agrees with that."""
    chosen: dict[tuple[str, str], Cell] = {}
    for cell in matrix.cells:
        # A fault of one engine's rules is none in another, and would count as a fault without effect.
        foreign = not cell.engine.startswith("sglang==")
        if cell.outcome != "measured" or cell.slug == HEALTHY or not cell.verify_steps or foreign:
            continue
        if cell.way == "server" or (cell.fault, cell.engine) not in chosen:
            chosen[cell.fault, cell.engine] = cell
    return chosen.values()


def write_signatures(matrix: Matrix) -> None:
    """Write `signatures.json` into the package."""
    SIGNATURES.write_text(json.dumps(tabulate(matrix), indent=1) + "\n", encoding="utf-8")
