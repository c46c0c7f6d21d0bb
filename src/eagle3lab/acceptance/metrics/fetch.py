"""Asking a server for its metrics and for its account of itself, over HTTP and with limits."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlsplit

from eagle3lab.acceptance.metrics.pages import LONGEST_PAGE, Snapshot, read_page
from eagle3lab.acceptance.metrics.server_info import ServerInfo, read_server_info
from eagle3lab.errors import InputError
from eagle3lab.proxies import opener_for
from eagle3lab.text import printable

API_KEY = "EAGLE3LAB_API_KEY"
"""The environment variable with the server's key, if it asks for one; keys are no command line arguments."""

_TIMEOUT_S = 10.0


def is_url(source: str) -> bool:
    """Whether a source is a server's address."""
    return source.startswith(("http://", "https://"))


@dataclass(slots=True)
class Address:
    """A server at a URL.

    url: `http://host:port`, with or without `/metrics` behind it.
    """

    url: str
    _opener: urllib.request.OpenerDirector = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if not is_url(self.url) or not parts.hostname:
            raise InputError(
                f"'{printable(self.url)}' is no server's address", advice="Write http://127.0.0.1:30000"
            )
        self.url = self.url.rstrip("/").removesuffix("/metrics")
        self._opener = opener_for(parts.hostname)

    def page(self) -> Snapshot:
        """What `/metrics` says now.

        Raises:
            InputError: Nothing answers, or something else than the metrics of a server that speculates.
        """
        return read_page(self._get("/metrics"), time=time.time(), source=f"{self.url}/metrics")

    def info(self) -> ServerInfo | None:
        """What `/server_info` says, under the older name where the newer is not known; None where neither is."""
        for path in ("/server_info", "/get_server_info"):
            try:
                answer = json.loads(self._get(path))
                return read_server_info(answer) if isinstance(answer, dict) else None
            except (InputError, ValueError, RecursionError):
                continue
        return None

    def _get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path)
        if key := os.environ.get(API_KEY):
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read(LONGEST_PAGE + 1)
        except urllib.error.HTTPError as error:
            raise InputError(
                f"answers {error.code} {printable(str(error.reason))}",
                path=self.url + path,
                advice=_advice(error.code),
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", None) or error)
            raise InputError(
                f"does not answer: {printable(reason)}",
                path=self.url + path,
                advice="Is the server running there?",
            ) from None
        if len(content) > LONGEST_PAGE:
            raise InputError("answers with more than a server's metrics", path=self.url + path)
        return content.decode("utf-8", "replace")


def _advice(code: int) -> str:
    if code in (401, 403):
        return f"Put the server's key into {API_KEY}"
    return "Start the server with --enable-metrics" if code == 404 else "Look into the server's log"
