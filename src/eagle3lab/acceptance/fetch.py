"""Asking a server for its metrics and for its account of itself, over HTTP, in bounded time and bytes.

Redirects are not followed. Whatever a URL holds beside the host (a password, a token in its query) goes to that host
alone and into no message.
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import unquote, urlsplit

from eagle3lab.acceptance.documents import ServerInfo
from eagle3lab.acceptance.metrics import LONGEST_PAGE, Snapshot, read_page
from eagle3lab.errors import InputError
from eagle3lab.proxies import opener_for, read_bounded
from eagle3lab.text import printable

API_KEY = "EAGLE3LAB_API_KEY"
"""The environment variable with the server's key, if it asks for one; keys are no command line arguments."""

_TIMEOUT_S = 10.0
"""Seconds for a whole answer, from the connection to the last byte, however slowly it drips."""

_PATHS = ("/metrics", "/server_info", "/get_server_info")


def is_url(source: str) -> bool:
    """Whether a source is a server's address."""
    return source.lower().startswith(("http://", "https://"))


def shown_url(url: str) -> str:
    """A URL as it may be printed: without user, password, query and fragment."""
    rest = url.partition("://")[2]
    host = rest.split("/", 1)[0].split("?", 1)[0].split("#", 1)[0].rpartition("@")[2]
    path = rest.split("?", 1)[0].split("#", 1)[0].partition("/")[2]
    return printable(f"{url.partition('://')[0]}://{host}" + (f"/{path}" if path else ""))


@dataclass(slots=True)
class Address:
    """A server at a URL.

    url: `http://host:port`, with or without `/metrics` behind it; `user:password@` and a query are sent, never shown.
    dp_rank: which data-parallel replica it is about where the answer tells of several; all of them if None.
    """

    url: str
    dp_rank: int | None = None
    _opener: urllib.request.OpenerDirector = field(init=False)
    _query: str = field(init=False, default="")
    _basic: str = field(init=False, default="")

    def __post_init__(self) -> None:
        advice = "Write http://127.0.0.1:30000"
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if not is_url(self.url) or not host:
            raise InputError(f"'{shown_url(self.url)}' is no server's address", advice=advice)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._basic = base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode()
        path = parts.path.rstrip("/")
        for known in _PATHS:
            path = path.removesuffix(known)
        where = f"[{host}]" if ":" in host else host
        self._query = f"?{parts.query}" if parts.query else ""
        self.url = f"{parts.scheme}://{where}{f':{port}' if port is not None else ''}{path}"
        self._opener = opener_for(host)

    def page(self) -> Snapshot:
        """What `/metrics` says now.

        Raises:
            InputError: Nothing answers, or something else than the metrics of a server that speculates.
        """
        return read_page(self._get("/metrics"), time=time.time(), source=shown_url(f"{self.url}/metrics"))

    def info(self) -> ServerInfo | None:
        """What `/server_info` says, under the older name where the newer is not known; None where neither is."""
        for path in ("/server_info", "/get_server_info"):
            try:
                answer = json.loads(self._get(path))
            except (InputError, ValueError, RecursionError):
                continue
            return ServerInfo.of(answer) if isinstance(answer, dict) else None
        return None

    def _get(self, path: str) -> str:
        shown = shown_url(self.url + path)
        try:
            request = urllib.request.Request(self.url + path + self._query)
            if key := os.environ.get(API_KEY):
                request.add_header("Authorization", f"Bearer {key}")
            elif self._basic:
                request.add_header("Authorization", f"Basic {self._basic}")
            content = read_bounded(self._opener, request, timeout_s=_TIMEOUT_S, most=LONGEST_PAGE)
        except urllib.error.HTTPError as error:
            moved = 300 <= error.code < 400
            raise InputError(
                f"answers {error.code} {printable(str(error.reason))}",
                path=shown,
                advice="It sends the caller elsewhere, which is not followed: name that address" if moved
                else _advice(error.code),
            ) from None  # fmt: skip
        except (OSError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", None) or error) or type(error).__name__
            secret = self._query and self._query in reason
            raise InputError(
                f"does not answer: {'the address is malformed' if secret else printable(reason)}",
                path=shown,
                advice="Is the server running there?",
            ) from None
        if len(content) > LONGEST_PAGE:
            raise InputError("answers with more than a server's metrics", path=shown)
        return content.decode("utf-8", "replace")


def _advice(code: int) -> str:
    if code in (401, 403):
        return f"Put the server's key into {API_KEY}"
    return "Start the server with --enable-metrics" if code == 404 else "Look into the server's log"
