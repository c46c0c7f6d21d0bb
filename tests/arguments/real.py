"""The release itself asked: its own parser and `ServerArgs`, in a process of its own, told what machine it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3lab.engines.arguments.evaluate import UNKNOWN
from eagle3lab.engines.arguments.machine import HOPPER, Machine
from eagle3lab.engines.arguments.resolve import ResolvedLaunch
from eagle3lab.engines.ground_truth.process import ask_release

_WORKER = Path(__file__).with_name("real_worker.py")
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Command:
    """A launch to be resolved.

    Attributes:
        words: Everything after `sglang.launch_server`; its model and its drafter are folders with a config.json.
        machine: Where it is said to run.
        environment: Variables set for it.
    """

    words: tuple[str, ...]
    machine: Machine = HOPPER
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Real:
    """What the release made of a command.

    Attributes:
        values: The arguments that are words, numbers or switches; empty where it refused.
        exception: Type of what it raised; empty where it did not.
        message: Its text.
        where: File and line that raised it.
    """

    values: Mapping[str, Any]
    exception: str = ""
    message: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """A drafter that is told the target's context.

    Attributes:
        drafter: Its folder.
        context_length: The target's tokens.
        environment: Variables set.
    """

    drafter: Path
    context_length: int
    environment: Mapping[str, str] = field(default_factory=dict)


def real_arguments(
    release: str, commands: Sequence[Command], contexts: Sequence[Context] = ()
) -> tuple[list[Real], list[int | str]]:
    """The commands as an installed release resolves them, one after the other in one process.

    Returns:
        What it makes of each command; and, for each context, the drafter's tokens or the text of the refusal.

    Raises:
        InputError: The release is not on this machine.
        Eagle3labError: Its process failed or took too long.
    """
    request = {
        "commands": [
            {"words": one.words, "machine": asdict(one.machine), "environment": dict(one.environment)}
            for one in commands
        ],
        "contexts": [
            {
                "drafter": str(one.drafter),
                "context_length": one.context_length,
                "environment": dict(one.environment),
            }
            for one in contexts
        ],
    }
    replies = ask_release(release, _WORKER, request)
    lengths = [reply.get("length", reply.get("message")) for reply in replies["contexts"]]
    return [_real(reply) for reply in replies["commands"]], lengths


def _real(reply: Mapping[str, Any]) -> Real:
    if "values" in reply:
        return Real(reply["values"])
    message = reply["message"]
    text = message if isinstance(message, str) else " ".join(message)
    return Real({}, reply["exception"], text, reply.get("where", ""))


def disagreements(ours: ResolvedLaunch, real: Real) -> list[str]:
    """In what the two say different things; unknown agrees with everything, and so does a refusal that may happen."""
    refused = next((one for one in ours.refusals if one.certain), None)
    if real.exception:
        expected = [refused] if refused else list(ours.refusals)
        if any(one.exception == real.exception and _fits(one.message, real.message) for one in expected):
            return []
        said = f"{refused.exception}: {refused.message}" if refused else "starts"
        return [f"the release raises {real.exception}: {real.message} ({real.where}); ours {said}"]
    if refused:
        return [f"the release starts; ours raises {refused.exception}: {refused.message} ({refused.source})"]
    return [
        f"{name}: the release has {real.values[name]!r}, ours {value!r}"
        for name, value in ours.values.items()
        if value is not UNKNOWN and name in real.values and value != real.values[name]
    ]


def _fits(ours: str, real: str) -> bool:
    """Whether texts are the same where ours is known; of a parser's message only the last line is kept."""
    at = 0
    for part in ours.split(_ELLIPSIS):
        found = real.find(part.strip(), at)
        if found < 0:
            return False
        at = found + len(part.strip())
    return True
