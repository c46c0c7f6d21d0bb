"""A plan: everything that decides how a server starts, as values instead of a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from eagle3lab.errors import InputError
from eagle3lab.serving.launch.flags import BY_SPELLING, FLAGS, backend_name
from eagle3lab.serving.launch.secrets import redact_arguments, redact_environment, secrets_in

MODULE = "sglang.launch_server"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


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
                    advice="Set the field, or read the whole command with read_command",
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
