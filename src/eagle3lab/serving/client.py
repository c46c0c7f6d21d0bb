"""Asking a server that runs: its health, its own account of itself, and text; and what can go wrong with one."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import Any, Self
from urllib.parse import urlsplit

from eagle3lab.engines.launch.secrets import redact_text, spellings
from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.proxies import opener_for, read_bounded
from eagle3lab.serving.logs import first_traceback, tail
from eagle3lab.text import printable

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or the messages of a chat (OpenAI's form, for a target with a chat template)."""

_CHECK_S, _SLACK_S = 0.2, 10.0
_MOST_BYTES = 2**28


class ServerError(Eagle3labError):
    """A server did not start, did not answer, or could not be watched.

    Attributes:
        traceback: The first traceback that any of its processes wrote, or an empty string.
        tail: The log's last lines.
    """

    def __init__(self, problem: str, *, traceback: str = "", tail: str = "") -> None:
        self.problem = problem
        self.traceback = traceback
        self.tail = tail
        if traceback:
            super().__init__(f"{problem}. The first traceback in its log:\n{traceback}")
        elif tail:
            super().__init__(f"{problem}. The end of its log:\n{tail}")
        else:
            super().__init__(problem)


class ServerDied(ServerError):
    """The server's process ended while it was needed."""


class ServerRefused(ServerError):
    """The server answered a request with an error: it lives."""


class ServerTimeout(ServerError):
    """The server was not ready, or did not answer, in the time it was given."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One request's answer.

    Attributes:
        text: What was generated.
        token_ids: Its token ids; none from the chat endpoint.
        meta: The server's `meta_info`: token counts, latency, and with speculation `spec_verify_ct` and others.
        started_s: When the request was sent, in seconds since the epoch.
        ended_s: When its answer had arrived, likewise.
    """

    text: str
    token_ids: tuple[int, ...]
    meta: Mapping[str, Any]
    started_s: float = 0.0
    ended_s: float = 0.0


class RunningServer:
    """A server at a URL, whoever started it.

    Args:
        url: `http://host:port`.
        log: The file it logs to, if there is one to read.
        api_key: Sent with every request.
    """

    def __init__(self, url: str, *, log: Path | None = None, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("this is no server's address", advice="Write http://127.0.0.1:30000")
        if parts.username is not None or parts.query or parts.fragment:
            # Such an address would be printed in errors and kept in run folders.
            raise InputError(
                f"the address of {parts.hostname} holds a user's name or a query",
                advice="Write http://host:port, and give a key as --api-key or in EAGLE3LAB_API_KEY",
            )
        self.url = url.rstrip("/")
        self.log = log
        self.api_key = api_key
        self._opener = opener_for(parts.hostname)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server if this object started it; one that was attached to goes on."""

    def check(self) -> None:
        """Raise `ServerDied` if the server is known to have ended; of one that was attached to nothing is known."""

    def secrets(self) -> tuple[str, ...]:
        """What must not be written down: its API key, as far as is known."""
        return (self.api_key,) if self.api_key else ()

    def redacted(self, text: str) -> str:
        """A text as it may be written down: without the server's secrets."""
        return redact_text(text, spellings(self.secrets()))

    def log_lines(self) -> list[str]:
        """The log so far; none if there is no log."""
        if self.log is None or not self.log.is_file():
            return []
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                return file.read().split("\n")
        except OSError:
            return []

    def request(self, path: str, body: object = None, *, timeout_s: float = 30.0) -> bytes:
        """GET `path`, or POST `body` to it as JSON, and return what the server answers.

        Raises:
            ServerRefused: It answers with an error; what it said is in the message.
            ServerError: It does not answer.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )
        if self.api_key is not None:
            request.add_header("Authorization", f"Bearer {self.api_key}")
        try:
            content = read_bounded(self._opener, request, timeout_s=timeout_s, most=_MOST_BYTES)
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace").strip()
            raise ServerRefused(
                f"{self.url}{path} answers {error.code} {printable(f'{error.reason} {said}')}".rstrip()
            ) from None
        except (OSError, HTTPException) as error:
            # Text, not the exception: a frame that held it would keep itself, and this server, alive.
            reason = str(getattr(error, "reason", None) or error)
            raise ServerError(f"{self.url}{path} does not answer: {printable(reason)}") from None
        if len(content) > _MOST_BYTES:
            raise ServerError(f"{self.url}{path} answers with more than {_MOST_BYTES >> 20} MiB")
        return content

    def healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Whether `/health` answers that the server is ready for requests."""
        try:
            self.request("/health", timeout_s=timeout_s)
        except ServerError:
            return False
        return True

    def server_info(self) -> dict[str, Any]:
        """The server's own account of its arguments and state. Holds its secrets."""
        try:
            content = self.request("/server_info")
        except ServerError:
            content = self.request("/get_server_info")  # its name before 0.5.4
        try:
            info = json.loads(content)
        except ValueError:
            info = None
        if not isinstance(info, dict):
            raise ServerError(f"{self.url} answers something else than SGLang does")
        return info

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        *,
        concurrency: int = 1,
        temperature: float = 0.0,
        stop_at_eos: bool = False,
        timeout_s: float = 600.0,
        stall_s: float | None = None,
        answered: Callable[[int, Generation], None] | None = None,
    ) -> list[Generation]:
        """Text for each prompt, in order; sent in order, too.

        Args:
            prompts: Texts, token ids, or chats.
            max_new_tokens: Tokens to generate for each.
            concurrency: Requests under way at once.
            temperature: 0 for greedy text.
            stop_at_eos: End at an end-of-sequence token; otherwise all have the same length.
            timeout_s: For all of them together.
            stall_s: Longest time without an answer or a word in the log; None for no limit.
            answered: Called, in this thread, with the index of a prompt and its answer as soon as that is there.

        Raises:
            ServerDied: The server ended meanwhile; with the first traceback in its log.
            ServerTimeout: It did not answer in time.
            ServerRefused: It refused a request.
        """
        began = time.monotonic()
        deadline = began + timeout_s
        sampling = {
            "temperature": temperature,
            "max_new_tokens": max_new_tokens,
            "ignore_eos": not stop_at_eos,
        }
        waiting: SimpleQueue[int] = SimpleQueue()
        answers: Queue[tuple[int, Generation | Exception]] = Queue()
        for number in range(len(prompts)):
            waiting.put(number)

        def ask() -> None:
            with suppress(Empty):
                while True:
                    number = waiting.get_nowait()
                    try:
                        # Longer than the deadline, which is watched below: that error says more.
                        left = max(0.0, deadline - time.monotonic()) + _SLACK_S
                        answers.put((number, self._ask(prompts[number], sampling, left)))
                    except Exception as error:
                        answers.put((number, error))

        # Daemons: neither Ctrl-C nor the end of the program waits for a server that never answers.
        for _ in range(min(max(1, concurrency), len(prompts))):
            threading.Thread(target=ask, daemon=True, name="eagle3lab-request").start()
        results: dict[int, Generation] = {}
        last_word, log_size = began, self._log_size()
        try:
            while len(results) < len(prompts):
                with suppress(Empty):
                    number, answer = answers.get(timeout=_CHECK_S)
                    if isinstance(answer, ServerError) and not isinstance(answer, ServerRefused):
                        self.wait_for_its_end()
                    if isinstance(answer, Exception):
                        raise answer
                    results[number] = answer
                    last_word = time.monotonic()
                    if answered is not None:
                        answered(number, answer)
                    continue
                self.check()
                now, size = time.monotonic(), self._log_size()
                if size != log_size:
                    last_word, log_size = now, size
                missing = f"{len(prompts) - len(results)} of {len(prompts)} requests unanswered"
                if now > deadline:
                    raise self._too_late(f"{self.url} left {missing} for {timeout_s:.0f} s")
                if stall_s is not None and now - last_word > stall_s:
                    raise self._too_late(
                        f"{self.url} has neither answered nor logged anything for {stall_s:.0f} s, {missing}"
                    )
        finally:
            with suppress(Empty):  # what was not sent yet never is
                while True:
                    waiting.get_nowait()
        return [results[number] for number in range(len(prompts))]

    def _log_size(self) -> int:
        try:
            return self.log.stat().st_size if self.log is not None else 0
        except OSError:
            return 0

    def _too_late(self, problem: str) -> ServerTimeout:
        lines = self.log_lines()
        return ServerTimeout(problem, traceback=first_traceback(self.log), tail=tail(lines))

    def wait_for_its_end(self) -> None:
        """A lost connection is often the first sign of a death: give the server's end a moment to become known."""

    def _ask(self, prompt: Prompt, sampling: Mapping[str, Any], timeout_s: float) -> Generation:
        started = time.time()
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            # Only newer releases know return_meta_info; the others pass it over.
            body = {"model": "default", "messages": list(prompt), "return_meta_info": True}
            body |= {("max_tokens" if key == "max_new_tokens" else key): sampling[key] for key in sampling}
            content = self.request("/v1/chat/completions", body, timeout_s=timeout_s)
        else:
            body = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
            body["sampling_params"] = dict(sampling)
            content = self.request("/generate", body, timeout_s=timeout_s)
        try:
            answer = json.loads(content)
            if "sampling_params" in body:
                text, ids, meta = answer["text"], answer.get("output_ids") or (), answer["meta_info"]
            else:
                choice, usage = answer["choices"][0], answer.get("usage") or {}
                text, ids = choice["message"].get("content") or "", ()
                counts = {key: usage.get(key) or 0 for key in ("prompt_tokens", "completion_tokens")}
                meta = counts | (choice.get("meta_info") or {})
            return Generation(text, tuple(ids), dict(meta), started, time.time())
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            said = printable(content[:200].decode(errors="replace"))
            raise ServerError(f"{self.url} answers something else than SGLang does: {said}") from None


def attach(
    url: str, log: str | Path | None = None, *, api_key: str | None = None, timeout_s: float = 10.0
) -> RunningServer:
    """A server that already runs, which goes on when this object is gone.

    Args:
        url: `http://host:port`.
        log: The file it logs to, if there is one.
        api_key: If it asks for one.
        timeout_s: How long to wait until it answers.

    Raises:
        InputError: The URL or the log is none.
        ServerError: Nothing ready answers there.
    """
    if log is not None and not Path(log).is_file():
        raise InputError(
            "there is no log", path=log, advice="Give the file that the server writes to, or none"
        )
    server = RunningServer(url, log=Path(log) if log is not None else None, api_key=api_key)
    deadline = time.monotonic() + timeout_s
    while not server.healthy():
        if time.monotonic() > deadline:
            server.request("/health")  # its error says what is wrong
            break
        time.sleep(_CHECK_S)
    return server
