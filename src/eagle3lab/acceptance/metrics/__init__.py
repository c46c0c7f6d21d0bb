"""Acceptance from everything but a log: `/metrics`, `/server_info`, per-request `meta_info`, the probe's events.

Each reader gives a `logs.reader.Server` whose `counts.Series` hold the same rows as a log's, so that one account
(`report.account_server`) judges them all.
"""

from eagle3lab.acceptance.metrics.pages import Snapshot, read_page
from eagle3lab.acceptance.metrics.probe import server_of_events
from eagle3lab.acceptance.metrics.requests import observed, server_of_requests
from eagle3lab.acceptance.metrics.server_info import ServerInfo, read_server_info
from eagle3lab.acceptance.metrics.totals import Totals, advance, server_of_pages

__all__ = [
    "ServerInfo",
    "Snapshot",
    "Totals",
    "advance",
    "observed",
    "read_page",
    "read_server_info",
    "server_of_events",
    "server_of_pages",
    "server_of_requests",
]
