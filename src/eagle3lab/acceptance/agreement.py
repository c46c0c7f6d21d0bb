"""What each source of a run says, and whether they say the same.

Per-request figures and the probe count every verify step. A log does not: its last steps are never printed, two
decimals are, and a line tells how many requests ran when it was printed, not at each of its forwards. So a log
leaves an interval open, and agrees when the exact count lies in it.

One difference is the engine's own. An answer may end in the middle of what a verify step accepted. Per-request figures
count the drafts beyond that end, always; the log, the gauges and `/server_info` count them from 0.5.11 on, with the
second speculative worker, and not with the first (0.5.9 srt/speculative/eagle_info.py, verify: the accepted indices
beyond a finished request are struck out before they are summed, and after the request's own were).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3lab.acceptance.formulas import HALF_CENT, LARGEST_D, true_rate

if TYPE_CHECKING:
    from eagle3lab.acceptance.counts import Series
    from eagle3lab.acceptance.logs.reader import Server

REQUESTS, PROBE, LOG, METRICS, INFO = "requests", "probe", "log", "metrics", "server info"
"""The sources of a run, the most exact first."""

LOG_INTERVAL = 40
"""Forwards between two decode lines where `decode_log_interval` is not known: SGLang's default."""

_EQUAL = 1e-9
_SLACK = 1e-6  # of a token, in sums of thousands


@dataclass(frozen=True, slots=True)
class Figure:
    """One source of a run.

    source: `REQUESTS`, `PROBE`, `LOG`, `METRICS` or `INFO`. covers: which part of the run.
    steps: verify steps, None where not counted.
    accept_length: tokens per verify step, bonus included; low, high: what the source leaves open about it.
    accept_rate: accepted drafts over proposed drafts, None where D is not known.
    kept: accept length without the drafts accepted beyond an answer's end, where the answers' lengths are known.
    """

    source: str
    covers: str
    steps: float | None
    accept_length: float
    low: float
    high: float
    accept_rate: float | None
    kept: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Two sources held against each other: whether they agree, and the figures in a sentence."""

    sources: tuple[str, str]
    agree: bool
    says: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """All sources of a run.

    figures: what each says. checks: those that can be compared. notes: what is missing, and why.
    """

    figures: tuple[Figure, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def agree(self) -> bool | None:
        """Whether all checks hold; None without any."""
        return all(check.agree for check in self.checks) if self.checks else None

    def figure(self, source: str) -> Figure | None:
        """The figure of one source."""
        return next((one for one in self.figures if one.source == source), None)


def exact(source: str, covers: str, server: Server) -> Figure | None:
    """The figure of a source that counts every step of its rows; None where it counted nothing."""
    steps = tokens = 0.0
    for series in server.series.values():
        table = series.table()
        steps += float(table["steps"].sum())
        tokens += float(table["tokens"].sum())
    if not steps:
        return None
    accepted = sum(series.accepted for series in server.series.values())
    proposed = sum(series.proposed for series in server.series.values())
    length = tokens / steps
    return Figure(source, covers, steps, length, length, length, accepted / proposed if proposed else None)


def open_figure(server: Server, draft_tokens: int | None) -> Figure | None:
    """The figure of a log with what it leaves open; None where it printed nothing."""
    interval = server.arguments.get("decode_log_interval")
    forwards = interval if isinstance(interval, int) and interval > 0 else LOG_INTERVAL
    rows: list[_Row] = []
    means, weights = 0.0, 0.0
    for series in server.series.values():
        rows += _rows(series, forwards, draft_tokens)
        table = series.table()
        means += float(table["tokens"].sum())
        weights += float(table["steps"].sum())
    if not rows or not weights:
        return None
    length = means / weights
    low, high = (_extreme(rows, sign) for sign in (-1, 1))
    return Figure(
        LOG,
        "lines printed since the start",
        None,
        length,
        max(1.0, low - HALF_CENT),
        high + HALF_CENT,
        _rate(length, draft_tokens),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A line's accept length at the least and at the most, and the verify steps that it may stand for."""

    least: float
    most: float
    fewest: float
    fullest: float


def _rows(series: Series, forwards: int, draft_tokens: int | None) -> list[_Row]:
    table = series.table()
    lines, steps, tokens = (table[name].tolist() for name in ("lines", "steps", "tokens"))
    found = []
    before = 1.0
    for count, weight, total in zip(lines, steps, tokens, strict=True):
        running, length = weight / count, total / weight
        # At one forward a line, the requests that ran are those printed. Otherwise they may have come and gone.
        fewest = running if forwards == 1 else max(1.0, min(before, running) - 1)
        fullest = running if forwards == 1 else max(before, running)
        found.append(_Row(length, length, fewest * count * forwards, fullest * count * forwards))
        before = running
    if found and forwards > 1:  # the steps after the last line
        found.append(_Row(1.0, float(draft_tokens or 1), 0.0, before * (forwards - 1)))
    return found


def _extreme(rows: Sequence[_Row], sign: int) -> float:
    """The least (-1) or greatest (+1) mean that the rows allow: the far ones weigh most, the others least."""
    values = sorted(
        ((row.most if sign > 0 else row.least, row) for row in rows), key=lambda pair: -sign * pair[0]
    )
    weight = sum(row.fewest for _, row in values)
    total = sum(row.fewest * value for value, row in values)
    for value, row in values:
        if weight and sign * (value - total / weight) <= 0:
            break
        weight, total = weight + row.fullest - row.fewest, total + (row.fullest - row.fewest) * value
    return total / weight


def _rate(length: float, draft_tokens: int | None) -> float | None:
    return true_rate(length, draft_tokens) if draft_tokens and draft_tokens > 1 else None


def compare_exact(one: Figure, other: Figure, draft_tokens: int | None) -> Check:
    """Two sources that count every step.

    Over as many steps the accept length must be the same. Where one counts more (a server that others asked too, a
    probe that was killed with its server), what the extra steps accepted must be possible.
    """
    says = f"{_counted(one)} by the {one.source}, {_counted(other)} by the {other.source}"
    assert one.steps is not None
    assert other.steps is not None
    few, many = sorted((one, other), key=lambda figure: figure.steps or 0.0)
    extra = abs(one.steps - other.steps)
    more = _tokens(many) - _tokens(few)
    agree = extra - _SLACK <= more <= extra * (draft_tokens or LARGEST_D) + _SLACK
    if extra:
        says += f"; {extra:.0f} steps more by the {many.source}"
    return Check((one.source, other.source), agree, says)


def _tokens(figure: Figure) -> float:
    return figure.accept_length * (figure.steps or 0.0)


def compare_open(open_one: Figure, exact_one: Figure, *, cut: bool = False) -> Check:
    """A source that leaves an interval open against one that counts every step.

    Args:
        open_one: The former.
        exact_one: The latter.
        cut: Whether the release leaves drafts beyond an answer's end out of the former.
    """
    value, also = exact_one.accept_length, ""
    if cut and exact_one.kept is not None:
        value, also = exact_one.kept, ", drafts beyond an answer's end left out as this release does"
    return Check(
        (open_one.source, exact_one.source),
        open_one.low - _EQUAL <= value <= open_one.high + _EQUAL,
        f"the {open_one.source} shows {open_one.accept_length:.3f} and leaves {open_one.low:.3f} to "
        f"{open_one.high:.3f} open; {value:.3f} by the {exact_one.source}{also}",
    )


def _counted(figure: Figure) -> str:
    return f"{figure.accept_length:.4f} over {figure.steps:.0f} verify steps"


def tail_figure(
    lengths: Sequence[float], total_steps: float | None, unprinted: float, draft_tokens: int | None
) -> Figure:
    """`/server_info`'s own mean: exact over complete log intervals, the steps after the last of them left open.

    Args:
        lengths: One a replica, equally weighted where there are several.
        total_steps: Verify steps of the whole run, None where not known.
        unprinted: How many of them may have come after the last interval.
        draft_tokens: D.
    """
    length = sum(lengths) / len(lengths)
    low, high = (min(lengths), max(lengths)) if len(lengths) > 1 else (length, length)
    if total_steps:
        share = min(1.0, unprinted / total_steps)
        low = (1 - share) * low + share
        high = (1 - share) * high + share * (draft_tokens or 1)
    return Figure(
        INFO,
        "complete log intervals since the start",
        None,
        length,
        low,
        high,
        _rate(length, draft_tokens),
    )
