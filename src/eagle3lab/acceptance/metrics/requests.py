"""Requests of a run: one row each, exact."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from eagle3lab.acceptance.logs.observations import Observation, Unparsed
from eagle3lab.acceptance.logs.reader import Server, add_observation
from eagle3lab.acceptance.logs.summaries import request

if TYPE_CHECKING:
    from eagle3lab.runs.requests import Request


def server_of_requests(requests: Iterable[Request], path: str, *, warm_up: bool = False) -> Server:
    """The server that answered, from what it said about each answer (`meta_info`), in the order of their ends.

    Answers without a verify step (one token, or no speculation) are idle: no data, no failure.

    Args:
        requests: In the order of sending.
        path: The file they stand in.
        warm_up: Whether to count warm-up requests too.
    """
    server = Server(path, 1, source="sglang-request")
    for one in sorted(requests, key=lambda one: one.ended_s):
        if one.phase == "warm-up" and not warm_up:
            continue
        seen = observed(one)
        if isinstance(seen, Observation):
            add_observation(server, seen)
    return server


def observed(one: Request) -> Observation | Unparsed:
    """What the server said about one answer, at the time of its end."""
    time = one.ended_s if one.ended_s > 0 else math.nan
    return request({"completion_tokens": one.completion_tokens, **one.meta_info}, time=time)
