"""Which fault looks like this? Measured signatures carried over to another head, and held against what it shows.

A fault is measured on the specimen, whose healthy head accepts some share of the drafts at each position. What a fault
leaves of those shares is its signature: retained(k) = the share at position k given the ones before, over the same of
the healthy head. A better head with the same fault is expected to keep the same part of its own shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from lab.matrix.records import HEALTHY, Cell, Matrix, Way


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


def likest(
    matrix: Matrix,
    engine: str,
    *,
    shares: Sequence[float] = (),
    accept_length: float | None = None,
    promised: Sequence[float] = (),
) -> list[Likeness]:
    """Every fault measured in a release, the likest first.

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
