"""Requests over HTTP: bounded, past the proxy where they stay on this machine, only to the address that was asked."""

from __future__ import annotations

import time
import urllib.request
from email.message import Message
from typing import IO

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the error that it then is: following one would hand an API key to whoever it names."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def opener_for(host: str) -> urllib.request.OpenerDirector:
    """What opens addresses of `host`; a redirect raises `urllib.error.HTTPError` with its status.

    A proxy for the outside world must not get in the way of this machine's own addresses.
    """
    direct = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
    return urllib.request.build_opener(*direct, _NoRedirects)


def read_bounded(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, *, timeout_s: float, most: int
) -> bytes:
    """The answer to a request, of which at most `most` + 1 bytes are read.

    Raises:
        TimeoutError: It was not whole after `timeout_s` seconds, however slowly it dripped.
        OSError, http.client.HTTPException: As the opener raises them.
    """
    until = time.monotonic() + timeout_s
    content = bytearray()
    with opener.open(request, timeout=timeout_s) as answer:
        while len(content) <= most and (data := answer.read1(min(1 << 16, most + 1 - len(content)))):
            content += data
            if time.monotonic() > until:
                raise TimeoutError(f"no whole answer in {timeout_s:.0f} seconds")
    return bytes(content)
