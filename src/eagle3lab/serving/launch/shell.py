"""Just enough of a shell to find one command in a script: words, quotes, comments, variables; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagle3lab.errors import InputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?:\[@\])?(?::?-((?:[^{}]|\\.)*))?\}")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>|>\||>&|<<<|<&|>|<)")
_BREAKS = ";&|()\n"


@dataclass(frozen=True, slots=True)
class Command:
    """The words of one simple command.

    Attributes:
        words: After expansion, redirections left out.
        line: 1-based line on which it begins.
    """

    words: tuple[str, ...]
    line: int


@dataclass(slots=True)
class _Scanner:
    text: str
    variables: Mapping[str, str]
    path: Path | None
    at: int = 0
    arrays: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def fail(self, problem: str, advice: str) -> InputError:
        return InputError(problem, path=self.path, line=self.line, advice=advice)

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.peek(2) == "\\\n":
                self.at += 2
            elif self.peek() in " \t\r":
                self.at += 1
            elif self.peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def value_of(self, name: str, default: str | None) -> list[str]:
        """What a variable expands to: several words for an array."""
        if name in self.arrays:
            return self.arrays[name]
        if name in self.known:
            return [self.known[name]]
        if name in self.variables:
            return [self.variables[name]]
        if default is not None:
            inner = _Scanner(default, self.variables, self.path, arrays=self.arrays, known=self.known)
            return [" ".join(inner.word() for _ in iter(inner.more, False))]
        raise self.fail(
            f"the variable {name} has no value here", f"Set {name} in the script, or write its value out"
        )

    def expansion(self) -> list[str]:
        """At a dollar sign: the words it stands for."""
        self.at += 1
        if self.peek() in "(`":
            raise self.fail("a command substitution cannot be read without running it", "Write its value out")
        if self.peek() == "{":
            match = _BRACED.match(self.text, self.at)
            if match is None:
                raise self.fail("this form of ${…} is not understood", "Write its value out")
            self.at = match.end()
            return self.value_of(match.group(1), match.group(2))
        match = _NAME.match(self.text, self.at)
        if match is None:
            if self.peek() and self.peek() in "@*#?$!0123456789":
                raise self.fail(f"${self.peek()} has no value here", "Write its value out")
            return ["$"]
        self.at = match.end()
        return self.value_of(match.group(), None)

    def double_quoted(self) -> list[str]:
        parts = [""]
        self.at += 1
        while self.at < len(self.text):
            char = self.peek()
            if char == '"':
                self.at += 1
                return parts
            if char == "\\" and self.peek(2)[1:] in ("$", "`", '"', "\\", "\n"):
                parts[-1] += self.peek(2)[1:].replace("\n", "")
                self.at += 2
            elif char == "$":
                self._append(parts, self.expansion())
            elif char == "`":
                raise self.fail(
                    "a command substitution cannot be read without running it", "Write its value out"
                )
            else:
                parts[-1] += char
                self.at += 1
        raise self.fail("a double quote is never closed", "Close it")

    @staticmethod
    def _append(parts: list[str], values: list[str]) -> None:
        if values:
            parts[-1] += values[0]
            parts.extend(values[1:])

    def more(self) -> bool:
        self.skip_blanks()
        return self.at < len(self.text) and self.peek() not in _BREAKS

    def words(self) -> list[str]:
        """The word at this place; none or several where an array or an unquoted variable stands for that."""
        parts: list[str] = [""]
        quoted = False
        if self.peek(2) == "~/" or (
            self.peek() == "~" and (self.at + 1 == len(self.text) or self.text[self.at + 1] in " \n")
        ):
            parts, self.at = [str(Path.home())], self.at + 1
        while self.at < len(self.text) and self.peek() not in " \t\r" + _BREAKS + "<>":
            char = self.peek()
            if char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.fail("a single quote is never closed", "Close it")
                parts[-1] += self.text[self.at + 1 : end]
                self.at, quoted = end + 1, True
            elif char == '"':
                only_array = re.match(r'"\$\{[A-Za-z_]\w*\[@\]\}"', self.text[self.at :])
                self._append(parts, self.double_quoted())
                quoted = quoted or only_array is None
            elif char == "\\":
                parts[-1] += self.peek(2)[1:].replace("\n", "")
                self.at += 2
            elif char == "$":
                self._append(parts, [piece for value in self.expansion() for piece in value.split()])
            elif char == "`":
                raise self.fail(
                    "a command substitution cannot be read without running it", "Write its value out"
                )
            else:
                parts[-1] += char
                self.at += 1
        return [] if parts == [""] and not quoted else parts

    def word(self) -> str:
        return " ".join(self.words())

    def array(self) -> list[str]:
        """The words between parentheses."""
        self.at += 1
        items: list[str] = []
        while True:
            self.skip_blanks()
            if self.at >= len(self.text):
                raise self.fail("an array's parenthesis is never closed", "Close it")
            if self.peek() == ")":
                self.at += 1
                return items
            if self.peek() == "\n":
                self.at += 1
                continue
            if self.peek() in _BREAKS + "<>":
                raise self.fail(f"{self.peek()!r} cannot stand in an array", "Quote it")
            items += self.words()

    def assignment(self) -> str | None:
        """If `NAME=` or `NAME+=` stands here, remember the value and return the name."""
        match = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=").match(self.text, self.at)
        if match is None:
            return None
        name, adding = match.group(1), bool(match.group(2))
        self.at = match.end()
        if self.peek() == "(":
            self.arrays[name] = (self.arrays.get(name, []) if adding else []) + self.array()
            return name
        self.known[name] = (self.known.get(name, "") if adding else "") + self.word()
        return name


def commands(
    text: str, *, variables: Mapping[str, str], path: Path | None
) -> Iterator[tuple[Command, dict[str, str]]]:
    """Every simple command of a script, with the variables that are exported to it or set in front of it.

    Control flow is not followed: all branches are seen. Assignments count from where they stand.

    Args:
        text: The script.
        variables: Values of variables that the script does not set.
        path: The script's file, for errors.

    Raises:
        InputError: Something that only a shell can evaluate stands in a command that mentions sglang, or an
            unclosed quote does anywhere; names line and variable.
    """
    scanner = _Scanner(text, variables, path)
    exported: dict[str, str] = {}
    while True:
        scanner.skip_blanks()
        if scanner.at >= len(text):
            return
        if scanner.peek() in _BREAKS:
            scanner.at += 1
            continue
        line, start = scanner.line, scanner.at
        try:
            words, own = _simple_command(scanner)
        except InputError:
            # Only a command that launches the engine must be understood; others may be as clever as they like.
            end = _end_of_command(text, start)
            if "sglang" in text[start:end]:
                raise
            scanner.at = max(end, start + 1)
            continue
        if words[:1] == ["export"]:
            names = [word.partition("=")[0] for word in words[1:] if not word.startswith("-")]
            exported |= {name: scanner.known[name] for name in names if name in scanner.known}
        elif words:
            yield Command(tuple(words), line), exported | own


def _end_of_command(text: str, start: int) -> int:
    at = start
    while (end := text.find("\n", at)) >= 0 and text[end - 1] == "\\":
        at = end + 1
    return len(text) if end < 0 else end


def _simple_command(scanner: _Scanner) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    before: dict[str, str | None] = {}
    own: dict[str, str] = {}
    while scanner.more():
        redirection = _REDIRECTION.match(scanner.text, scanner.at)
        if redirection is not None:
            scanner.at = redirection.end()
            scanner.skip_blanks()
            scanner.words()
            continue
        start = scanner.at
        if not words or words[0] in ("export", "declare", "local", "readonly"):
            previous = dict(scanner.known)
            name = scanner.assignment()
            if name is not None:
                if words:
                    words.append(scanner.text[start : scanner.at])
                elif name in scanner.known:
                    before.setdefault(name, previous.get(name))
                    own[name] = scanner.known[name]
                continue
        words += scanner.words()
    if words and words[0] not in ("export", "declare", "local", "readonly"):
        for name, value in before.items():  # set for this command alone
            if value is None:
                scanner.known.pop(name, None)
            else:
                scanner.known[name] = value
    return words, own
