"""A run folder: everything that a run of a server left behind, so that it can be read again later.

Whoever starts a server writes into it (`eagle3lab.serving`); whoever reads it needs nothing but the files. None of
them holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from eagle3lab.checkpoint.json_input import json_type, read_json_object
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.runs.events import RankEvents

PLAN = "plan.json"
"""The plan and the engine, as the server was started."""
COMMAND = "command.sh"
"""The command that starts it again."""
LOG = "server.log"
"""What the server wrote."""
OVERLAY = "overlay"
"""Folder: what was put into the engine from outside."""
EVENTS = "events"
"""Folder: what the probe saw, one file a rank (`rank-<tp_rank>-<pid>.jsonl`)."""
REQUESTS = "requests.jsonl"
"""The requests in order of sending."""
SERVER_INFO = "server_info.json"
"""The server's own account of itself after the requests, secrets redacted."""
METRICS_BEFORE, METRICS_AFTER = "metrics-before.txt", "metrics-after.txt"
"""What `/metrics` answered before and after the measured requests: Prometheus text."""
VERSIONS = "versions.json"
"""Versions of the engine, of Python and of the packages that decide what is computed."""
BENCH, BENCH_LOG = "bench.jsonl", "bench.log"
"""The result of SGLang's serving benchmark, where that was the workload, and what it printed."""
MEASUREMENT = "measurement.json"
"""The result, as `eagle3lab measure --format json` prints it."""

# A server's metrics are some hundred kilobytes; a file of another size is somebody else's.
_MOST_METRICS = 64 * 2**20


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


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run. The files it names need not all be there: a run may have ended early.

    Attributes:
        path: The folder.
    """

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The run folder at `path`.

        Raises:
            InputError: There is none.
        """
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise InputError("there is no such folder", path=path, advice="Give the folder of a run")
        if not (folder.path / PLAN).is_file():
            raise InputError(
                f"is no run folder: it holds no {PLAN}",
                path=path,
                advice="Give the folder that `eagle3lab measure --run-dir` wrote",
            )
        return folder

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.path / LOG

    @property
    def events_dir(self) -> Path:
        """The probe's files."""
        return self.path / EVENTS

    @property
    def requests_file(self) -> Path:
        """The requests."""
        return self.path / REQUESTS

    @property
    def command(self) -> Path:
        """A script with the command."""
        return self.path / COMMAND

    def plan(self) -> dict[str, Any]:
        """The fields of the launch plan: `model`, `drafter`, `algorithm`, `steps`, `topk`, `draft_tokens`, `tp`, ….

        Raises:
            InputError: The file cannot be read, or holds none.
        """
        return self._part_of_plan("plan")

    @property
    def release(self) -> str | None:
        """The engine's release, such as `0.5.9`; None where it is not known (a server that was attached to)."""
        release = self._part_of_plan("engine").get("release")
        return release if isinstance(release, str) and release else None

    @property
    def draft_tokens(self) -> int | None:
        """D, the tokens that a verify step checks, the root included; None without speculation."""
        value = self.plan().get("draft_tokens")
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def _part_of_plan(self, name: str) -> dict[str, Any]:
        value = read_json_object(self.path / PLAN)[0].get(name)
        if not isinstance(value, dict):
            raise InputError(f"{name!r} is {json_type(value)} instead of an object", path=self.path / PLAN)
        return value

    def requests(self) -> tuple[Request, ...]:
        """The requests in order of sending, warm-up included; none if the run did not get there.

        Raises:
            InputError: The file is damaged.
        """
        return read_requests(self.requests_file) if self.requests_file.is_file() else ()

    def events(self) -> tuple[RankEvents, ...]:
        """What the probe saw, rank by rank; nothing if there was no probe.

        Raises:
            InputError: A file is damaged.
        """
        from eagle3lab.runs.events import read_events

        return read_events(self.events_dir) if self.events_dir.is_dir() else ()

    def server_info(self) -> dict[str, Any] | None:
        """The server's own account of its arguments and state; None if the run did not get there."""
        return self._object(SERVER_INFO)

    def versions(self) -> dict[str, Any] | None:
        """Package versions by name."""
        return self._object(VERSIONS)

    def measurement(self) -> dict[str, Any] | None:
        """The result, as `eagle3lab measure --format json` prints it."""
        return self._object(MEASUREMENT)

    def _object(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return read_json_object(path)[0] if path.is_file() else None

    @property
    def metrics_before(self) -> str | None:
        """What `/metrics` answered before the measured requests; None if it was not asked, or has no metrics."""
        return self._metrics(METRICS_BEFORE)

    @property
    def metrics_after(self) -> str | None:
        """What `/metrics` answered after them."""
        return self._metrics(METRICS_AFTER)

    def _metrics(self, name: str) -> str | None:
        path = self.path / name
        if not path.is_file():
            return None
        if path.stat().st_size > _MOST_METRICS:
            raise InputError("is too large for the metrics of a server", path=path)
        return path.read_text(encoding="utf-8", errors="replace")
