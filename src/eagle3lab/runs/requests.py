"""The requests of a run, one JSON line each: what was sent, what came back, and what the server said about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from eagle3lab.errors import InputError

Phase = Literal["measured", "warm-up"]

# A request of a hundred thousand tokens takes less than one.
_LONGEST_LINE = 64 * 2**20


class Request(msgspec.Struct, frozen=True):
    """One request and its answer.

    Attributes:
        index: Its place in the order of sending, from 0; each phase counts for itself.
        prompt_tokens: Tokens of the prompt as the server counted them.
        completion_tokens: Tokens generated.
        output_ids: Their ids; empty where the server returns none (the chat endpoint).
        meta_info: The server's `meta_info` as it came; with speculation `spec_verify_ct` and others.
        started_s: When it was sent, in seconds since the epoch.
        ended_s: When its answer had arrived, likewise.
        phase: `warm-up` requests are in no count.
    """

    index: int
    prompt_tokens: int
    completion_tokens: int
    output_ids: list[int]
    meta_info: dict[str, Any]
    started_s: float
    ended_s: float
    phase: Phase = "measured"


def write_requests(path: Path, requests: Iterable[Request]) -> None:
    """Write the requests, one line each, over what is there.

    Raises:
        OSError: The file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for request in requests:
            file.write(encoder.encode(request) + b"\n")


def read_requests(path: Path) -> tuple[Request, ...]:
    """The requests of the file, in its order.

    Raises:
        InputError: It cannot be read, or a line is no request; names the line.
    """
    decoder = msgspec.json.Decoder(Request)
    requests: list[Request] = []
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            requests.append(decoder.decode(line))
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"is no request: {error}", path=path, line=number) from None
    return tuple(requests)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE:
                    raise InputError("the line is too long for a request", path=path, line=number)
                yield number, line
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
