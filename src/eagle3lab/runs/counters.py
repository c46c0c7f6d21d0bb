"""The probe's totals over a run's processes: ranks that verify the same batch count once, replicas are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from eagle3lab.runs.events import Counters, RankEvents


@dataclass(frozen=True, slots=True)
class Totals:
    """What all replicas verified together.

    Attributes:
        verify_steps: Verify steps, each request of a batch counted by itself.
        accepted: Accepted drafts, bonus tokens not counted.
        per_position: How often the draft at position 1, 2, … was accepted.
        draft_tokens: D, the root included.
    """

    verify_steps: int
    accepted: int
    per_position: tuple[int, ...]
    draft_tokens: int


def by_replica(ranks: Sequence[RankEvents]) -> dict[int | None, tuple[Counters, ...]]:
    """The counters of each replica by its `dp_rank`, in the order in which they were written: the last are its totals.

    Tensor-parallel ranks verify the same batch, so one of them speaks for all: the one with the most steps, since
    a rank that was killed early has written less.
    """
    chosen: dict[int | None, tuple[Counters, ...]] = {}
    for rank in ranks:
        counted, dp_rank = rank.of(Counters), rank.attached.dp_rank
        most = chosen[dp_rank][-1].verify_steps if dp_rank in chosen else -1
        if counted and counted[-1].verify_steps > most:
            chosen[dp_rank] = counted
    return chosen


def pooled(ranks: Sequence[RankEvents]) -> Totals | None:
    """The totals of all replicas; None without a verify step."""
    last = [counted[-1] for counted in by_replica(ranks).values()]
    found = [one for one in last if one.verify_steps]
    if not found:
        return None
    columns = zip_longest(*(one.per_position for one in found), fillvalue=0)
    return Totals(
        sum(one.verify_steps for one in found),
        sum(one.accepted for one in found),
        tuple(map(sum, columns)),
        max(one.draft_tokens for one in found),
    )
