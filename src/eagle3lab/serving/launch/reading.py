"""A plan from a command line, or from the SGLang command in a shell script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3lab.errors import InputError
from eagle3lab.serving.launch.flags import BY_SPELLING, FLAGS, backend_name
from eagle3lab.serving.launch.plan import MODULE, LaunchPlan
from eagle3lab.serving.launch.shell import commands

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MOST_SCRIPT = 1 << 20


def read_command(text: str, *, variables: Mapping[str, str] | None = None) -> LaunchPlan:
    """The plan of a launch command as typed, with the variables set in front of it; a notebook's `!` is allowed.

    Args:
        text: One command, or several lines of shell of which one launches SGLang.
        variables: Values of shell variables that the text uses and does not set.

    Raises:
        InputError: No SGLang command, more than one, or one that only a shell can evaluate.
    """
    return _read(re.sub(r"\A\s*[!$]\s*", "", text), variables or {}, None)


def read_script(path: str | Path, *, variables: Mapping[str, str] | None = None) -> LaunchPlan:
    """The plan of the SGLang command in a shell script; variables the script sets or exports are followed.

    Raises:
        InputError: As `read_command`, naming file and line; or the file cannot be read.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_SCRIPT + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    if len(content) > _MOST_SCRIPT:
        raise InputError("is too large for a launch script", path=path, advice="Give the command itself")
    return _read(content.decode("utf-8", errors="replace"), variables or {}, path)


def _read(text: str, variables: Mapping[str, str], path: Path | None) -> LaunchPlan:
    found: list[tuple[int, LaunchPlan]] = []
    for command, environment in commands(text, variables=variables, path=path):
        words = command.words
        start = _arguments_begin(words)
        if start is not None:
            given = environment | _set_by_env(words[:start])
            plan = read_arguments(words[start:], environment=given, path=path, line=command.line)
            found.append((command.line, plan))
            continue
        for word in words:  # bash -c '…', docker run … sh -c "…"
            if MODULE in word and any(blank in word for blank in " \n\t"):
                found.append((command.line, _read(word, variables, path)))
    if not found:
        raise InputError(
            "no SGLang launch command", path=path, advice=f"Expected python -m {MODULE} … or sglang serve …"
        )
    if len(found) > 1 and any(plan != found[0][1] for _, plan in found[1:]):
        lines = ", ".join(str(line) for line, _ in found)
        raise InputError(
            f"several SGLang commands, on lines {lines}",
            path=path,
            advice="Give the one that is meant by itself",
        )
    return found[0][1]


def _set_by_env(words: Sequence[str]) -> dict[str, str]:
    """The assignments that follow the word `env`."""
    own: dict[str, str] = {}
    active = False
    for word in words:
        match = _ASSIGNMENT.fullmatch(word) if active else None
        if match is not None:
            own[match.group(1)] = match.group(2)
        else:
            active = Path(word).name == "env"
    return own


def _arguments_begin(words: Sequence[str]) -> int | None:
    """Where the server's own arguments start, or None if this command launches none."""
    for position, (word, following) in enumerate(zip(words, [*words[1:], ""], strict=True)):
        if word == "-m" and following == MODULE:
            return position + 2
        if word.endswith("sglang/launch_server.py"):
            return position + 1
        if Path(word).name == "sglang" and following == "serve":
            return position + 2
    return None


def read_arguments(
    words: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    path: Path | None = None,
    line: int | None = None,
) -> LaunchPlan:
    """The plan of a server's own arguments, as argparse would take them: of a repeated flag, the last counts.

    Args:
        words: Everything after `sglang.launch_server`.
        environment: Variables set for the command.
        path: For errors: the script.
        line: For errors: the command's line in it.

    Raises:
        InputError: A flag without its value, a number that is none, no model.
    """
    rest = list(words)
    named = {"model": rest.pop(0)} if rest and not rest[0].startswith("-") else {}  # sglang serve MODEL
    values = named | read_fields(rest, path=path, line=line)
    if "model" not in values:
        raise InputError("the command names no model", path=path, line=line, advice="Add --model-path")
    return LaunchPlan(**values, environment=environment or {})


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
