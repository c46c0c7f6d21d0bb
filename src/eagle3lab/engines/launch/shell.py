"""Just enough of a shell to find commands in a script: words, quotes, comments, variables, here-documents.

Nothing is run, and nothing is an error: what only a shell could evaluate stays in its word as it is written, and the
command says what that was. Time and memory are bounded by the length of the text: it is read once from left to right,
and what variables expand to is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagle3lab.errors import InputError

MOST_TEXT = 1 << 20
"""Characters of a script that are read, and characters that its variables may expand to."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[@*]\])?(:?[-=+?]|\}|)")
_REDIRECTION = re.compile(r"(?:\d{0,3}|&)(?:>>|>\||>&|<<<|<<-?|<&|>|<)")
# `<your model>`, as manuals write it, is one word and no redirection.
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[^<>\n;|&]{0,78}[^<>\s;|&])?>")
_CONTINUED = re.compile(r"\\([ \t]{0,40})\r?\n")
_PROMPT = re.compile(r"[ \t]*(?:[!$>][ \t]+|!(?=\w))")
_DECLARING = ("export", "declare", "local", "readonly")
_BREAKS = ";&|()\n"
_PLAIN = re.compile(r"[^\s'\"\\$`<>;&|()]+")
_PLAIN_QUOTED = re.compile(r"[^\"\\$`]+")
_DEEPEST = 8
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a command that cannot be known without running it.

    Attributes:
        text: What it is.
        line: 1-based line.
        advice: What to write instead.
    """

    text: str
    line: int
    advice: str


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command.

    Attributes:
        words: After expansion, redirections left out.
        line: 1-based line on which it begins.
        environment: Variables that are exported to it or set in front of it; empty for one that was not asked for.
        problems: What in it could not be known.
    """

    words: tuple[str, ...]
    line: int
    environment: Mapping[str, str]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Scanner:
    text: str
    variables: Mapping[str, str]
    path: Path | None
    at: int = 0
    arrays: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    doubtful: dict[str, list[Problem]] = field(default_factory=dict)
    heredocs: list[tuple[str, bool]] = field(default_factory=list)
    spent: int = 0
    depth: int = 0
    first_line: int = 1
    counted: tuple[int, int] = (0, 0)
    open_ended: set[str] = field(default_factory=set)

    @property
    def line(self) -> int:
        """The line of this place, counted on from where it was last asked for."""
        start, lines = self.counted
        lines += self.text.count("\n", start, self.at) if self.at >= start else 0
        self.counted = (max(self.at, start), lines)
        return self.first_line + lines

    def unknown(self, problem: str, advice: str = "Write its value out") -> None:
        """Note what cannot be evaluated."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(problem, self.line, advice))

    def spend(self, values: list[str]) -> list[str]:
        """Count what a variable expands to.

        Raises:
            InputError: It is more than any command needs.
        """
        self.spent += sum(map(len, values)) + len(values)
        if self.spent > MOST_TEXT:
            raise InputError(
                "the variables of this script expand to more than a million characters",
                path=self.path,
                advice="Give the launch command itself.",
            )
        return values

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def skip_blanks(self) -> None:
        while self.at < len(self.text):
            if broken := _CONTINUED.match(self.text, self.at):
                if broken.group(1):
                    self.unknown("a blank after the backslash ends the command there", "Delete the blank")
                self.at = broken.end()
            elif self.peek() in " \t\r":
                self.at += 1
            elif self.peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    # ---- variables ----------------------------------------------------------------------------------------------
    # What a dollar sign stands for: words, and whether they are known, or what is written.

    def value_of(self, name: str, default: str | None, raw: str) -> tuple[list[str], bool]:
        """What a variable expands to: several words for an array; itself where it is not known."""
        self.problems += self.doubtful.get(name, [])[: _MOST_PROBLEMS - len(self.problems)]
        if name in self.arrays:
            return self.spend(self.arrays[name]), True
        for known in (self.known, self.variables):
            if name in known:
                return self.spend([known[name]]), True
        if default is not None:
            return self.spend([self._inner(default)]), True
        self.unknown(
            f"the variable {name} has no value here", f"Set {name} in the script, or write its value out"
        )
        return [raw], False

    def _inner(self, text: str) -> str:
        """A default's own words, expanded."""
        if self.depth >= _DEEPEST:
            return text
        inner = _Scanner(
            text,
            self.variables,
            self.path,
            arrays=self.arrays,
            known=self.known,
            problems=self.problems,
            doubtful=self.doubtful,
            spent=self.spent,
            depth=self.depth + 1,
            first_line=self.line,
        )
        words = []
        while inner.at < len(inner.text):
            inner.skip_blanks()
            if inner.at < len(inner.text):
                start = inner.at
                words.append(" ".join(inner.words()))
                if inner.at == start:  # a sign that ends a word in a command means nothing here
                    words.append(inner.peek())
                    inner.at += 1
        self.spent = inner.spent
        return " ".join(words)

    def expansion(self) -> tuple[list[str], bool]:
        """At a dollar sign: the words it stands for, and whether they are known."""
        start = self.at
        self.at += 1
        char = self.peek()
        if char == "(":
            self._skip_to_close("(", ")")
            self.unknown("a command substitution cannot be read without running it")
            return [self.text[start : self.at]], False
        if char == "{":
            return self._braced(start)
        if char in ("'", '"'):  # $'…' and $"…"
            return [""], True
        match = _NAME.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return self.value_of(match.group(), None, f"${match.group()}")
        if char and char in "@*#?$!0123456789":
            self.at += 1
            self.unknown(f"${char} has no value here")
            return [f"${char}"], False
        return ["$"], True

    def _braced(self, start: int) -> tuple[list[str], bool]:
        match = _BRACED.match(self.text, self.at + 1)
        self._skip_to_close("{", "}")
        raw = self.text[start : self.at]
        name, sign = match.groups() if match is not None and raw.endswith("}") else ("", "")
        if not sign:
            self.unknown("this form of ${…} is not understood")
            return [raw], False
        rest = raw[match.end() - start : -1] if match is not None else ""
        is_set = name in self.known or name in self.variables or name in self.arrays
        value = self.arrays.get(name) or self.known.get(name) or self.variables.get(name)
        empty = sign.startswith(":") and not value
        if sign[-1] in "-=" and (empty or not is_set):
            return self.spend([self._inner(rest)]), True
        if sign[-1] == "+":
            return ([self._inner(rest)] if is_set and not empty else [""]), True
        return self.value_of(name, None, raw)

    def _skip_to_close(self, opening: str, closing: str) -> None:
        """From an opening bracket past the one that closes it; past the bracket alone where none does."""
        level, place = 0, self.at
        if opening not in self.open_ended:
            while place < len(self.text):
                char = self.text[place]
                place += 2 if char == "\\" else 1
                level += (char == opening) - (char == closing)
                if level == 0:
                    self.at = place
                    return
            self.open_ended.add(opening)
        self.at += 1

    # ---- words --------------------------------------------------------------------------------------------------

    def double_quoted(self, parts: list[list[str]]) -> None:
        """Add a text between double quotes to a word; without an end, the quote stands for itself."""
        start, problems, words = self.at, len(self.problems), len(parts)
        pieces = len(parts[-1])
        self.at += 1
        while self.at < len(self.text) and '"' not in self.open_ended:
            char = self.peek()
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.peek(2)[1:] in ("$", "`", '"', "\\", "\n"):
                parts[-1].append(self.peek(2)[1:].replace("\n", ""))
                self.at += 2
            elif char == "$":
                self._append(parts, self.expansion()[0])
            elif plain := _PLAIN_QUOTED.match(self.text, self.at):
                parts[-1].append(plain.group())
                self.at = plain.end()
            else:
                self._sign(parts, char)
        self.open_ended.add('"')
        del self.problems[problems:], parts[words:], parts[-1][pieces:]
        self.at = start
        self.unknown("a double quote is never closed", "Close it")
        self._sign(parts, '"')

    def _sign(self, parts: list[list[str]], char: str) -> None:
        """Add a character as it stands."""
        if char == "`":
            self.unknown("a command substitution cannot be read without running it")
        parts[-1].append(char)
        self.at += 1

    @staticmethod
    def _append(parts: list[list[str]], values: list[str]) -> None:
        if values:
            parts[-1].append(values[0])
            parts.extend([value] for value in values[1:])

    def more(self) -> bool:
        self.skip_blanks()
        return self.at < len(self.text) and self.peek() not in _BREAKS

    def words(self) -> list[str]:
        """The word at this place; none or several where an array or an unquoted variable stands for that."""
        parts: list[list[str]] = [[]]
        quoted = False
        if self.peek() == "<" and (placeholder := _PLACEHOLDER.match(self.text, self.at)):
            self.at = placeholder.end()
            return [placeholder.group()]
        if self.peek() == "~" and (self.peek(2)[1:] or " ") in "/ \n":
            parts, self.at = [[str(Path.home())]], self.at + 1
        while self.at < len(self.text) and self.peek() not in " \t\r<>" + _BREAKS:
            if (broken := _CONTINUED.match(self.text, self.at)) and broken.group() != "\\\n":
                break
            char = self.peek()
            if char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    self.unknown("a single quote is never closed", "Close it")
                    self._sign(parts, "'")
                else:
                    parts[-1].append(self.text[self.at + 1 : end])
                    self.at = end + 1
                quoted = True
            elif char == '"':
                before = self.at
                self.double_quoted(parts)
                only_array = self.text.startswith('"${', before) and self.text.startswith(
                    '[@]}"', self.at - 5
                )
                quoted = quoted or not only_array
            elif char == "\\":
                parts[-1].append(self.peek(2)[1:].replace("\n", ""))
                self.at += 2
            elif char == "$":
                values, known = self.expansion()
                self._append(
                    parts, [piece for value in values for piece in value.split()] if known else values
                )
            elif plain := _PLAIN.match(self.text, self.at):
                parts[-1].append(plain.group())
                self.at = plain.end()
            else:
                self._sign(parts, char)
        words = ["".join(pieces) for pieces in parts]
        return [] if words == [""] and not quoted else words

    def array(self) -> list[str]:
        """The words between parentheses."""
        self.at += 1
        items: list[str] = []
        while True:
            self.skip_blanks()
            if self.at >= len(self.text):
                self.unknown("an array's parenthesis is never closed", "Close it")
                return items
            char = self.peek()
            if char == ")":
                self.at += 1
                return items
            start = self.at
            items += self.words()
            if self.at == start:
                self.at += 1

    def assignment(self) -> str | None:
        """If `NAME=` or `NAME+=` stands here, remember the value and return the name."""
        match = _ASSIGNMENT.match(self.text, self.at)
        if match is None:
            return None
        name, adding = match.group(1), bool(match.group(2))
        problems = len(self.problems)
        self.at = match.end()
        if self.peek() == "(":
            self.arrays[name] = self.spend((self.arrays.get(name, []) if adding else []) + self.array())
        else:
            value = (self.known.get(name, "") if adding else "") + " ".join(self.words())
            self.known[name] = self.spend([value])[0]
        doubts = self.problems[problems:]
        self.doubtful[name] = [*(self.doubtful.get(name, ()) if adding else ()), *doubts][:_MOST_PROBLEMS]
        return name

    def here_documents(self) -> Iterator[tuple[str, int]]:
        """At the end of a line: the bodies of the here-documents that it opened, with their first lines."""
        for delimiter, indented in self.heredocs:
            self.at += 1
            start, line = self.at, self.line
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                said = self.text[self.at : end]
                if (said.lstrip("\t") if indented else said).rstrip("\r") == delimiter:
                    break
                self.at = min(end + 1, len(self.text))
            yield self.text[start : self.at], line
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        self.heredocs.clear()


def commands(
    text: str,
    wanted: Callable[[list[str]], bool],
    *,
    variables: Mapping[str, str] | None = None,
    path: Path | None = None,
    first_line: int = 1,
    depth: int = 0,
) -> Iterator[Command]:
    """The simple commands of a script that are wanted, in order.

    Control flow is not followed: all branches are seen, and a loop's variable has its first value. Assignments count
    from where they stand.

    Args:
        text: The script.
        wanted: Which commands, by their words.
        variables: Values of variables that the script does not set.
        path: The script's file, for errors.
        first_line: Number of the text's first line.
        depth: How many here-documents it stands in.

    Raises:
        InputError: It is too long, or its variables expand without end.
    """
    if len(text) > MOST_TEXT:
        raise InputError("is too large for a launch script", path=path, advice="Give the command itself.")
    scanner = _Scanner(text, variables or {}, path, first_line=first_line)
    exported: dict[str, str] = {}
    while True:
        scanner.skip_blanks()
        if scanner.at >= len(text):
            return
        if scanner.peek() in _BREAKS:
            if scanner.peek() == "\n" and scanner.heredocs:
                for body, line in scanner.here_documents():
                    if depth < _DEEPEST:
                        inner = {**scanner.variables, **scanner.known}
                        yield from commands(
                            body, wanted, variables=inner, path=path, first_line=line, depth=depth + 1
                        )
            else:
                scanner.at += 1
            continue
        prompt = _PROMPT.match(text, scanner.at)
        if prompt is not None:
            scanner.at = prompt.end()
        line, start = scanner.line, scanner.at
        scanner.problems = []
        words, own = _simple_command(scanner)
        if scanner.at == start:
            scanner.at += 1
        if words[:1] == ["export"]:
            names = [word.partition("=")[0] for word in words[1:] if not word.startswith("-")]
            exported |= {name: scanner.known[name] for name in names if name in scanner.known}
        elif words[:1] == ["for"] and words[2:3] == ["in"] and len(words) > 3:
            scanner.known[words[1]] = words[3]
        elif words and wanted(words):
            yield Command(tuple(words), line, exported | own, tuple(scanner.problems))


def _simple_command(scanner: _Scanner) -> tuple[list[str], dict[str, str]]:
    """The words of the command at this place, and the variables set in front of it."""
    words: list[str] = []
    before: dict[str, str | None] = {}
    own: dict[str, str] = {}
    while scanner.more():
        redirection = _REDIRECTION.match(scanner.text, scanner.at)
        if redirection is not None and not _PLACEHOLDER.match(scanner.text, scanner.at):
            scanner.at = redirection.end()
            scanner.skip_blanks()
            place = scanner.words()
            if redirection.group().lstrip("0123456789&") in ("<<", "<<-") and place:
                scanner.heredocs.append((place[0], redirection.group().endswith("-")))
            continue
        start = scanner.at
        if not words or words[0] in _DECLARING:
            match = _ASSIGNMENT.match(scanner.text, start)
            previous = scanner.known.get(match.group(1)) if match else None
            name = scanner.assignment()
            if name is not None:
                if words:
                    words.append(scanner.text[start : scanner.at])
                elif name in scanner.known:
                    before.setdefault(name, previous)
                    own[name] = scanner.known[name]
                continue
        words += scanner.words()
        if scanner.at == start:
            break
    if words and words[0] not in _DECLARING:
        for name, value in before.items():  # set for this command alone
            if value is None:
                scanner.known.pop(name, None)
            else:
                scanner.known[name] = value
    return words, own
