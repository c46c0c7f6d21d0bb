"""From pages of metrics, read one after another, to rows: what was counted between two of them.

A counter that fell began anew with its server: what it shows then was counted since the restart. Where a release
counts verify steps, rows are exact; where it only has gauges, a row is the last log interval, weighted like a log
line by the running requests, and a page that shows the same interval again adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle3lab.acceptance.logs.reader import Server
from eagle3lab.acceptance.metrics.pages import Count, Gauge, Snapshot


@dataclass(slots=True)
class Totals:
    """A server as its metrics have shown it so far.

    server: the rows. restarts: how often its counters fell. draft_tokens: D as the gauges show it, None before.
    """

    server: Server
    restarts: int = 0
    draft_tokens: int | None = None
    _last: Snapshot | None = None
    _shown: dict[str, Gauge] = field(default_factory=dict)


def begin(engine: str, path: str) -> Totals:
    """A server of which no page was read yet.

    Args:
        engine: "sglang" or "vllm".
        path: What it is called: a URL or a file.
    """
    return Totals(Server(path, 1, source=f"{engine}-metrics"))


def server_of_pages(pages: Sequence[Snapshot], path: str) -> Totals:
    """The rows between successive pages; of a single page, what it counted since the server started.

    Args:
        pages: In the order in which they were read, at least one.
        path: What the server is called: a URL or a file.
    """
    first = pages[0]
    totals = begin(first.engine, path)
    if len(pages) == 1:
        totals._last = Snapshot(first.engine, first.time)  # as if there had been a page without a count
    for page in pages:
        advance(totals, page)
    return totals


def advance(totals: Totals, page: Snapshot) -> bool:
    """Add what was counted since the page before; whether that was anything.

    The first page of all is where counting begins, and adds only the interval that its gauges show.
    """
    before, totals._last = totals._last, page
    totals.draft_tokens = next(
        (int(g.draft_tokens) for g in page.gauges.values() if g.draft_tokens), totals.draft_tokens
    )
    if page.counts:
        if before is None:
            return False
        added = [
            _count(totals, label, before.counts.get(label, Count()), now, page.time)
            for label, now in page.counts.items()
        ]
        return any(added)
    added = [_gauge(totals, label, now, page.time) for label, now in page.gauges.items()]
    return any(added)


def _count(totals: Totals, label: str, before: Count, now: Count, time: float) -> bool:
    since = _difference(before, now)
    if since is None:
        totals.restarts += 1
        since = now
    series = totals.server.series_of(label)
    steps = since.steps or 0.0
    if steps <= 0:
        series.idle += 1
        return False
    if since.accepted is not None and since.proposed is not None:
        series.accepted += since.accepted
        series.proposed += since.proposed
        series.append(
            time=time, length=1 + since.accepted / steps,
            rate=since.accepted / since.proposed if since.proposed else None, steps=steps,
        )  # fmt: skip
        if since.per_position:
            series.add_positions(list(since.per_position), steps)
        return True
    # SGLang counts an answer's tokens and steps when it ends; its first token came without a verify step.
    length = ((since.tokens or 0.0) - (since.requests or 0.0)) / steps
    if length < 1:
        series.idle += 1  # answers were cut off, or the page was read between two of its counters
        return False
    series.append(time=time, length=length, steps=steps)
    return True


def _difference(before: Count, now: Count) -> Count | None:
    """What was counted in between, None where a counter fell."""
    since: dict[str, float | None] = {}
    for name in ("steps", "accepted", "proposed", "tokens", "requests"):
        first, second = getattr(before, name), getattr(now, name)
        since[name] = None if second is None else second - (first or 0.0)
    if any(value is not None and value < 0 for value in since.values()):
        return None
    earlier = (*before.per_position, *(0.0 for _ in now.per_position))
    positions = tuple(b - a for a, b in zip(earlier, now.per_position, strict=False))
    if any(value < 0 for value in positions):
        return None
    return Count(
        since["steps"], since["accepted"], since["proposed"], since["tokens"], since["requests"], positions
    )


def _gauge(totals: Totals, label: str, now: Gauge, time: float) -> bool:
    shown, totals._shown[label] = totals._shown.get(label), now
    series = totals.server.series_of(label)
    if now.accept_length < 1:  # 0 until an interval has speculated
        series.idle += 1
        return False
    if shown is not None and shown.seen == now.seen:
        return False
    rate = now.accept_rate
    series.append(
        time=time,
        length=now.accept_length,
        rate=rate if rate is not None and math.isfinite(rate) and 0 <= rate <= 1 else None,
        running=now.running,
    )
    return True
