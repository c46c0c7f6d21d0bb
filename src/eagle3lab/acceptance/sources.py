"""What acceptance is read from: a log, a page of metrics, a server's address, or the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.acceptance.agreement import (
    LOG,
    LOG_INTERVAL,
    METRICS,
    PROBE,
    REQUESTS,
    Agreement,
    Check,
    Figure,
    compare_exact,
    compare_open,
    exact,
    open_figure,
    tail_figure,
)
from eagle3lab.acceptance.formulas import HALF_CENT
from eagle3lab.acceptance.logs import LogReading, Server, read_logs
from eagle3lab.acceptance.logs.reader import EXAMPLES
from eagle3lab.acceptance.metrics import (
    ServerInfo,
    Snapshot,
    Totals,
    read_page,
    read_server_info,
    server_of_events,
    server_of_pages,
    server_of_requests,
)
from eagle3lab.acceptance.metrics.fetch import Address, is_url
from eagle3lab.acceptance.metrics.pages import LONGEST_PAGE, looks_like_page
from eagle3lab.acceptance.report import (
    AcceptanceReport,
    Given,
    ServerReport,
    account_server,
    last_measured,
    reading_notes,
)
from eagle3lab.engines.release import Release
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.runs.folder import RunFolder
    from eagle3lab.runs.requests import Request

LAST_LINES = 3
"""Lines of a log among which the gauge's interval must be."""


def account_sources(sources: Sequence[str | PathLike[str]], given: Given) -> AcceptanceReport:
    """The account of logs, pages, addresses and run folders, in the order given.

    Raises:
        InputError: One of them cannot be read, or is none of these.
    """
    reading = LogReading()
    reports: list[ServerReport] = []
    for source in map(str, sources):
        before = last_measured(reports)
        if is_url(source):
            reports.append(account_address(Address(source), given, before))
        elif source != "-" and Path(source).is_dir():
            reports.append(account_run(source, given, before))
        elif source != "-" and Path(source).is_file() and _is_page(source):
            totals = server_of_pages([_page(source)], source)
            reports.append(account_totals(totals, None, given, before))
        else:
            read = read_logs([source], given.draft_tokens)
            for server in read.servers:
                reports.append(account_server(server, given, last_measured(reports)))
            _add(reading, read)
    notes = reading_notes(reading) if reading.lines or not reports else []
    return AcceptanceReport(tuple(reports), reading, tuple(notes))


def _is_page(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return looks_like_page(file.read(200).decode("utf-8", "replace"))
    except OSError:
        return False  # the log reader says what is wrong


def _page(path: str) -> Snapshot:
    with Path(path).open("rb") as file:
        content = file.read(LONGEST_PAGE + 1)
    if len(content) > LONGEST_PAGE:
        raise InputError("is too large for the metrics of a server", path=path)
    return read_page(content.decode("utf-8", "replace"), source=path)


def _add(to: LogReading, more: LogReading) -> None:
    to.servers += more.servers
    to.lines += more.lines
    to.bytes += more.bytes
    to.unparsed += more.unparsed
    to.examples = (to.examples + more.examples)[:EXAMPLES]
    to.overlong += more.overlong
    to.broken += more.broken


def account_address(address: Address, given: Given, before: ServerReport | None = None) -> ServerReport:
    """The account of a running server: what its metrics have counted since it started.

    Raises:
        InputError: Nothing answers there, or not the metrics of a server that speculates.
    """
    return account_totals(server_of_pages([address.page()], address.url), address.info(), given, before)


def account_totals(
    totals: Totals, info: ServerInfo | None, given: Given, before: ServerReport | None = None
) -> ServerReport:
    """The account of a server from its metrics and, where it gives one, from its account of itself."""
    server = totals.server
    if info is not None:
        server.arguments.update(info.arguments)
    if totals.draft_tokens is not None:
        server.arguments.setdefault("speculative_num_draft_tokens", totals.draft_tokens)
    release = given.release
    if release is None and info is not None and info.release is not None:
        release = Release("sglang", info.release)
    report = account_server(server, replace(given, release=release), before)
    return replace(report, notes=(*report.notes, *_metrics_notes(totals, info, report)))


def _metrics_notes(totals: Totals, info: ServerInfo | None, report: ServerReport) -> list[str]:
    notes = []
    counted = any(series.exact_steps for series in totals.server.series.values())
    if report.source == "sglang-metrics" and counted:
        notes.append(
            "from the counters of finished answers: tokens / verify steps, which leaves out the drafts that were "
            "accepted and cut off at an answer's end"
        )
    elif report.source == "sglang-metrics" and report.accept_length is not None:
        notes.append("this release has gauges only: each shows its last log interval")
    if totals.restarts:
        notes.append(
            f"the counters fell {totals.restarts} times: the server was restarted, and counting goes on"
        )
    if info is not None and info.accept_lengths:
        shown = ", ".join(f"{length:.3f}" for length in info.accept_lengths)
        notes.append(
            f"/server_info: {shown} tokens a verify step since the start, over complete log intervals"
        )
    return notes


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
        self.info = read_server_info(info) if info is not None else None
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
