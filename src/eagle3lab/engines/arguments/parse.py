"""The words of a command as a release's argument parser takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.engines.arguments.evaluate import UNKNOWN
from eagle3lab.engines.arguments.rules import Option

_OPTION = re.compile(r"-{1,2}[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Given:
    """What a command gives.

    Attributes:
        fields: Field → value; the last one counts of an option that is given twice.
        error: What the parser says when it gives up; empty where it does not.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class _GivesUpError(Exception):
    """The parser stops with this message."""


def parse(words: Sequence[str], options: Sequence[Option]) -> Given:
    """Read a command's own arguments.

    Args:
        words: Everything after `sglang.launch_server`, or after `sglang serve`.
        options: The release's.
    """
    by_spelling = {spelling: option for option in options for spelling in option.spellings}
    fields: dict[str, Any] = {}
    rest = list(words)
    if rest and not rest[0].startswith("-"):  # sglang serve MODEL
        rest[:0] = ["--model-path"]
    try:
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            if not _OPTION.match(word):
                raise _GivesUpError(f"unrecognized arguments: {word}")
            option = _found(name, by_spelling)
            values = [value] if equals else list(_values(rest, option))
            fields[option.field] = _value(option, values, bool(equals))
    except _GivesUpError as error:
        return Given(fields, str(error))
    return Given(fields)


def _found(name: str, by_spelling: Mapping[str, Option]) -> Option:
    """The option of that spelling, or the only one that begins so."""
    if name in by_spelling:
        return by_spelling[name]
    begin = [spelling for spelling in by_spelling if spelling.startswith(name) and name.startswith("--")]
    if len(begin) == 1:
        return by_spelling[begin[0]]
    if begin:
        raise _GivesUpError(f"ambiguous option: {name} could match {', '.join(begin)}")
    raise _GivesUpError(f"unrecognized arguments: {name}")


def _values(rest: list[str], option: Option) -> Iterator[str]:
    if option.kind == "switch":
        return
    while rest and not _OPTION.match(rest[0]):
        yield rest.pop(0)
        if option.kind not in ("list", "unknown"):
            return


def _value(option: Option, values: list[str], equals: bool) -> Any:
    shown = "/".join(option.spellings)
    if option.kind == "switch":
        if equals:
            raise _GivesUpError(f"argument {shown}: ignored explicit argument {values[0]!r}")
        return True
    if option.kind == "unknown":
        # Its action makes a list of what is given: of which items is not known, and no rule asks.
        return values if values and option.field.endswith("_paths") else UNKNOWN
    if not values:
        many = "at least one" if option.kind == "list" else "one"
        raise _GivesUpError(f"argument {shown}: expected {many} argument")
    if option.kind == "list":
        return values
    return _single(option, values[0], shown)


def _single(option: Option, text: str, shown: str) -> Any:
    if option.kind in ("integer", "number"):
        kind = int if option.kind == "integer" else float
        try:
            return kind(text)
        except ValueError:
            raise _GivesUpError(f"argument {shown}: invalid {kind.__name__} value: {text!r}") from None
    if option.kind == "amount":
        return int(text) if re.fullmatch(r"\d{1,18}", text) else UNKNOWN
    if option.kind == "json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise _GivesUpError(f"argument {shown}: invalid loads value: {text!r}") from None
    if option.choices is not None and text not in option.choices:
        allowed = ", ".join(map(repr, option.choices))
        raise _GivesUpError(f"argument {shown}: invalid choice: {text!r} (choose from {allowed})")
    return text
