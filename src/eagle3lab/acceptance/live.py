"""Acceptance while a server runs: from its growing log, from its address, or from the folder of its run.

`follow` gives one account after another; `watch` shows them in a notebook; the command line shows them in a
terminal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Protocol

from eagle3lab.acceptance.fetch import Address, is_url
from eagle3lab.acceptance.log import LogFollower, LogReading
from eagle3lab.acceptance.metrics import Totals, advance, begin
from eagle3lab.acceptance.report import AcceptanceReport, Given, ServerReport, account
from eagle3lab.acceptance.run import given_of_run
from eagle3lab.acceptance.sources import account_info, account_totals, is_folder, shown
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.acceptance.documents import ServerInfo

_BARS = "▁▂▃▄▅▆▇█"
INFORM_S = 10.0
"""Seconds between two questions for a server's account of itself, which interrupts its scheduler."""

SHOWN = 60
"""Rows in the little plot."""


class Follower(Protocol):
    """A source that is looked at again and again."""

    @property
    def ended(self) -> bool:
        """Whether nothing more can come."""

    def poll(self) -> bool:
        """Look; whether there is anything new."""

    def report(self) -> AcceptanceReport:
        """The account so far."""

    def close(self) -> None:
        """Stop looking."""


class FollowedLog:
    """A growing log.

    Args:
        path: The file, or "-".
        given: What is known of its server.
    """

    def __init__(self, path: str, given: Given) -> None:
        self._follower = LogFollower(path, given.draft_tokens)
        self._given = given

    @property
    def ended(self) -> bool:
        """Whether standard input ended; a file may always grow."""
        return self._follower.ended

    def poll(self) -> bool:
        """Read what was added."""
        return self._follower.poll()

    def report(self) -> AcceptanceReport:
        """The account of everything read."""
        found = account(self._follower.reading, self._given)
        anew = self._follower.begun_anew
        if anew:
            found = replace(
                found, notes=(*found.notes, f"the file began anew {anew} times: rotated or cut short")
            )
        return found

    def close(self) -> None:
        """Take a last line without its newline."""
        self._follower.close()


class FollowedAddress:
    """A running server at a URL. Counting begins with the first look.

    A server that does not answer is waited for once it has answered: it may be restarting.

    Args:
        url: `http://host:port`.
        given: What is known of it.
    """

    ended = False

    def __init__(self, url: str, given: Given) -> None:
        self._address = Address(url)
        self._given = given
        self._totals: Totals | None = None
        self._info: ServerInfo | None = None
        self._silent = 0
        self._informed = -math.inf

    def poll(self) -> bool:
        """Ask for the metrics."""
        try:
            page = self._address.page()
        except InputError:
            return self._poll_info()
        if self._silent or time.monotonic() - self._informed > INFORM_S:
            self._info, self._informed = self._address.info(), time.monotonic()
        self._silent = 0
        if self._totals is None:
            self._totals = begin(page.engine, self._address.url)
            advance(self._totals, page)
            return True
        return advance(self._totals, page)

    def _poll_info(self) -> bool:
        """Ask for the server's own mean where it shows no metrics; whether that is another one.

        Raises:
            InputError: Nothing has ever answered there.
        """
        info = self._address.info() if self._totals is None else None
        if info is None or not info.accept_lengths:
            if self._totals is None and self._info is None:
                self._address.page()  # says what is wrong
            self._silent += 1
            return False
        self._silent = 0
        news, self._info = info != self._info, info
        return news

    def report(self) -> AcceptanceReport:
        """The account of what was counted since the first look."""
        if self._totals is None and self._info is not None:
            alone = account_info(self._info, self._address.url, self._given)
            return AcceptanceReport((alone,), LogReading(), self._notes())
        if self._totals is None:
            return AcceptanceReport((), LogReading(), ("nothing was asked yet",))
        server = account_totals(self._totals, self._info, self._given)
        return AcceptanceReport((server,), LogReading(), self._notes())

    def _notes(self) -> tuple[str, ...]:
        return (f"the server has not answered {self._silent} times",) if self._silent else ()

    def close(self) -> None:
        """Nothing is kept open."""


def follower(source: str, given: Given | None = None) -> Follower:
    """What follows a log, a URL, or the log of a run folder.

    Raises:
        InputError: It is none of these.
    """
    given = given or Given()
    if is_url(source):
        return FollowedAddress(source, given)
    if source != "-" and is_folder(source):
        from eagle3lab.runs.folder import RunFolder

        run = RunFolder.open(source)
        return FollowedLog(str(run.log), given_of_run(run, given))
    return FollowedLog(source, given)


def follow(
    source: str,
    given: Given | None = None,
    *,
    every_s: float = 1.0,
    seconds: float = math.inf,
) -> Iterator[AcceptanceReport]:
    """One account after another: the first at once, then whenever there is something new, and the last at the end.

    Args:
        source: A log, "-", a URL or a run folder.
        given: What is known of the server.
        every_s: How often to look.
        seconds: How long to go on.

    Raises:
        InputError: The source cannot be read.
    """
    seen = follower(source, given)
    until = time.monotonic() + seconds
    try:
        seen.poll()
        yield seen.report()
        while not seen.ended and time.monotonic() < until:
            time.sleep(min(every_s, max(0.0, until - time.monotonic())))
            if seen.poll():
                yield seen.report()
    finally:
        seen.close()
    yield seen.report()


def status_line(report: AcceptanceReport) -> str:
    """The account in one line: the newest row, the mean so far with its interval, the true rate, the signature."""
    server = report.main
    if server is None or server.accept_length is None:
        return "no data yet"
    length = server.accept_length
    parts = [f"now {_lengths(server)[-1]:.2f}"] if _lengths(server) else []
    interval = f" ({length.low:.2f} to {length.high:.2f})" if length.known else ""
    parts.append(f"mean {length.mean:.2f}{interval} tokens a verify step")
    if server.accept_rate is not None:
        parts.append(f"{server.accept_rate:.1%} of the drafts accepted")
    parts.append(f"{server.signature.name}, {length.rows} rows")
    return ", ".join(parts)


def sparkline(report: AcceptanceReport, most: int = SHOWN) -> str:
    """The newest accept lengths as bars, from 1 to the highest of them; empty without any."""
    server = report.main
    values = _lengths(server)[-most:] if server is not None else []
    if not values:
        return ""
    top = max(*values, 2.0)
    bars = "".join(_BARS[min(int((v - 1) / (top - 1) * len(_BARS)), len(_BARS) - 1)] for v in values)
    return f"1.00 {bars} {top:.2f}"


def _lengths(server: ServerReport) -> list[float]:
    table = server.table
    return [
        total / steps for total, steps in zip(table["tokens"].tolist(), table["steps"].tolist(), strict=True)
    ]


def watch(
    source: str,
    given: Given | None = None,
    *,
    every_s: float = 1.0,
    seconds: float = math.inf,
) -> AcceptanceReport:
    """Show acceptance in the notebook's output while it changes; interrupt the cell to stop.

    Args:
        source: A log, a URL or a run folder.
        given: What is known of the server.
        every_s: How often to look.
        seconds: How long to go on.

    Returns:
        The last account.

    Raises:
        InputError: The source cannot be read.
    """
    from IPython.display import HTML, display

    from eagle3lab.acceptance.html import fragment

    report = AcceptanceReport((), LogReading(), ())
    handle = display(HTML(f"<p>waiting for {escape(printable(shown(source)))}</p>"), display_id=True)
    try:
        for report in follow(source, given, every_s=every_s, seconds=seconds):
            if handle is not None:  # None outside of a notebook
                handle.update(HTML(fragment(report)))
    except KeyboardInterrupt:
        pass
    return report
