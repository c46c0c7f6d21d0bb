"""Requests with a key go to the address that was asked, and nowhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from eagle3lab.errors import InputError
from eagle3lab.serving.client import RunningServer, ServerError, ServerRefused


class _Elsewhere(BaseHTTPRequestHandler):
    heard: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.heard.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[ThreadingHTTPServer]:
    _Elsewhere.heard.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("place", ["http://127.0.0.1:{port}/", "//127.0.0.1:{port}/metrics", "/elsewhere"])
def test_a_redirect_is_refused(elsewhere: ThreadingHTTPServer, code: int, place: str) -> None:
    asked = []

    class Redirecting(_Elsewhere):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(code)
            self.send_header("Location", place.format(port=elsewhere.server_port))
            self.end_headers()

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = RunningServer(f"http://127.0.0.1:{server.server_port}", api_key="sk-secret")
        with pytest.raises(ServerRefused, match=f"answers {code}"):
            client.server_info()
        with pytest.raises(ServerRefused):
            client.request("/generate", {"text": "x"})
        server.shutdown()
    assert _Elsewhere.heard == []
    assert "/elsewhere" not in asked


@pytest.mark.parametrize("url", ["http://me:hunter22@host:1", "http://host:1/?token=hunter22", "hunter22"])
def test_an_address_that_holds_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InputError) as caught:
        RunningServer(url)
    assert "hunter22" not in str(caught.value)


class _Hostile(_Elsewhere):
    def do_GET(self) -> None:
        if self.path == "/refuses":
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"\x1b[2Jgone")
            return
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for _ in range(100):
                self.wfile.write(b"x" if self.path == "/drips" else b"x" * 2**20)
                time.sleep(0.1 if self.path == "/drips" else 0.0)


def test_a_hostile_server_is_given_up_in_time_and_says_nothing_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3lab.serving.client._MOST_BYTES", 2**20)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hostile) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = RunningServer(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ServerRefused) as refused:
            client.request("/refuses")
        assert "\\x1b[2Jgone" in str(refused.value) and "\x1b" not in str(refused.value)
        began = time.monotonic()
        with pytest.raises(ServerError, match="no whole answer in 1 seconds"):
            client.request("/drips", timeout_s=1.0)
        assert time.monotonic() - began < 5
        with pytest.raises(ServerError, match="more than 1 MiB"):
            client.request("/floods")
        server.shutdown()
