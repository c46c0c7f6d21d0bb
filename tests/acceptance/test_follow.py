"""Following: a growing log through rotation and truncation, a server through its restart, and the command."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from eagle3lab.acceptance.live import FollowedAddress, FollowedLog, follow, sparkline, status_line, watch
from eagle3lab.acceptance.log import LogFollower
from eagle3lab.acceptance.report import Given
from eagle3lab.errors import InputError
from tests.acceptance.loglines import decode_line, newest
from tests.acceptance.pages import sglang_page, vllm_page
from tests.acceptance.runs import made_up, write_run
from tests.acceptance.test_cli import run


def line(length: float) -> str:
    return decode_line(newest(), length) + "\n"


def lines_of(follower: LogFollower) -> list[float]:
    return [
        float(value)
        for server in follower.reading.servers
        for series in server.series.values()
        for value in series.table()["length_sum"]
    ]


def test_what_is_added_counts_once_its_newline_is_there(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(str(log))
    assert not follower.poll(), "it is not there yet"
    log.write_text(line(2.0))
    assert follower.poll()
    with log.open("a") as file:
        file.write(line(3.0)[:60])
        file.flush()
        follower.poll()
        assert lines_of(follower) == [2.0]
        file.write(line(3.0)[60:])
    assert follower.poll()
    assert lines_of(follower) == [2.0, 3.0]
    assert not follower.poll()
    follower.close()


def test_every_cut_reads_as_the_whole(tmp_path: Path) -> None:
    text = (line(2.0) + "noise\n" + line(2.5) + line(3.0)).encode()
    for cut in range(0, len(text), 37):
        log = tmp_path / f"{cut}.log"
        log.write_bytes(text[:cut])
        follower = LogFollower(str(log))
        follower.poll()
        with log.open("ab") as file:
            file.write(text[cut:])
        follower.poll()
        assert lines_of(follower) == [2.0, 2.5, 3.0]
        assert follower.reading.lines == 4
        follower.close()


def test_a_rotated_log_is_read_to_its_end_and_the_next_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(2.0))
    follower = LogFollower(str(log))
    follower.poll()
    with log.open("a") as file:
        file.write(line(2.2))
    log.rename(tmp_path / "server.log.1")
    follower.poll()
    log.write_text(line(3.0))
    assert follower.poll()
    assert lines_of(follower) == [2.0, 2.2, 3.0]
    assert len(follower.reading.servers) == 2
    assert follower.begun_anew == 1


def test_a_log_that_is_cut_short_is_read_anew(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(2.0) * 3)
    followed = FollowedLog(str(log), Given())
    followed.poll()
    log.write_text(line(3.0))
    assert followed.poll()
    report = followed.report()
    assert [s.lines for s in report.servers] == [3, 1]
    assert any("began anew once" in note or "began anew 1 times" in note for note in report.notes)


def test_a_last_line_without_its_newline_counts_at_the_end_if_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(2.0) + line(3.0).rstrip("\n"))
    reports = list(follow(str(log), seconds=0.0))
    assert [r.main.lines for r in reports if r.main] == [1, 2]


def test_a_line_too_long_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3lab.acceptance.log.LONGEST_LINE", 1000)
    log = tmp_path / "server.log"
    log.write_text(line(2.0) + "x" * 1200)
    follower = LogFollower(str(log))
    follower.poll()
    with log.open("a") as file:
        file.write("x" * 1200 + "\n" + line(3.0))
    follower.poll()
    assert lines_of(follower) == [2.0, 3.0]


def test_compressed_logs_and_folders_do_not_grow(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(line(2.0).encode()))
    with pytest.raises(InputError, match="not followed"):
        LogFollower(str(tmp_path / "x.gz")).poll()
    with pytest.raises(InputError, match="folder"):
        LogFollower(str(tmp_path)).poll()


def test_standard_input_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, (line(2.0) + line(2.4)).encode())
    os.close(writing)
    keep = os.dup(0)
    os.dup2(reading, 0)
    try:
        reports = list(follow("-", every_s=0.01))
    finally:
        os.dup2(keep, 0)
        os.close(keep)
        os.close(reading)
    assert reports[-1].main is not None
    assert reports[-1].main.lines == 2


class Pages(BaseHTTPRequestHandler):
    """Serves one page after another, the last again and again; None is an error."""

    pages: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        pages = type(self).pages
        if self.path == "/server_info":
            body: str | None = json.dumps({"version": "0.5.23", "speculative_num_draft_tokens": 4})
        else:
            body = pages.pop(0) if len(pages) > 1 else pages[0]
        self.send_response(200 if body is not None else 503)
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(*pages: str | None) -> Iterator[str]:
    handler = type("Handler", (Pages,), {"pages": list(pages)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_is_followed_through_its_restart() -> None:
    counts: list[tuple[int, int, int] | None] = [(100, 250, 10), (150, 400, 20), None, (50, 160, 10)]
    pages = [sglang_page(counts=c, draft_tokens=4) if c else None for c in counts]
    with serving(*pages) as url:
        seen = FollowedAddress(url, Given())
        assert seen.poll()
        assert seen.report().main.accept_length is None  # type: ignore[union-attr]
        assert seen.poll()
        first = seen.report().main
        assert first is not None
        assert first.accept_length is not None
        assert first.accept_length.mean == pytest.approx((150 - 10) / 50)
        assert str(first.engine) == "sglang==0.5.23"
        assert not seen.poll()
        assert "not answered" in seen.report().notes[0]
        assert seen.poll()
        last = seen.report().main
        assert last is not None
        assert last.accept_length is not None
        assert last.accept_length.mean == pytest.approx((140 + 150) / 100)


def test_the_command_on_a_url() -> None:
    with serving(vllm_page([(10, (10, 5, 0))]), vllm_page([(30, (30, 15, 0))])) as url:
        once = json.loads(run(url, "--format", "json"))
        assert once["accept_length"] == 2.5
        assert once["engine"] == "vllm"
        text = run(f"{url}/metrics", "--follow", "--seconds", "0.3", "--every", "0.1")
    assert "no data" in text


def test_nothing_at_a_url() -> None:
    with serving(None) as url:
        pass
    with pytest.raises(InputError, match="does not answer"):
        run(url)
    with serving(None) as url, pytest.raises(InputError, match="answers 503"):
        run(url, "--follow")


def test_the_command_follows_line_by_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(2.0) + line(2.5))
    text = run(log, "--follow", "--seconds", "0")
    assert "now 2.50, mean 2.25" in text
    assert text.rstrip().splitlines()[-1].startswith("  note")
    rows = run(log, "--follow", "--seconds", "0", "--format", "json").splitlines()
    assert json.loads(rows[-1])["accept_length"] == 2.25


def test_follow_takes_one_source_and_no_page(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one source"):
        run(tmp_path / "a", tmp_path / "b", "--follow")
    with pytest.raises(InputError, match="text or json"):
        run(tmp_path / "a", "--follow", "--format", "html")


def test_a_run_folder_is_followed_by_its_log(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up(4))
    *_, last = follow(str(folder), seconds=0.0)
    assert last.main is not None
    assert str(last.main.engine) == "sglang==0.5.23"
    assert last.main.accept_rate is not None
    assert status_line(last).startswith("now ")
    assert sparkline(last).startswith("1.00 ")


def test_on_a_terminal_the_account_stands_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.console

    from eagle3lab.cli.acceptance import Format, _screen

    log = tmp_path / "server.log"
    log.write_text(line(2.0) + line(2.5))
    shown = io.StringIO()
    console = rich.console.Console
    monkeypatch.setattr(
        rich.console, "Console", lambda **more: console(file=shown, force_terminal=True, width=120, **more)
    )
    reports = list(_screen(follow(str(log), seconds=0.0), Format.TEXT))
    assert reports[-1].main is not None
    assert "2.25 tokens a verify step" in shown.getvalue()
    assert "Ctrl-C ends" in shown.getvalue()


def test_ctrl_c_ends_with_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_text(line(2.0) + line(2.5))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eagle3lab.acceptance.live.time.sleep", interrupted)
    text = run(log, "--follow")
    assert "  accept length  2.25" in text


def test_the_notebook_updates_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython")
    import IPython.display

    class Handle:
        shown: ClassVar[list[str]] = []

        def update(self, content: object) -> None:
            self.shown.append(content.data)  # type: ignore[attr-defined]

    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: Handle())
    log = tmp_path / "server.log"
    log.write_text(line(2.0) + line(2.5))
    report = watch(str(log), seconds=0.0)
    assert report.main is not None
    assert "2.25 tokens a verify step" in Handle.shown[-1]
    assert "<script" not in Handle.shown[-1]
    assert sys.modules["IPython"]
