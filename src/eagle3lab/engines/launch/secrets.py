"""Keys and passwords in commands, environments, addresses and logs: found by name or form, replaced everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"

# `token` alone is no sign of a secret among flags: --max-total-tokens, --tokenizer-path.
_FLAG = re.compile(
    r"--(?:.*-)?(?:api-key|password|passwd|secret|credentials?|(?:auth|access|hf|bearer|github|wandb)-token)s?"
)
# What parsers take for one of them when it is written short; `--ssl-keyfile` is an option of its own.
_WHOLE = ("--api-key", "--admin-api-key", "--ssl-keyfile-password", "--hf-token")
_SHORTEST = len("--api")
_VARIABLE = re.compile(
    r"(?:^|_)\w*?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$|^PGPASS$", re.IGNORECASE
)
_BEHIND = rf"\1{REDACTED}"
_IN_TEXT = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"(?<=://)([^/\s:@]{0,256}:)([^/\s@]{1,512})(?=@)", _BEHIND),
        (r"(?<=://)([^/\s:@]{16,512})(?=@)", REDACTED),
        (r"([?&][\w.-]{0,40}(?:token|key|secret|password|signature|sig|auth)=)([^&\s#'\"<]{1,4096})", _BEHIND),
        (r"(\bauthorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:bearer |basic |token )?)([^\s'\"<,]{3,4096})", _BEHIND),
        (r"(\bbearer )([\w.~+/=-]{8,4096})", _BEHIND),
        (r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,})", REDACTED),
    )
)  # fmt: skip


def _is_secret_flag(flag: str) -> bool:
    flag = flag.replace("_", "-").lower()
    if _FLAG.fullmatch(flag):
        return True
    return (
        len(flag) >= _SHORTEST
        and flag != "--ssl-keyfile"
        and any(whole.startswith(flag) for whole in _WHOLE)
        and not "--ssl-keyfile".startswith(flag)
    )


def _in_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Position and text of each secret value: the word after a secret's flag, or the part behind its `=`."""
    for position, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if not _is_secret_flag(flag):
            continue
        if equals:
            yield position, value
        elif position + 1 < len(arguments):
            yield position + 1, arguments[position + 1]


def _shown(text: str) -> str:
    """A text without what has the form of a secret."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def secrets_in(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Every secret value in a command's words and its environment, longest first, without repeats."""
    found = {value for _, value in _in_arguments(arguments)}
    found |= {value for name, value in environment.items() if _VARIABLE.search(name)}
    for text in (*arguments, *environment.values()):
        for pattern, _ in _IN_TEXT:
            found |= {match.group(match.lastindex or 0) for match in pattern.finditer(text)}
    return tuple(sorted(found - {"", REDACTED}, key=lambda value: (-len(value), value)))


def ambient_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Secrets that a process inherits without having been given them: long enough not to be ordinary words."""
    return tuple(value for value in secrets_in((), environment) if len(value) >= 8)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """The words of a command with the values of secrets replaced."""
    words = list(arguments)
    for position, value in _in_arguments(arguments):
        words[position] = words[position].removesuffix(value) + REDACTED
    return [_shown(word) for word in words]


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same variables with the values of secrets replaced."""
    return {
        name: REDACTED if _VARIABLE.search(name) and value else _shown(value)
        for name, value in environment.items()
    }


def redact_json(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A JSON value with its secrets replaced: those given, those under a name of a secret, and all their copies.

    A server's account of itself holds its API key under that name, and again inside the command it was started with.
    """
    named = {text for name, text in _strings(value) if _is_secret_flag(f"--{name}") or _VARIABLE.search(name)}
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
    """The text with each of `spellings` replaced, and what has the form of a secret."""
    for form in forms:
        text = text.replace(form, REDACTED)
    return _shown(text)


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
