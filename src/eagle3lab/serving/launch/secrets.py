"""Keys and passwords in commands, environments and logs: found by their names, replaced wherever they appear."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
