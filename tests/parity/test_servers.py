"""The engine's side against what real servers computed: recordings made by `tests/parity/record.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.faults import Served
from lab.parity import compare_forwards
from tests.parity.record import PASSES, RECORDED


@pytest.mark.parametrize(
    ("release", "verdict", "positions"),
    [
        ("0.5.23", "absorbed", [0, 0, 15, 16, 15, 19, 20]),
        ("0.5.9", "differ", [0, 0, 16, 17, 15, 20, 21]),
    ],
)
def test_the_engines_side_is_what_the_server_computed(
    served: Served, head: Path, release: str, verdict: str, positions: list[int]
) -> None:
    """Logits, states and rotary positions of every pass; 0.5.9 skips a position and counts accepted tokens twice."""
    events = RECORDED / release
    report = compare_forwards(
        served.drafter, served.target, f"sglang=={release}", trained=head, events=events
    )
    assert report.verdict == verdict
    assert len(report.replayed) == PASSES and all(one.alike for one in report.replayed)
    assert [one.first_position for one in report.replayed] == positions
    apart = [one.relative for each in report.replayed for one in (each.logits, each.states) if one]
    assert len(apart) == 2 * PASSES and max(apart) < 1e-5


@pytest.mark.parametrize(("release", "other"), [("0.5.23", "0.5.9"), ("0.5.9", "0.5.23")])
def test_another_release_is_not(served: Served, head: Path, release: str, other: str) -> None:
    """Each recording is told from the other release: by the draft steps' positions, from the first on."""
    events = RECORDED / release
    report = compare_forwards(served.drafter, served.target, f"sglang=={other}", trained=head, events=events)
    assert [one.alike for one in report.replayed[:3]] == [True, True, False]
