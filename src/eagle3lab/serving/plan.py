"""A plan: everything that decides how a server starts, as values instead of a command line; from one and back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from eagle3lab.engines.launch.reading import Launch
from eagle3lab.engines.launch.secrets import redact_arguments, redact_environment, secrets_in
from eagle3lab.errors import InputError

MODULE = "sglang.launch_server"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# The flags of SGLang's launch command that a plan understands; all others pass through it as they are. Read from the
# argument parsers of two releases, which accept every spelling here (a test asks them). `--tp`, `--dp` and
# `--speculative-algo` are no flags of their own: the parser takes an unambiguous beginning for the whole.


@dataclass(frozen=True, slots=True)
class Flag:
    """One field of a plan and how it is written.

    Attributes:
        field: Name of the field of `LaunchPlan`.
        spellings: The flags, the one that is written first.
        integer: Whether the value is an integer.
    """

    field: str
    spellings: tuple[str, ...]
    integer: bool = False


FLAGS = (
    Flag("model", ("--model-path", "--model")),
    Flag("algorithm", ("--speculative-algorithm", "--speculative-algo")),
    Flag("drafter", ("--speculative-draft-model-path", "--speculative-draft-model")),
    Flag("steps", ("--speculative-num-steps",), integer=True),
    Flag("topk", ("--speculative-eagle-topk",), integer=True),
    Flag("draft_tokens", ("--speculative-num-draft-tokens",), integer=True),
    Flag("tp", ("--tp-size", "--tensor-parallel-size", "--tp"), integer=True),
    Flag("dp", ("--dp-size", "--data-parallel-size", "--dp"), integer=True),
    Flag("nodes", ("--nnodes",), integer=True),
    Flag("node_rank", ("--node-rank",), integer=True),
    Flag("dist_init_addr", ("--dist-init-addr", "--nccl-init-addr")),
    Flag("device", ("--device",)),
    Flag("host", ("--host",)),
    Flag("port", ("--port",), integer=True),
)

BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}


def backend_name(flag: str) -> str | None:
    """`attention` for `--attention-backend`; None for a flag that chooses no backend."""
    if flag.startswith("--") and flag.endswith("-backend") and len(flag) > len("---backend"):
        return flag[2 : -len("-backend")]
    return None


@dataclass(frozen=True, slots=True, repr=False)
class LaunchPlan:
    """One server. What is None is left to SGLang, which chooses by release and model.

    Its `repr` and everything it writes unless told otherwise show no API key and no other secret.

    Attributes:
        model: The target: a folder, or a name on the Hugging Face hub.
        drafter: The draft model, likewise.
        algorithm: `EAGLE3`, `EAGLE`, `NEXTN`, … as SGLang spells them.
        steps: Draft steps.
        topk: Candidates that continue each node of the draft tree.
        draft_tokens: D, tokens that a verify step checks, the root included.
        tp: Tensor-parallel size, over all nodes.
        dp: Data-parallel size.
        nodes: Machines.
        node_rank: This machine among them, from 0.
        dist_init_addr: `host:port` of the first machine, needed with more than one.
        device: `cpu`, `cuda`, …; None for what SGLang finds.
        host: Address the server listens on. SGLang's own default, reachable from this machine only.
        port: Its HTTP port; None for one that is free when the server starts.
        backends: By purpose: `{"attention": "triton"}` is `--attention-backend triton`.
        environment: Variables set for the server.
        extra: Further words of the command, as they are.
    """

    model: str
    drafter: str | None = None
    algorithm: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    tp: int = 1
    dp: int = 1
    nodes: int = 1
    node_rank: int = 0
    dist_init_addr: str | None = None
    device: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "backends", dict(self.backends))
        object.__setattr__(self, "environment", dict(self.environment))
        object.__setattr__(self, "extra", tuple(self.extra))
        self._check()

    def _check(self) -> None:
        for flag in FLAGS:
            value = getattr(self, flag.field)
            if value is None:
                continue
            if flag.integer and (not isinstance(value, int) or isinstance(value, bool)):
                raise InputError(f"{flag.field} must be a whole number, not {value!r}")
            if not flag.integer:
                _check_word(flag.field, value)
            elif value < (0 if flag.field == "node_rank" else 1):
                raise InputError(f"{flag.field} cannot be {value}")
        if self.port is not None and self.port > 65535:
            raise InputError(f"port cannot be {self.port}", advice="Ports end at 65535")
        if self.node_rank >= self.nodes:
            raise InputError(
                f"node_rank {self.node_rank} does not exist among {self.nodes} nodes, counted from 0"
            )
        if self.nodes > 1 and self.dist_init_addr is None:
            raise InputError(
                f"{self.nodes} nodes need dist_init_addr",
                advice="Give host:port of the first node, the same on all",
            )
        for name, value in self.backends.items():
            if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name):
                raise InputError(
                    f"backends: {name!r} names no flag", advice="Write attention for --attention-backend"
                )
            _check_word(f"backends[{name!r}]", value)
        for name, value in self.environment.items():
            if not _VARIABLE_NAME.match(name) or not isinstance(value, str) or "\0" in value:
                raise InputError(f"environment: {name!r} cannot be set", advice="Give a name and a string")
        for word in self.extra:
            if not isinstance(word, str) or "\0" in word:
                raise InputError(f"extra: {word!r} is no word of a command", advice="Give strings")
            flag_name = word.partition("=")[0]
            if flag_name in BY_SPELLING or backend_name(flag_name):
                raise InputError(
                    f"extra holds {flag_name}, which the plan has a field for",
                    advice="Set the field, or read the whole command with read_launch and plan_of",
                )

    def arguments(self) -> list[str]:
        """The arguments of SGLang's server, defaults left out. Holds secrets."""
        words: list[str] = []
        for flag in FLAGS:
            value = getattr(self, flag.field)
            if value is not None and value != _DEFAULTS[flag.field]:
                words += [flag.spellings[0], str(value)]
        for name, value in self.backends.items():
            words += [f"--{name}-backend", value]
        return [*words, *self.extra]

    def secrets(self) -> tuple[str, ...]:
        """Values that must not be shown: API keys, passwords, tokens."""
        return secrets_in(self.arguments(), self.environment)

    def command(self, *, python: str = "python", show_secrets: bool = False) -> str:
        """The command as a reader types it into a shell: one flag a line, variables in front.

        Args:
            python: The interpreter.
            show_secrets: Write API keys as they are instead of `<redacted>`.
        """
        arguments, environment = self.arguments(), dict(self.environment)
        if not show_secrets:
            arguments, environment = redact_arguments(arguments), redact_environment(environment)
        lines = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        lines.append(f"{shlex.quote(python)} -m {MODULE}")
        for position, word in enumerate(arguments):
            follows_flag = position > 0 and arguments[position - 1].startswith("--")
            if follows_flag and not word.startswith("-"):
                lines[-1] += f" {shlex.quote(word)}"
            else:
                lines.append(f"  {shlex.quote(word)}")
        return " \\\n".join(lines)

    def commands(self, *, python: str = "python") -> list[str]:
        """One command for each node, secrets redacted."""
        return [replace(self, node_rank=rank).command(python=python) for rank in range(self.nodes)]

    def as_json(self) -> dict[str, Any]:
        """The fields as plain values for a run folder, secrets redacted."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["backends"] = dict(self.backends)
        plain["environment"] = redact_environment(self.environment)
        plain["extra"] = redact_arguments(self.extra)
        for name in ("model", "drafter"):
            if plain[name] is not None:
                plain[name] = redact_arguments([plain[name]])[0]
        return plain

    def __repr__(self) -> str:
        shown = self.as_json()
        given = ", ".join(
            f"{name}={value!r}" for name, value in shown.items() if value != _DEFAULTS.get(name)
        )
        return f"LaunchPlan({given})"


_DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(LaunchPlan)} | {
    "backends": {},
    "environment": {},
    "extra": [],
}


def _check_word(name: str, value: object) -> None:
    """A flag's value: the parser takes a word that begins with a dash for another flag."""
    if not isinstance(value, str) or not value or value.startswith("-") or "\0" in value:
        raise InputError(f"{name} cannot be {value!r}", advice="Give a word that does not begin with a dash")


def plan_of(launch: Launch) -> LaunchPlan:
    """The plan of a launch command, as argparse would take it: of a repeated flag, the last counts.

    Raises:
        InputError: It launches no SGLang, names no model, lacks a flag's value, or gives a number that is none.
    """
    where: dict[str, Any] = {"path": launch.path, "line": launch.line}
    if launch.engine != "sglang":
        raise InputError(
            "launches no SGLang", **where, advice=f"Expected python -m {MODULE} … or sglang serve …"
        )
    rest = list(launch.words)
    named = {"model": rest.pop(0)} if rest and not rest[0].startswith("-") else {}  # sglang serve MODEL
    values = named | read_fields(rest, path=launch.path, line=launch.line)
    if "model" not in values:
        raise InputError("the command names no model", **where, advice="Add --model-path")
    return LaunchPlan(**values, environment=launch.environment)


def read_fields(words: Sequence[str], *, path: Path | None = None, line: int | None = None) -> dict[str, Any]:
    """The fields of a plan that some arguments of a server set, `backends` and `extra` among them.

    Raises:
        InputError: A flag without its value, a number that is none.
    """
    values: dict[str, Any] = {}
    backends: dict[str, str] = {}
    extra: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag, backend = BY_SPELLING.get(name), backend_name(name)
        if flag is None and backend is None:
            extra.append(word)
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise InputError(f"{name} has no value", path=path, line=line, advice=f"Write {name} VALUE")
            value = rest.pop(0)
        if backend is not None:
            backends[backend] = value
        elif flag is not None:
            values[flag.field] = _integer(name, value, path, line) if flag.integer else value
    return values | {"backends": backends, "extra": extra}


def plan_of_server(info: Mapping[str, Any]) -> LaunchPlan:
    """What a running server says of its own arguments (`/server_info`), as far as a plan has fields for it.

    Raises:
        InputError: It names no model, or the values fit no plan.
    """
    values: dict[str, Any] = {}
    for flag in FLAGS:
        value = info.get(flag.spellings[0].removeprefix("--").replace("-", "_"))
        if value is not None and value != "":
            values[flag.field] = value
    if not isinstance(values.get("model"), str):
        raise InputError(
            "the server names no model", advice="Attach to an SGLang server that answers /server_info"
        )
    return LaunchPlan(**values)


def _integer(name: str, value: str, path: Path | None, line: int | None) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", value):
        raise InputError(f"{name} takes a whole number, not {value!r}", path=path, line=line)
    return int(value)
