"""A server that is not what it should be: slow, endless, sending elsewhere; and secrets in its address."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eagle3lab.acceptance import fetch
from eagle3lab.acceptance.comparison import compare_runs
from eagle3lab.acceptance.fetch import Address, shown_url
from eagle3lab.acceptance.live import FollowedAddress
from eagle3lab.acceptance.report import Given
from eagle3lab.acceptance.sources import account_sources
from eagle3lab.errors import InputError
from tests.acceptance.pages import sglang_page

Answer = Callable[[BaseHTTPRequestHandler], None]
SECRET = "hunter2-secret"


class Hostile:
    """A local server that answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer = lambda handler: None
        self.asked: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, dict(self.headers)))
                with contextlib.suppress(OSError):
                    outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    made = Hostile()
    yield made
    made.server.shutdown()
    made.server.server_close()


def send(handler: BaseHTTPRequestHandler, body: str, code: int = 200) -> None:
    data = body.encode()
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def test_a_slow_drip_ends(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_TIMEOUT_S", 0.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b"#")
            handler.wfile.flush()
            time.sleep(0.05)

    hostile.answer = drip
    start = time.monotonic()
    with pytest.raises(InputError, match="no whole answer"):
        Address(f"http://{hostile.host}").page()
    assert time.monotonic() - start < 3


def test_an_endless_answer_ends(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "LONGEST_PAGE", 1 << 20)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"sglang:x 1\n" * 1000)

    hostile.answer = endless
    with pytest.raises(InputError, match="more than a server's metrics"):
        Address(f"http://{hostile.host}").page()


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_no_redirect_is_followed(code: int, hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetch.API_KEY, SECRET)

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Location", f"http://{hostile.host}/stolen")
        handler.end_headers()

    hostile.answer = elsewhere
    with pytest.raises(InputError, match=f"answers {code}"):
        Address(f"http://{hostile.host}").page()
    assert [path for path, _ in hostile.asked] == ["/metrics"]


def test_what_an_address_holds_goes_to_its_host_and_into_no_message(
    hostile: Hostile, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile.answer = lambda handler: send(handler, "gone", 503)
    url = f"http://user:{SECRET}@{hostile.host}/metrics?token={SECRET}"
    said = []
    for ask in (
        lambda: account_sources([url], Given()),
        lambda: compare_runs(url, url),
        lambda: FollowedAddress(url, Given()).poll(),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        said.append(f"{caught.value} {caught.value!r}")
    assert not any(SECRET in text for text in said)
    path, headers = hostile.asked[0]
    assert path == f"/metrics?token={SECRET}"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"user:{SECRET}"
    hostile.answer = lambda handler: send(handler, sglang_page(counts=(250, 576, 12), draft_tokens=4))
    report = account_sources([url], Given())
    assert SECRET not in repr(report)
    assert report.main is not None
    assert report.main.path == f"http://{hostile.host}"


@pytest.mark.parametrize(
    "url",
    [f"http://user:{SECRET}@no-such-host.invalid", f"http://127.0.0.1:1/?token={SECRET}", f"http://u:{SECRET}@[bad",
     f"http://u:{SECRET}@h:port/", f"http://?token={SECRET}"],
)  # fmt: skip
def test_addresses_that_lead_nowhere_tell_nothing(url: str) -> None:
    with pytest.raises(InputError) as caught:
        account_sources([url], Given())
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shown() -> None:
    assert shown_url(f"http://u:{SECRET}@h:1/metrics?a={SECRET}#x") == "http://h:1/metrics"


def info(*lengths: float) -> str:
    states = [{"avg_spec_accept_length": length} for length in lengths]
    return json.dumps(
        {
            "version": "0.5.9",
            "speculative_num_draft_tokens": 4,
            "dp_size": len(lengths),
            "internal_states": states,
        }
    )


def test_without_metrics_the_server_is_asked_for_its_own_mean(hostile: Hostile) -> None:
    lengths = [2.0, 3.0]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/server_info":
            send(handler, info(*lengths))
        else:
            send(handler, "no", 404)

    hostile.answer = answer
    main = account_sources([f"http://{hostile.host}"], Given()).main
    assert main is not None
    assert main.accept_length is not None
    assert main.accept_length.mean == 2.5
    assert main.source == "sglang-info"
    assert [(rank.label, rank.accept_length) for rank in main.ranks] == [("DP0", 2.0), ("DP1", 3.0)]
    assert any("--enable-metrics" in note for note in main.notes)
    followed = FollowedAddress(f"http://{hostile.host}", Given())
    assert [followed.poll(), followed.poll()] == [True, False]
    lengths[0] = 2.2
    assert followed.poll()
    assert followed.report().main is not None
