"""Requests over HTTP, past the proxy where they stay on this machine."""

from __future__ import annotations

import urllib.request

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def opener_for(host: str) -> urllib.request.OpenerDirector:
    """What opens addresses of `host`.

    A proxy for the outside world must not get in the way of this machine's own addresses.
    """
    direct = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
    return urllib.request.build_opener(*direct)
