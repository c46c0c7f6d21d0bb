"""A launch command read for what a diagnosis needs of it. Nothing is executed and nothing is expanded.

Tolerant on purpose: a command cut out of a script or a chat, with unknown options, is read as far as it goes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.errors import InputError

_LARGEST = 1 << 20
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
# Where a shell ends a command: a pipe, a list, a redirection.
_ENDS = re.compile(r"&&|\|\|?|;|&|\d?>.*|<.*")
_ALIASES = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "speculative-algo": "speculative-algorithm",
    "speculative-draft-model": "speculative-draft-model-path",
    "max-model-len": "context-length",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command.

    Attributes:
        engine: "sglang", "vllm", or None when the command names neither.
        options: Option without its dashes → its value; "" for one without.
        environment: Variables set in front of the command.
        speculative: vLLM's --speculative-config, parsed; empty for SGLang.
        notes: What could not be read.
    """

    engine: str | None
    options: Mapping[str, str]
    environment: Mapping[str, str]
    speculative: Mapping[str, object]
    notes: tuple[str, ...] = ()

    def text(self, option: str) -> str | None:
        """An option's value; None when it is not given or has none."""
        return self.options.get(option) or None

    def number(self, option: str) -> int | None:
        """An option's value as a whole number; None when it is none."""
        value = self.options.get(option, "")
        return int(value) if re.fullmatch(r"\d{1,9}", value) else None

    def has(self, option: str) -> bool:
        """Whether the option is given."""
        return option in self.options

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm in capitals (SGLang), or vLLM's method."""
        if self.engine == "vllm":
            method = self.speculative.get("method")
            return method.lower() if isinstance(method, str) else None
        value = self.text("speculative-algorithm")
        return value.upper() if value else None

    @property
    def model(self) -> str | None:
        """The target, as it is named."""
        return self.text("model-path")

    @property
    def drafter(self) -> str | None:
        """The drafter, as it is named."""
        if self.engine == "vllm":
            model = self.speculative.get("model")
            return model if isinstance(model, str) else None
        return self.text("speculative-draft-model-path")

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.number("tp-size") or 1

    @property
    def steps(self) -> int | None:
        """Draft steps."""
        if self.engine == "vllm":
            number = self.speculative.get("num_speculative_tokens")
            return number if isinstance(number, int) and not isinstance(number, bool) else None
        return self.number("speculative-num-steps")

    @property
    def topk(self) -> int | None:
        """Branches of the draft tree."""
        return self.number("speculative-eagle-topk")

    @property
    def draft_tokens(self) -> int | None:
        """Draft tokens D as asked for, the root included."""
        if self.engine == "vllm":
            return None if self.steps is None else self.steps + 1
        return self.number("speculative-num-draft-tokens")

    @property
    def effective_draft_tokens(self) -> int | None:
        """Draft tokens D as the engine uses them: a chain of `steps` has steps + 1."""
        if self.topk == 1 and self.steps is not None:
            return self.steps + 1
        return self.draft_tokens


def read_launch(given: str) -> Launch:
    """Read a launch command, or the file that holds one.

    Args:
        given: The command as typed, or the path of a script.

    Raises:
        InputError: The file cannot be read, or there is no command in it.
    """
    text, path = given, None
    if (
        "\n" not in given
        and len(given) < 4096
        and not given.lstrip().startswith(("python", "sglang", "vllm"))
    ):
        path = Path(given)
        try:
            is_file = path.is_file()
        except (OSError, ValueError):
            is_file = False
        if is_file:
            with path.open("rb") as stream:
                content = stream.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                raise InputError("is too large for a launch script", path=path)
            text = content.decode("utf-8", "replace")
        elif " " not in given.strip():
            raise InputError("is neither a launch command nor a file", path=given)
    command = _command(text)
    if command is None:
        raise InputError(
            "holds no launch command",
            path=path,
            advice="Expected python -m sglang.launch_server …, sglang serve … or vllm serve …",
        )
    return command


def _command(text: str) -> Launch | None:
    candidates = [launch for words in _commands(text) if (launch := _read(words)) is not None]
    return next((one for one in reversed(candidates) if one.engine), candidates[-1] if candidates else None)


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each line, continued lines joined, comments left out; a quote left open is closed."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = line.strip().lstrip("!$ ")
        if not line or line.startswith("#"):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.replace('"', " ").replace("'", " ").split()
        if words:
            yield words


def _read(words: list[str]) -> Launch | None:
    engine, start = _engine(words)
    environment = {
        match[1]: match[2] for word in words[:start] if (match := _ASSIGNMENT.fullmatch(word)) is not None
    }
    options = dict(_options(words[start:]))
    if engine is None and not any(option.startswith("speculative") for option in options):
        return None
    speculative, notes = _speculative(options) if engine != "sglang" else ({}, ())
    if engine is None and speculative:
        engine = "vllm"
    return Launch(engine, options, environment, speculative, notes)


def _engine(words: list[str]) -> tuple[str | None, int]:
    """The engine, and where its own options start."""
    for at, word in enumerate(words):
        name = word.replace("\\", "/").rsplit("/", 1)[-1]
        if name in ("sglang.launch_server", "launch_server.py") or word.endswith("sglang.launch_server"):
            return "sglang", at + 1
        if name in ("sglang", "vllm") and at + 1 < len(words) and words[at + 1] == "serve":
            return name, at + 2
        if name.startswith("vllm.entrypoints"):
            return "vllm", at + 1
    return None, 0


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    end = next((at for at, word in enumerate(words) if _ENDS.fullmatch(word)), len(words))
    rest = words[:end]
    if rest and not rest[0].startswith("-"):  # vllm serve MODEL
        yield "model-path", rest.pop(0)
    while rest:
        word = rest.pop(0)
        if not _OPTION.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            values = []
            while rest and not _OPTION.match(rest[0]):
                values.append(rest.pop(0))
            value = " ".join(values)
        name = name.replace("_", "-")
        yield _ALIASES.get(name, name), value


def _speculative(options: Mapping[str, str]) -> tuple[dict[str, object], tuple[str, ...]]:
    dotted: dict[str, object] = {}
    for option, value in options.items():
        if option.startswith("speculative-config."):
            key = option.partition(".")[2].replace("-", "_")
            dotted[key] = int(value) if re.fullmatch(r"\d{1,9}", value) else value
    text = options.get("speculative-config")
    if text is None:
        return dotted, ()
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return dotted, ("--speculative-config is not JSON and was not read",)
    if not isinstance(parsed, dict):
        return dotted, ("--speculative-config is JSON, but not an object, and was not read",)
    return parsed | dotted, ()
