"""What the probe counted inside the engine: every verify step, whatever the release prints or forgets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from eagle3lab.acceptance.logs.reader import Server

if TYPE_CHECKING:
    from eagle3lab.acceptance.counts import Series
    from eagle3lab.runs.events import Counters, RankEvents


def server_of_events(ranks: Sequence[RankEvents], path: str) -> Server:
    """The server that was probed, a series a replica; rows are what was counted between two reports of the counters.

    Args:
        ranks: Every rank's events.
        path: The folder they stand in.
    """
    from eagle3lab.runs.counters import by_replica

    server = Server(path, 1, source="probe")
    for dp_rank, counted in by_replica(ranks).items():
        series = server.series_of("" if dp_rank is None else f"DP{dp_rank}")
        if counted[-1].draft_tokens > 0:
            server.arguments["speculative_num_draft_tokens"] = counted[-1].draft_tokens
        for before, now in pairwise((None, *counted)):
            assert now is not None
            _add(series, before, now)
    return server


def _add(series: Series, before: Counters | None, now: Counters) -> None:
    if before is None or now.verify_steps < before.verify_steps:
        steps, accepted, positions = now.verify_steps, now.accepted, list(map(float, now.per_position))
    else:
        steps, accepted = now.verify_steps - before.verify_steps, now.accepted - before.accepted
        earlier = [*before.per_position, *[0] * len(now.per_position)]
        positions = [float(b - a) for a, b in zip(earlier, now.per_position, strict=False)]
    if steps <= 0:
        return
    series.accepted += accepted
    series.proposed += steps * max(now.draft_tokens - 1, 0)
    series.append(time=now.time, length=1 + accepted / steps, steps=steps)
    series.add_positions(positions, steps)
