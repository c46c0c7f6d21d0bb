"""Keys and passwords in commands, environments and logs: found by their names, replaced wherever they appear."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"

# `token` alone is no sign of a secret among flags: --max-total-tokens, --tokenizer-path.
_FLAG = re.compile(r"^--(?:.*-)?(?:api-key|password|passwd|secret|credentials?|auth-token|access-token)s?$")
_VARIABLE = re.compile(
    r"(?:^|_)(?:\w*KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")


def _in_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Position and text of each secret value: the word after a secret's flag, or the part behind its `=`."""
    for position, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if not _FLAG.match(flag):
            continue
        if equals:
            yield position, value
        elif position + 1 < len(arguments):
            yield position + 1, arguments[position + 1]


def secrets_in(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Every secret value in a command's words and its environment, longest first, without repeats."""
    found = {value for _, value in _in_arguments(arguments)}
    found |= {value for name, value in environment.items() if _VARIABLE.search(name)}
    for text in (*arguments, *environment.values()):
        found |= {match.group(2) for match in _URL_PASSWORD.finditer(text)}
    return tuple(sorted(found - {""}, key=lambda value: (-len(value), value)))


def ambient_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Secrets that a process inherits without having been given them: long enough not to be ordinary words."""
    return tuple(value for value in secrets_in((), environment) if len(value) >= 8)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """The words of a command with the values of secrets replaced."""
    words = list(arguments)
    for position, value in _in_arguments(arguments):
        words[position] = words[position].removesuffix(value) + REDACTED
    return [_URL_PASSWORD.sub(rf"\1:{REDACTED}", word) for word in words]


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same variables with the values of secrets replaced."""
    return {
        name: REDACTED if _VARIABLE.search(name) and value else _URL_PASSWORD.sub(rf"\1:{REDACTED}", value)
        for name, value in environment.items()
    }


def redact_json(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A JSON value with its secrets replaced: those given, those under a name of a secret, and all their copies.

    A server's account of itself holds its API key under that name, and again inside the command it was started with.
    """
    named = {text for name, text in _strings(value) if _FLAG.match(f"--{name}".replace("_", "-").lower())}
    named |= {text for name, text in _strings(value) if _VARIABLE.search(name)}
    forms = spellings({*secrets, *named} - {"", REDACTED})
    return _replaced(value, forms, {text for text in named if text})


def _strings(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a JSON value with the name of the innermost field that holds it."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, key)


def _replaced(value: Any, forms: Sequence[str], whole: Container[str]) -> Any:
    if isinstance(value, str):
        return REDACTED if value in whole else redact_text(value, forms)
    if isinstance(value, list):
        return [_replaced(item, forms, whole) for item in value]
    if isinstance(value, dict):
        return {redact_text(key, forms): _replaced(item, forms, whole) for key, item in value.items()}
    return value


def redact_text(text: str, forms: Iterable[str]) -> str:
    """The text with each of `spellings` replaced, and passwords in addresses."""
    for form in forms:
        text = text.replace(form, REDACTED)
    return _URL_PASSWORD.sub(rf"\1:{REDACTED}", text)


def spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Each secret as it may appear in a line of a log: as it is, in a Python repr, in JSON. Longest first.

    Secrets of several lines are taken line by line. One of fewer than four characters is left out: replacing it
    would take words apart and hide nothing.
    """
    forms = {
        form
        for whole in secrets
        for secret in (whole, *whole.splitlines())
        if len(secret) >= 4
        for form in (
            secret,
            repr(secret)[1:-1],
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
        )
    }
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))
