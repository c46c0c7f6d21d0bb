"""The probe's totals: a rank for its replica, the replicas together."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.acceptance.run import Counts, by_replica, pooled_counters
from eagle3lab.runs.events import SCHEMA_VERSION, Attached, Counters, RankEvents


def counters(*positions: int, steps: int) -> Counters:
    return Counters(
        time=9.0, verify_steps=steps, accepted=sum(positions), per_position=list(positions), draft_tokens=4,
        boundaries={}, widths={},
    )  # fmt: skip


def rank(tp: int, dp: int | None, *written: Counters) -> RankEvents:
    attached = Attached(
        time=0.0, schema_version=SCHEMA_VERSION, release="0.5.23", pid=1, tp_rank=tp, tp_size=2, dp_rank=dp,
        ways=[], missing=[],
    )  # fmt: skip
    return RankEvents(Path("rank"), attached, (attached, *written))


def test_a_rank_that_was_killed_early_does_not_speak_for_its_replica() -> None:
    early, late = counters(1, steps=2), counters(8, 3, steps=10)
    ranks = (rank(0, None, early), rank(1, None, early, late))
    assert by_replica(ranks) == {None: (early, late)}
    assert pooled_counters(ranks) == Counts(10, 11, (8, 3), 4)


def test_a_process_that_verifies_nothing_does_not_stand_for_one_that_does() -> None:
    worker = counters(5, steps=6)
    assert pooled_counters(
        (rank(0, None), rank(0, None, counters(steps=0)), rank(0, None, worker))
    ) == Counts(6, 5, (5,), 4)


def test_replicas_are_added_position_by_position() -> None:
    one, other = counters(4, 2, 1, steps=5), counters(3, steps=7)
    ranks = [rank(tp, dp, totals) for dp, totals in ((0, one), (1, other)) for tp in (0, 1)]
    assert by_replica(ranks) == {0: (one,), 1: (other,)}
    assert pooled_counters(ranks) == Counts(12, 10, (7, 2, 1), 4)


def test_without_a_verify_step_there_are_no_totals() -> None:
    assert pooled_counters(()) is None
    assert pooled_counters((rank(0, None, counters(steps=0)),)) is None
