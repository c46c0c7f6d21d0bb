"""What acceptance is read from: a log, any file that holds figures, a server's address, or the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from eagle3lab.acceptance.documents import ServerInfo
from eagle3lab.acceptance.fetch import Address, is_url, shown_url
from eagle3lab.acceptance.lines import open_log
from eagle3lab.acceptance.log import EXAMPLES, LogReading, read_logs, server_of_info
from eagle3lab.acceptance.metrics import (
    LONGEST_PAGE,
    Snapshot,
    Totals,
    looks_like_page,
    read_page,
    server_of_pages,
)
from eagle3lab.acceptance.report import (
    AcceptanceReport,
    Given,
    ServerReport,
    account_server,
    last_measured,
    reading_notes,
)
from eagle3lab.acceptance.run import account_run
from eagle3lab.engines.release import Release
from eagle3lab.errors import InputError
from eagle3lab.text import printable


def account_sources(sources: Sequence[str | PathLike[str]], given: Given) -> AcceptanceReport:
    """The account of logs, saved figures, pages, addresses and run folders, in the order given.

    Raises:
        InputError: One of them cannot be read, is none of these, or names figures that cannot be understood.
    """
    reading = LogReading()
    reports: list[ServerReport] = []
    for source in map(str, sources):
        before = last_measured(reports)
        if is_url(source):
            reports.append(account_address(Address(source), given, before))
        elif source != "-" and is_folder(source):
            reports.append(account_run(source, given, before))
        elif source != "-" and (page := _page(source)) is not None:
            reports.append(account_totals(server_of_pages([page], source), None, given, before))
        else:
            read = read_logs([source], given.draft_tokens)
            for server in read.servers:
                reports.append(account_server(server, given, last_measured(reports)))
            _understood(source, read)
            _add(reading, read)
    notes = reading_notes(reading) if reading.lines or not reports else []
    return AcceptanceReport(tuple(reports), reading, tuple(notes))


def shown(source: str) -> str:
    """A source as it may be printed: of an address nothing but host and path."""
    return shown_url(source) if is_url(source) else source


def is_folder(source: str) -> bool:
    """Whether a source is a folder; a name that no file can have is none."""
    try:
        return Path(source).is_dir()
    except (OSError, ValueError):
        return False


def _understood(source: str, read: LogReading) -> None:
    """Refuse a file whose figures of speculation were found and could not be understood: that is not "no data"."""
    if any(not server.empty or server.events for server in read.servers):
        return
    names = ", ".join(repr(printable(key, 60)) for key in read.keys)
    if names:
        raise InputError(
            f"holds {names}, and no accept length can be made of them",
            path=source,
            advice="Give the counts: drafts (or verify steps), draft tokens and accepted tokens",
        )
    if read.unparsed:
        example = read.examples[0]
        raise InputError(
            f"holds what looks like acceptance and cannot be read: {example.reason} "
            f"({printable(example.text, 120)})",
            path=source,
            line=example.line,
        )


def _page(path: str) -> Snapshot | None:
    """The page of metrics that a file holds, None where it holds none."""
    with open_log(path) as file:
        try:
            head = file.read(4096)
        except (OSError, EOFError, ValueError):
            return None  # the log reader says what is wrong
        if not looks_like_page(head.decode("utf-8", "replace")):
            return None
        parts = [head]
        while sum(map(len, parts)) <= LONGEST_PAGE and (more := file.read(1 << 20)):
            parts.append(more)
    content = b"".join(parts)
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
    to.keys += more.keys


def account_address(address: Address, given: Given, before: ServerReport | None = None) -> ServerReport:
    """The account of a running server: what its metrics have counted since it started.

    Where it shows no metrics, its own account of itself (`/server_info`) has the mean since the start.

    Raises:
        InputError: Nothing answers there, or not a server that speculates.
    """
    try:
        page = address.page()
    except InputError:
        info = address.info()
        if info is None or not info.accept_lengths:
            raise
        return account_info(info, address.url, given, before)
    return account_totals(server_of_pages([page], shown_url(address.url)), address.info(), given, before)


def account_info(
    info: ServerInfo, url: str, given: Given, before: ServerReport | None = None
) -> ServerReport:
    """The account of a server from what it says of itself alone."""
    report = account_server(server_of_info(info, shown_url(url)), given, before)
    return replace(
        report, notes=(*report.notes, "it shows no metrics: start it with --enable-metrics for counts")
    )


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
    elif totals.gauges_only and report.accept_length is not None:
        notes.append("from gauges only, each of which shows the last log interval: nothing here is counted")
    elif report.accept_length is None and report.accept_rate is not None:
        notes.append(
            "drafts are counted here and verify steps are not: the rate is known, the accept length is not"
        )
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
