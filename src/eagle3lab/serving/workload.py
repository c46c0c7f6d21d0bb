"""Requests put to a running server, and everything it says about them kept in the run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eagle3lab.engines.launch.secrets import redact_json
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import METRICS_AFTER, METRICS_BEFORE, SERVER_INFO, RunFolder
from eagle3lab.runs.requests import Phase, Request, write_requests
from eagle3lab.serving.client import Generation, Prompt, RunningServer
from eagle3lab.serving.errors import ServerRefused

Answered = Callable[[Phase, int, int], None]
"""Called with a phase, the number of its requests that have been answered, and of all that it has."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a server is asked.

    Attributes:
        prompts: Texts, token ids or chats (`eagle3lab.serving.prompts` reads them).
        max_new_tokens: Length at which an answer is cut.
        concurrency: Requests under way at once.
        temperature: 0 for greedy text.
        stop_at_eos: End an answer at an end-of-sequence token; otherwise all have the same length.
        warm_up: So many of the first prompts are asked beforehand as well; those answers are in no count.
        source: Where the prompts come from, in words or as a path.
    """

    prompts: Sequence[Prompt]
    max_new_tokens: int = 64
    concurrency: int = 4
    temperature: float = 0.0
    stop_at_eos: bool = True
    warm_up: int = 0
    source: str = "given"

    def __post_init__(self) -> None:
        least = (("max_new_tokens", 1), ("concurrency", 1), ("temperature", 0), ("warm_up", 0))
        for name, minimum in least:
            if not getattr(self, name) >= minimum:
                raise InputError(f"{name} cannot be {getattr(self, name)}", advice=f"Give {minimum} or more")
        if not self.prompts:
            raise InputError("the workload has no prompt")

    def as_json(self) -> dict[str, Any]:
        """The workload as plain values."""
        return {
            "kind": "prompts",
            "source": self.source,
            "prompts": len(self.prompts),
            "warm_up": min(self.warm_up, len(self.prompts)),
            "max_new_tokens": self.max_new_tokens,
            "concurrency": self.concurrency,
            "temperature": self.temperature,
            "stop_at_eos": self.stop_at_eos,
        }


def run_workload(
    server: RunningServer,
    workload: Workload,
    folder: RunFolder,
    *,
    answered: Answered | None = None,
    timeout_s: float = 7200.0,
    stall_s: float | None = None,
) -> tuple[Generation, ...]:
    """Put the workload to a server and keep requests, metrics and its account of itself in the run folder.

    Whatever happens, the requests that were answered are kept.

    Args:
        server: It must be ready.
        workload: What to ask.
        folder: Where to write; no secret of the server's reaches it.
        answered: Called with each answer.
        timeout_s: Longest time for all requests of a phase.
        stall_s: Longest time without an answer or a word in the log; None for no limit.

    Returns:
        The answers to the measured requests, in the order of the prompts.

    Raises:
        ServerError: The server ended, refused a request, or did not answer in time.
    """
    kept: list[Request] = []

    def ask(phase: Phase, prompts: Sequence[Prompt]) -> tuple[Generation, ...]:
        done = 0

        def keep(index: int, answer: Generation) -> None:
            nonlocal done
            done += 1
            kept.append(_request(index, answer, phase))
            if answered is not None:
                answered(phase, done, len(prompts))

        return tuple(
            server.generate(
                prompts,
                workload.max_new_tokens,
                concurrency=workload.concurrency,
                temperature=workload.temperature,
                stop_at_eos=workload.stop_at_eos,
                timeout_s=timeout_s,
                stall_s=stall_s,
                answered=keep,
            )
        )

    try:
        ask("warm-up", workload.prompts[: workload.warm_up])
        keep_metrics(server, folder.path / METRICS_BEFORE)
        answers = ask("measured", workload.prompts)
        keep_metrics(server, folder.path / METRICS_AFTER)
        keep_server_info(server, folder.path / SERVER_INFO)
    finally:
        write_requests(folder.requests_file, sorted(kept, key=_order))
    return answers


def _order(request: Request) -> tuple[bool, int]:
    return request.phase == "measured", request.index


def _request(index: int, answer: Generation, phase: Phase) -> Request:
    tokens = partial(_integer, answer.meta)
    return Request(
        index,
        tokens("prompt_tokens", 0),
        tokens("completion_tokens", len(answer.token_ids)),
        list(answer.token_ids),
        dict(answer.meta),
        answer.started_s,
        answer.ended_s,
        phase,
    )


def _integer(meta: object, name: str, otherwise: int) -> int:
    value = meta.get(name) if isinstance(meta, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def keep_server_info(server: RunningServer, path: Path) -> None:
    """Write the server's own account of itself, without its secrets."""
    info = redact_json(server.server_info(), server.secrets())
    path.write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")


def keep_metrics(server: RunningServer, path: Path) -> None:
    """Write what `/metrics` says; nothing where the server was started without `--enable-metrics`."""
    try:
        content = server.request("/metrics")
    except ServerRefused:
        return
    path.write_text(server.redacted(content.decode(errors="replace")), encoding="utf-8")
