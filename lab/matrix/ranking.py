"""What measured faults look like: data that the diagnosis ranks by, and which fault looks like what a reader sees.

The ranking's data are fitted to one half of the measured cells and graded on the other, which half a cell is in being
a matter of its name's hash.

A fault is measured on the specimen, whose healthy head accepts some share of the drafts at each position. What a fault
leaves of those shares is carried over to another head: retained(k) = the share at position k given the ones before,
over the same of the healthy head. A better head with the same fault is expected to keep the same part of its shares.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any
from unittest import mock

from eagle3lab.acceptance.counts import PerPosition
from eagle3lab.acceptance.signature import Evidence, signature
from eagle3lab.acceptance.statistics import Estimate
from eagle3lab.diagnosis import ranking as diagnosis_ranking
from lab.matrix.records import HEALTHY, Cell, Matrix, Way, matrix_file, read_matrix

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


def half(cell: Cell) -> int:
    """0, which the ranking is fitted to, or 1, which grades it: a matter of the names of fault and release."""
    return hashlib.sha256(f"{cell.fault} {cell.engine}".encode()).digest()[0] % 2


def tabulate(matrix: Matrix, fitted: int = 0) -> dict[str, Any]:
    """The content of `signatures.json`: by slug the number of measurements and of those with each signature.

    Args:
        matrix: All cells.
        fitted: The half that counts.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in _counted(matrix):
        if half(cell) == fitted:
            healthy = best_cell(matrix, HEALTHY, cell.engine)
            promised = healthy.accept_length if healthy else None
            counts[cell.slug].update(["cells", *signatures_of(cell, promised)])
    for row in tomllib.loads(_REPORTED.read_text("utf-8"))["reported"]:
        counts[row["fault"]].update({"cells": row["cells"], row["signature"]: row["cells"]})
    dates = sorted({cell.made for cell in matrix.cells if cell.made})
    return {
        "about": "Measurements by fault and signature, of one half of the cells; written by `make matrix`.",
        "measured": [dates[0], dates[-1]] if dates else [],
        "faults": {slug: dict(sorted(counts[slug].items())) for slug in sorted(counts)},
    }


@contextmanager
def fitted_without(cell: Cell) -> Iterator[None]:
    """Have the diagnosis rank by the half of the recorded cells that this one is not in."""
    matrix = read_matrix() if matrix_file().is_file() else Matrix(())
    table = tabulate(matrix, fitted=1 - half(cell))["faults"]
    with mock.patch.object(diagnosis_ranking, "_measurements", lambda: table):
        yield


@dataclass(frozen=True, slots=True)
class Grade:
    """How the ranking does on the half of the servers' cells that it is not fitted to.

    Attributes:
        cells: Faulty heads that a server answered with.
        first: Of those, the ones of which the first finding is the fault that was put in.
        found: Those of which a finding is.
    """

    cells: int
    first: int
    found: int

    def __str__(self) -> str:
        return (
            f"ranking: of {self.cells} faults served that it is not fitted to, {self.first} are named first, and "
            f"{self.found} are among the findings"
        )


def grade(matrix: Matrix) -> Grade:
    """The diagnoses stored in the cells of half 1, all made with the ranking that half 0 gives."""
    graded = [
        cell.diagnosis
        for cell in matrix.of(way="server")
        if cell.engine.startswith("sglang==") and cell.outcome == "measured" and cell.slug != HEALTHY
        if half(cell) == 1 and cell.diagnosis is not None
    ]
    first, found = (sum(map(bool, row)) for row in ([d.named for d in graded], [d.place for d in graded]))
    return Grade(len(graded), first, found)


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
    diagnosis_ranking.SIGNATURES.write_text(json.dumps(tabulate(matrix), indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near one measured fault comes to what was observed.

    Attributes:
        cell: The measurement.
        expected: Shares of verify steps by position that a head like the reader's would show with this fault.
        distance: Root mean square of the differences in share, or the difference in accept length over the steps
            where no shares were given; 0 is exactly alike.
    """

    cell: Cell
    expected: tuple[float, ...]
    distance: float

    @property
    def accept_length(self) -> float:
        """Tokens per verify step that go with `expected`, bonus included."""
        return 1 + sum(self.expected)


def conditional(shares: Sequence[float]) -> tuple[float, ...]:
    """The share at each position among the steps that accepted all before it; 0 where there were none."""
    before = (1.0, *shares)
    return tuple(share / b if b > 0 else 0.0 for share, b in zip(shares, before, strict=False))


def retained(cell: Cell, healthy: Cell) -> tuple[float, ...]:
    """What the fault leaves of the healthy head's conditional share at each position, mostly between 0 and 1."""
    pairs = zip(conditional(cell.position_rates), conditional(healthy.position_rates), strict=False)
    return tuple(ours / theirs if theirs > 0 else 0.0 for ours, theirs in pairs)


def carried_over(kept: Sequence[float], promised: Sequence[float]) -> tuple[float, ...]:
    """Shares by position of a head with these conditional accuracies, of which a fault leaves these parts."""
    return tuple(accumulate((min(1.0, k * p) for k, p in zip(kept, promised, strict=False)), mul))


def most_alike(
    matrix: Matrix,
    engine: str,
    *,
    shares: Sequence[float] = (),
    accept_length: float | None = None,
    promised: Sequence[float] = (),
) -> list[Likeness]:
    """Every fault measured in a release, the most alike first.

    Args:
        matrix: The measurements; a real server's is preferred to the reference's.
        engine: `sglang==0.5.9`.
        shares: Observed share of verify steps that accepted position 1, 2, …
        accept_length: Observed tokens per verify step; used where no shares are given.
        promised: The head's conditional accuracies from training, position by position; those of the specimen's
            healthy head where not given.

    Raises:
        ValueError: Neither shares nor an accept length is given, or the healthy head was not measured.
    """
    if not shares and accept_length is None:
        raise ValueError("give the shares by position or the accept length")
    healthy = best_cell(matrix, HEALTHY, engine)
    if healthy is None:
        raise ValueError(f"the healthy head was not measured in {engine}")
    promised = tuple(promised) or conditional(healthy.position_rates)
    found = []
    for fault in matrix.faults:
        cell = best_cell(matrix, fault, engine)
        if cell is None:
            continue
        expected = carried_over(retained(cell, healthy), promised)
        if shares:
            pairs = list(zip(shares, expected, strict=False))
            distance = (sum((seen - own) ** 2 for seen, own in pairs) / len(pairs)) ** 0.5
        else:
            assert accept_length is not None
            distance = abs(accept_length - 1 - sum(expected)) / len(expected)
        found.append(Likeness(cell, expected, distance))
    return sorted(found, key=lambda one: one.distance)


def best_cell(matrix: Matrix, fault: str, engine: str) -> Cell | None:
    """The measurement of a fault in a release: the real server's, else the reference's; None without figures."""
    ways: tuple[Way, ...] = ("server", "reference")
    for way in ways:
        cell = matrix.cell(fault, engine, way)
        if cell is not None and cell.outcome == "measured" and cell.accepted and cell.topk == 1:
            return cell
    return None
