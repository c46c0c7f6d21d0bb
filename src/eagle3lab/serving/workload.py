"""What is put to a running server, prompts or SGLang's own benchmark; all that it says is kept in the run folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint.json_input import json_type, parse_json_object
from eagle3lab.engines.launch.secrets import redact_arguments, redact_json
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import (
    BENCH,
    BENCH_LOG,
    METRICS_AFTER,
    METRICS_BEFORE,
    OVERLAY,
    SERVER_INFO,
    Phase,
    Request,
    RunFolder,
    write_requests,
)
from eagle3lab.serving.client import Generation, Prompt, RunningServer, ServerError, ServerRefused
from eagle3lab.serving.logs import tail
from eagle3lab.serving.server import Server

Answered = Callable[[Phase, int, int], None]
"""Called with a phase, the number of its requests that have been answered, and of all that it has."""

ACCEPTED = 'one JSON object a line with "prompt" or "text" (a string), "input_ids" (token ids) or "messages" (a chat)'
"""What a file of prompts holds."""

_TEXT, _IDS, _CHAT = ("prompt", "text"), "input_ids", "messages"
_MOST_PROMPTS, _LONGEST_LINE = 100_000, 16 * 2**20

_BENCH = "sglang.bench_serving"
_RANDOM_IDS = (
    *("--dataset-name", "random-ids"),
    *("--num-prompts", "16"),
    *("--random-input-len", "64"),
    *("--random-output-len", "64"),
    *("--random-range-ratio", "1"),
    *("--max-concurrency", "4"),
)
_SET_HERE = ("--backend", "--base-url", "--host", "--port", "--model", "--output-file")
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Workload:
    """What a server is asked.

    Attributes:
        prompts: Texts, token ids or chats (`read_prompts` reads them).
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


def read_prompts(path: str | Path, limit: int | None = None, *, as_chat: bool = False) -> tuple[Prompt, ...]:
    """The prompts of a JSONL file, in its order: see `ACCEPTED`.

    Other keys of a line are passed over. A chat is answered by the server's chat endpoint, with the target's own
    template; texts and token ids are continued as they are.

    Args:
        path: The file.
        limit: Only so many of them, from the beginning.
        as_chat: Whether a text is a user's message, to be put into the target's chat template, too.

    Raises:
        InputError: It cannot be read, holds no prompt, or a line is none; names the line.
    """
    path = Path(path)
    prompts: list[Prompt] = []
    for number, line in _lines(path):
        if limit is not None and len(prompts) >= limit:
            break
        if line.strip():
            prompt = _prompt(line, path, number)
            asked = as_chat and isinstance(prompt, str)
            prompts.append(({"role": "user", "content": prompt},) if asked else prompt)
    if not prompts:
        raise InputError("there is no prompt in the file", path=path, advice=f"Write {ACCEPTED}")
    return tuple(prompts)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(data) > _LONGEST_LINE or number > _MOST_PROMPTS:
                    raise InputError("is too large for a file of prompts", path=path, line=number)
                yield number, data.decode("utf-8")
    except OSError as error:
        raise InputError(f"the prompts cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", path=path, line=number) from None


def _prompt(line: str, path: Path, number: int) -> Prompt:
    try:
        entry = parse_json_object(line, path, what="the line")
    except InputError as error:
        raise InputError(error.problem, path=path, line=number, advice=f"Write {ACCEPTED}") from None
    given = [key for key in (*_TEXT, _IDS, _CHAT) if key in entry]
    if len(given) != 1:
        problem = f"holds {' and '.join(given)}" if given else "holds no prompt"
        raise InputError(problem, path=path, line=number, advice=f"Write {ACCEPTED}")
    value = entry[given[0]]
    if given[0] in _TEXT and isinstance(value, str) and value:
        return value
    if given[0] == _IDS and isinstance(value, list) and value and all(map(_is_id, value)):
        return tuple(value)
    if given[0] == _CHAT and isinstance(value, list) and value and all(map(_is_message, value)):
        return tuple(value)
    raise InputError(
        f"{given[0]!r} is {json_type(value)} that is no prompt",
        path=path,
        line=number,
        advice=f"Write {ACCEPTED}",
    )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


@dataclass(frozen=True, slots=True)
class Bench:
    """SGLang's own serving benchmark as a workload: `python -m sglang.bench_serving` against the running server.

    It says how fast the server is. What it keeps of each answer holds no counts of drafts, so acceptance comes from the
    probe's totals.

    Attributes:
        arguments: As its `--help` lists them; address, model and output are added. Random token ids unless given.
    """

    arguments: Sequence[str] = _RANDOM_IDS

    def __post_init__(self) -> None:
        for word in self.arguments:
            if word.partition("=")[0] in _SET_HERE:
                raise InputError(f"{word} is set by the measurement", advice="Leave it out")

    @property
    def source(self) -> str:
        """What is asked, in words."""
        return f"{_BENCH} {' '.join(redact_arguments(self.arguments))}"

    def as_json(self) -> dict[str, Any]:
        """The workload as plain values, without secrets."""
        return {"kind": "bench", "arguments": redact_arguments(self.arguments)}


def run_bench(server: Server, bench: Bench, *, timeout_s: float = 7200.0) -> None:
    """Run the benchmark to its end; its result and its output are kept in the server's run folder.

    Raises:
        ServerDied: The server ended meanwhile.
        ServerError: The benchmark fails, or takes too long.
    """
    run_dir = server.run_dir
    words = [server.engine.python, "-m", _BENCH, "--backend", "sglang", "--base-url", server.url]
    words += ["--model", server.plan.model, "--output-file", str(run_dir / BENCH), *bench.arguments]
    path = [str(run_dir / OVERLAY), *map(str, server.engine.path), os.environ.get("PYTHONPATH", "")]
    environment = (
        os.environ | dict(server.plan.environment) | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    )
    if server.api_key is not None:
        environment["OPENAI_API_KEY"] = server.api_key
    output = run_dir / BENCH_LOG
    with output.open("wb") as file:
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            _wait(server, process, time.monotonic() + timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for kept in (output, run_dir / BENCH):
                if kept.is_file():
                    text = kept.read_text(encoding="utf-8", errors="replace")
                    kept.write_text(server.redacted(text), encoding="utf-8")
    if process.returncode:
        server.wait_for_its_end()
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        raise ServerError(f"{_BENCH} ended with exit status {process.returncode}", tail=tail(lines))


def _wait(server: Server, process: subprocess.Popen[bytes], deadline: float) -> None:
    while process.poll() is None:
        server.check()
        if time.monotonic() > deadline:
            raise ServerError(f"{_BENCH} is not done in time")
        time.sleep(_POLL_S)
