"""The account of a run folder: each of its sources read, and whether they say the same.

Per-request figures and the probe count every verify step. A log does not: its last steps are never printed, two
decimals are, and a line tells how many requests ran when it was printed, not at each of its forwards. So a log
leaves an interval open, and agrees when the exact count lies in it.

One difference is the engine's own. An answer may end in the middle of what a verify step accepted. Per-request figures
count the drafts beyond that end, always; the log, the gauges and `/server_info` count them from the second
speculative worker on, and not with the first (0.5.9 srt/speculative/eagle_info.py, verify: the accepted indices
beyond a finished request are struck out before they are summed, and after the request's own were).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.acceptance.documents import ServerInfo
from eagle3lab.acceptance.formulas import HALF_CENT, LARGEST_D, true_rate
from eagle3lab.acceptance.grammar import HISTOGRAMS, request
from eagle3lab.acceptance.log import Server, add_observation, read_logs
from eagle3lab.acceptance.metrics import Snapshot, read_page, server_of_pages
from eagle3lab.acceptance.observations import Observation, Unparsed
from eagle3lab.acceptance.report import Given, ServerReport, account_server
from eagle3lab.engines.release import Release
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.acceptance.counts import Series
    from eagle3lab.runs.events import Counters, RankEvents
    from eagle3lab.runs.folder import Request, RunFolder

MOST_COUNTED = 1024
"""Draft positions of a run that are counted."""

LAST_LINES = 3
"""Lines of a log among which the gauge's interval must be."""

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


def server_of_requests(requests: Iterable[Request], path: str, *, warm_up: bool = False) -> Server:
    """The server that answered, from what it said about each answer (`meta_info`), in the order of their ends.

    Answers without a verify step (one token, or no speculation) are idle: no data, no failure.

    Args:
        requests: In the order of sending.
        path: The file they stand in.
        warm_up: Whether to count warm-up requests too.
    """
    server = Server(path, 1, source="sglang-request")
    for one in sorted(requests, key=lambda one: one.ended_s):
        if one.phase == "warm-up" and not warm_up:
            continue
        seen = observed(one)
        if isinstance(seen, Observation):
            add_observation(server, seen)
    return server


def observed(one: Request) -> Observation | Unparsed:
    """What the server said about one answer, at the time of its end."""
    time = one.ended_s if one.ended_s > 0 else math.nan
    return request({"completion_tokens": one.completion_tokens, **one.meta_info}, time=time)


@dataclass(frozen=True, slots=True)
class Counts:
    """Exact counts of a run.

    Attributes:
        verify_steps: Verifications by the target, each request of a batch counted by itself.
        accepted: Drafts accepted in them, bonus tokens not counted.
        positions: How often the draft at position 1, 2, … was accepted; None where not known.
        draft_tokens: D, the root included; None where not known.
    """

    verify_steps: int
    accepted: int
    positions: tuple[int, ...] | None = None
    draft_tokens: int | None = None


def count_answers(answers: Iterable[Mapping[str, Any]], draft_tokens: int) -> Counts | None:
    """Pool the `meta_info` of some answers; None where none says anything of speculation.

    Per request every release reports `spec_verify_ct` and `spec_accept_rate`, the latter without the bonus token:
    accepted / (verifications × (D - 1)) from 0.5.6 on (SGLang 0.5.9 managers/tokenizer_manager.py, 0.5.23
    managers/tokenizer_manager.py). An answer of one token needed no verification and carries neither.
    """
    verify_steps = accepted = 0
    positions: Counter[int] = Counter()
    complete = True
    for meta in answers:
        try:
            steps, rate = int(meta["spec_verify_ct"]), float(meta["spec_accept_rate"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if not math.isfinite(rate):
            continue
        verify_steps += steps
        accepted += round(rate * steps * (draft_tokens - 1))
        by_position = _by_position(meta)
        complete = complete and by_position is not None
        positions.update(dict(enumerate(by_position or ())))
    if not verify_steps:
        return None
    shares = tuple(positions[place] for place in range(max(positions, default=-1) + 1))
    return Counts(
        verify_steps, accepted, shares if complete and sum(shares) == accepted else None, draft_tokens
    )


def _by_position(meta: Mapping[str, Any]) -> list[int] | None:
    """Verifications that accepted position 1, 2, …, from those that accepted exactly 0, 1, 2, … drafts."""
    for name in HISTOGRAMS:
        exactly = meta.get(name)
        if not isinstance(exactly, list) or not 0 < len(exactly) <= MOST_COUNTED:
            continue
        if all(isinstance(each, int) for each in exactly):
            return [sum(exactly[place:]) for place in range(1, len(exactly))]
    return None


def by_replica(ranks: Sequence[RankEvents]) -> dict[int | None, tuple[Counters, ...]]:
    """The counters of each replica by its `dp_rank`, in the order in which they were written: the last are its totals.

    Tensor-parallel ranks verify the same batch, so one of them speaks for all: the one with the most steps, since
    a rank that was killed early has written less.
    """
    from eagle3lab.runs.events import Counters

    chosen: dict[int | None, tuple[Counters, ...]] = {}
    for rank in ranks:
        counted, dp_rank = rank.of(Counters), rank.attached.dp_rank
        most = chosen[dp_rank][-1].verify_steps if dp_rank in chosen else -1
        if counted and counted[-1].verify_steps > most:
            chosen[dp_rank] = counted
    return chosen


def pooled_counters(ranks: Sequence[RankEvents]) -> Counts | None:
    """The totals of all replicas; None without a verify step."""
    last = [counted[-1] for counted in by_replica(ranks).values()]
    found = [one for one in last if one.verify_steps]
    if not found:
        return None
    columns = zip_longest(*(one.per_position for one in found), fillvalue=0)
    return Counts(
        sum(one.verify_steps for one in found),
        sum(one.accepted for one in found),
        tuple(map(sum, columns))[:MOST_COUNTED],
        max(one.draft_tokens for one in found),
    )


def server_of_events(ranks: Sequence[RankEvents], path: str) -> Server:
    """The server that was probed, a series a replica; rows are what was counted between two reports of the counters.

    Args:
        ranks: Every rank's events.
        path: The folder they stand in.
    """
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


def account_run(path: str | PathLike[str], given: Given, before: ServerReport | None = None) -> ServerReport:
    """The account of a run folder, from the most exact of its sources, with what the others say.

    Raises:
        InputError: It is no run folder, or one of its files is damaged.
    """
    from eagle3lab.runs.folder import RunFolder

    run = RunFolder.open(Path(path))
    given = given_of_run(run, given)
    found = _Found(run, given)
    reports = {name: account_server(server, given, before) for name, server in found.servers().items()}
    measured = [name for name, report in reports.items() if report.accept_length is not None]
    if not reports:
        raise InputError(
            "holds no log, no requests and no events",
            path=path,
            advice="Did the server start? See its plan.json",
        )
    main = reports[measured[0] if measured else next(iter(reports))]
    log = reports.get(LOG)
    notes = main.notes
    if log is not None and log is not main:
        notes += tuple(note for note in log.notes if "did not speculate" in note)
    return replace(
        main,
        path=str(path),
        algorithm=log.algorithm if log is not None else main.algorithm,
        changes=main.changes if log is None else log.changes,
        on_load=main.on_load if log is None else log.on_load,
        on_context=main.on_context if log is None else log.on_context,
        agreement=found.agreement(reports),
        log=log,
        notes=notes,
    )


def given_of_run(run: RunFolder, given: Given) -> Given:
    """What is known of a run's server: its plan's draft tokens and steps; its release, unless another one is stated."""
    steps = run.plan().get("steps")
    return replace(
        given,
        release=given.release or (Release("sglang", run.release) if run.release else None),
        draft_tokens=run.draft_tokens or given.draft_tokens,
        steps=steps if isinstance(steps, int) else given.steps,
    )


class _Found:
    """The sources of one run folder, read."""

    def __init__(self, run: RunFolder, given: Given) -> None:
        self.given = given
        self.requests: tuple[Request, ...] = run.requests()
        path = run.requests_file
        self.measured = server_of_requests(self.requests, str(path))
        self.everything = server_of_requests(self.requests, str(path), warm_up=True)
        self.probe = server_of_events(run.events(), str(run.events_dir))
        logs = read_logs([run.log], given.draft_tokens).servers if run.log.is_file() else []
        self.log: Server | None = next((s for s in reversed(logs) if s.series or s.plain_decode), None)
        info = run.server_info()
        self.info = ServerInfo.of(info) if info is not None else None
        self.notes: list[str] = []
        self.before, self.after = (
            self._page(text, name)
            for text, name in ((run.metrics_before, "metrics-before"), (run.metrics_after, "metrics-after"))
        )

    def _page(self, text: str | None, name: str) -> Snapshot | None:
        if text is None or not text.strip():
            return None
        try:
            return read_page(text, source=name)
        except InputError as error:
            if name != "metrics-before":  # a server shows its metrics with the first request
                self.notes.append(str(error))
            return None

    def servers(self) -> dict[str, Server]:
        """Those that can stand for the run, the most exact first."""
        found = {REQUESTS: self.measured, PROBE: self.probe}
        if self.log is not None:
            found[LOG] = self.log
        return {name: server for name, server in found.items() if server.series or server is self.log}

    def agreement(self, reports: dict[str, ServerReport]) -> Agreement:
        d = next((r.draft_tokens for r in reports.values() if r.draft_tokens), self.given.draft_tokens)
        everything = exact(REQUESTS, "all requests, warm-up included", self.everything)
        if everything is not None and everything.steps:
            kept = sum(one.completion_tokens - 1 for one in self.requests if one.completion_tokens)
            everything = replace(everything, kept=kept / everything.steps)
        measured = exact(REQUESTS, "measured requests", self.measured)
        probe = exact(PROBE, "every verify step of the engine", self.probe)
        log = open_figure(self.log, d) if self.log is not None else None
        info = self._info(everything or probe, d)
        metrics = self._metrics()
        checks = []
        if everything is not None and probe is not None:
            checks.append(compare_exact(everything, probe, d))
        counted = everything or probe
        if counted is not None:
            cut = self._leaves_out_cut_drafts()
            checks += [compare_open(one, counted, cut=cut) for one in (log, info) if one is not None]
        if metrics is not None and measured is not None:
            checks.append(self._metrics_check(metrics, measured if self.before is not None else everything))
        if log is not None and (gauge := self._gauge_check()) is not None:
            checks.append(gauge)
        figures = (measured, probe, log, metrics, info)
        return Agreement(tuple(f for f in figures if f is not None), tuple(checks), tuple(self.notes))

    def _leaves_out_cut_drafts(self) -> bool:
        """See `agreement`: the first speculative worker, the default until 0.5.10."""
        release = self.given.release
        if release is None or release.kind != "sglang" or release.version is None:
            return False
        return not release.holds("the second speculative worker is the default")

    def _info(self, counted: Figure | None, draft_tokens: int | None) -> Figure | None:
        if self.info is None or not self.info.accept_lengths:
            return None
        interval = self.info.arguments.get("decode_log_interval")
        forwards = interval if isinstance(interval, int) else LOG_INTERVAL
        running = [float(s.table()["running"].max()) for s in self.log.series.values()] if self.log else []
        unprinted = (forwards - 1) * sum(value for value in running if value == value)
        return tail_figure(
            self.info.accept_lengths, counted.steps if counted else None, unprinted, draft_tokens
        )

    def _metrics(self) -> Figure | None:
        """What the counters say of the measured requests; releases with gauges only say nothing of them."""
        if self.after is None or not self.after.counts:
            return None
        pages = [self.before, self.after] if self.before is not None else [self.after]
        return exact(
            METRICS, "answers finished between the two pages", server_of_pages(pages, METRICS).server
        )

    def _metrics_check(self, metrics: Figure, requests: Figure | None) -> Check:
        """SGLang's counters hold the tokens kept; the same made of the requests must be equal."""
        steps = requests.steps if requests is not None and requests.steps else 0.0
        counted = [r for r in self.requests if self.before is None or r.phase == "measured"]
        kept = sum(r.completion_tokens - 1 for r in counted)
        length = kept / steps if steps else 0.0
        return Check(
            (METRICS, REQUESTS),
            metrics.steps == steps and abs(metrics.accept_length - length) < 1e-9,
            f"tokens kept a verify step: {metrics.accept_length:.4f} over {metrics.steps:.0f} steps by the metrics, "
            f"{length:.4f} over {steps:.0f} by the requests",
        )

    def _gauge_check(self) -> Check | None:
        """The gauge shows an interval that the log's last lines print, unrounded.

        Not always the last: the answer is on its way before the gauge is set.
        """
        if self.after is None or len(self.after.gauges) != 1 or self.log is None or len(self.log.series) != 1:
            return None
        [gauge], [series] = self.after.gauges.values(), self.log.series.values()
        lengths = (series.table()["length_sum"] / series.table()["lines"]).tolist()
        if gauge.accept_length < 1 or not lengths:
            return None
        last = lengths[-LAST_LINES:]
        return Check(
            (METRICS, LOG),
            any(abs(gauge.accept_length - length) <= HALF_CENT + 1e-9 for length in last),
            f"last interval: {gauge.accept_length:.4f} by the gauge, "
            f"{', '.join(f'{length:.2f}' for length in last)} by the log's last lines",
        )
