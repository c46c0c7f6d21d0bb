"""The page: whole, without a script or an outside request, and safe against what a log says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from eagle3lab.acceptance.expectation import STEP, Accuracies
from eagle3lab.acceptance.html import page
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.points import distribution
from eagle3lab.acceptance.report import Given, account
from eagle3lab.acceptance.run import account_run
from eagle3lab.acceptance.sources import account_sources
from tests.acceptance.loglines import decode_line, newest
from tests.acceptance.runs import made_up, write_run
from tests.acceptance.test_cli import run

VOID = {"meta", "line", "polyline", "polygon", "rect", "circle"}


class Strict(HTMLParser):
    """Checks that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Strict:
    seen = Strict()
    seen.feed(text)
    assert not seen.open
    return seen


def test_a_run_as_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up(20))
    given = Given(accuracies=Accuracies((0.9, 0.85, 0.8), STEP, "a test"))
    text = page(account_sources([folder], given))
    seen = parsed(text)
    assert seen.seen.count("svg") == 3, "over time, by position, by request"
    assert seen.seen.count("details") == 3, "and a table behind each"
    assert "script" not in seen.seen
    assert "default-src 'none'" in text
    assert not re.search(r"(?:href|src)=|https?://|url\(", text)
    assert "The sources agree" in text
    assert "outlined: promised by training" in text


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up(4))
    assert run(folder, "--format", "html").startswith("<!doctype html>")
    (tmp_path / "empty.log").touch()
    assert "the log is empty" in run(tmp_path / "empty.log", "--format", "html")


def test_nothing_from_a_log_becomes_markup(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    evil = "<img src=x onerror=alert(1)>"
    log.write_text(
        f"[2026-03-11 10:00:00] server_args=ServerArgs(speculative_algorithm='{evil}')\n"
        f"{decode_line(newest(), 2.0)}\n{decode_line(newest(), 2.2)}\naccept len: {evil}\n"
    )
    text = page(account(read_logs([log]), Given()))
    parsed(text)
    assert "<img" not in text
    assert "&lt;img" in text


def test_the_distribution_holds_every_request(tmp_path: Path) -> None:
    server = account_run(write_run(tmp_path / "run", made_up(30)), Given())
    bins = distribution(server)
    assert sum(one.rows for one in bins) == 30
    assert sum(one.share for one in bins) == pytest.approx(1.0)
    values = server.table["tokens"] / server.table["steps"]
    for one in bins:
        assert one.rows == int(((values >= one.low - 1e-9) & (values < one.high - 1e-9)).sum())
