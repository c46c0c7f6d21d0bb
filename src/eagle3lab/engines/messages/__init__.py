"""An engine's own words: the texts of its errors and assertions in every release, and what a target's class lacks.

`match` finds the statement that a line of a log came from, with its values, the releases that have it, and file and
line in a given one; `target_needs` says what keeps a target's class from serving EAGLE-3. Both are read from the
engines' sources (`extract`, `targets`) by `python -m eagle3lab.engines.messages`.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from eagle3lab.engines.messages.extract import Said, Template
from eagle3lab.engines.messages.targets import Lack
from eagle3lab.engines.release import Release, nearest_known

__all__ = [
    "Lack",
    "Match",
    "Said",
    "Template",
    "data_file",
    "match",
    "pack",
    "releases",
    "said",
    "target_needs",
]

_SCHEMA = 1
# Fewer letters outside the gaps say too little to be found anywhere but in their own file.
_TELLING = 12
_LONGEST = 4000
_FLAG = re.compile(r"--[a-z][a-z0-9-]{2,60}")


@dataclass(frozen=True, slots=True)
class Place:
    """A template in one file over releases in a row: `lines[i]` is its 1-based line in release `first + i`."""

    file: str
    first: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The statement that a text came from.

    Attributes:
        template: Its text with gaps, and the condition under which it is raised.
        values: Expression to what stands in its gap.
        file: Where it stands, relative to `sglang/srt` or `vllm`.
        line: 1-based line there, in `release`.
        release: The release asked for, or the newest that has it.
        since: The first release that has it.
        until: The last one.
    """

    template: Template
    values: dict[str, str]
    file: str
    line: int
    release: str
    since: str
    until: str

    @property
    def source(self) -> str:
        """`server_args.py:2433`."""
        return f"{self.file}:{self.line}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Options that text or condition name: "--page-size"."""
        return tuple(dict.fromkeys(_FLAG.findall(f"{self.template.words} {' '.join(self.values.values())}")))


def data_file(kind: str, what: str = "messages") -> Path:
    """The file with a kind's "messages", or with what its "targets" lack."""
    return Path(__file__).with_name(f"{kind}-{what}.json.xz")


def _read(kind: str, what: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(lzma.decompress(data_file(kind, what).read_bytes()))
    if data["schema"] != _SCHEMA:
        raise ValueError(f"{data_file(kind, what).name}: schema {data['schema']} is not {_SCHEMA}")
    return data


class _Store:
    """One engine's messages, read."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.releases: tuple[str, ...] = tuple(data["releases"])
        self.rows: list[tuple[Template, tuple[Place, ...]]] = []
        files = data["files"]
        for error, pieces, code, condition, places in data["messages"]:
            self.rows.append(
                (
                    Template(error, tuple(pieces), code, condition),
                    tuple(Place(files[file], first, _sums(lines)) for file, first, *lines in places),
                )
            )

    @cached_property
    def told(self) -> list[tuple[str, int, int]]:
        """(longest literal part, letters outside gaps, row) of every template with a text."""
        found = []
        for number, (template, _) in enumerate(self.rows):
            literals = template.pieces[::2]
            if any(literals):
                found.append((max(literals, key=len), sum(map(len, literals)), number))
        return found

    @cached_property
    def coded(self) -> dict[str, list[int]]:
        """First line of a statement to the rows of templates without a text."""
        found: dict[str, list[int]] = {}
        for number, (template, _) in enumerate(self.rows):
            if template.code:
                found.setdefault(template.code, []).append(number)
        return found


def _sums(steps: list[int]) -> tuple[int, ...]:
    total, found = 0, []
    for step in steps:
        total += step
        found.append(total)
    return tuple(found)


@cache
def _store(kind: str) -> _Store:
    return _Store(_read(kind, "messages"))


def releases(kind: str) -> tuple[str, ...]:
    """The releases whose messages are known, oldest first."""
    return _store(kind).releases


def match(
    kind: str, error: str, text: str, *, release: str = "", file: str = "", code: str = ""
) -> Match | None:
    """The statement that an exception of a log came from; None where none of the known ones says this.

    Args:
        kind: "sglang" or "vllm".
        error: The exception's type, with or without its module.
        text: Its message; empty for an exception without one, which is then known by `code`.
        release: The release that wrote it; empty where not known.
        file: File of the innermost frame, as the traceback has it; decides between statements that say the same.
        code: Line of source of that frame.
    """
    store, name = _store(kind), error.rpartition(".")[2]
    text = text[:_LONGEST].strip()
    known = nearest_known(Release(kind, release)) if release else None
    wanted = store.releases.index(known.number) if known and known.number in store.releases else -1
    rows = (
        [(number, _LONGEST) for number in store.coded.get(code.strip(), ())]
        if not text
        else _told(store, text)
    )
    best: tuple[tuple[bool, bool, bool, int], Match] | None = None
    for number, letters in rows:
        template, places = store.rows[number]
        place, index, exact = _place(places, wanted, file)
        inside = bool(file) and file.endswith(f"/{place.file}")
        if (letters < _TELLING or not text) and not inside:
            continue
        if name and template.error != name and not inside:
            continue
        rank = (inside, template.error == name, exact, letters)
        if best is None or rank > best[0]:
            found = Match(
                template,
                _values(template, text) if text else {},
                place.file,
                place.lines[index - place.first],
                store.releases[index],
                store.releases[min(one.first for one in places)],
                store.releases[max(one.first + len(one.lines) - 1 for one in places)],
            )
            best = rank, found
    return best[1] if best else None


def _told(store: _Store, text: str) -> Iterator[tuple[int, int]]:
    """Rows whose template the text fits, with the letters outside its gaps."""
    for longest, letters, number in store.told:
        if longest.strip() in text and _pattern(store.rows[number][0].pieces).fullmatch(text):
            yield number, letters


@cache
def _pattern(pieces: tuple[str, ...]) -> re.Pattern[str]:
    # What a log cuts or wraps: whitespace of the text counts as one blank.
    parts = [
        "(.*?)" if n % 2 else r"\s*".join(map(re.escape, re.split(r"\s+", piece)))
        for n, piece in enumerate(pieces)
    ]
    return re.compile("".join(parts).strip() + r"\s*", re.DOTALL)


def _values(template: Template, text: str) -> dict[str, str]:
    fitted = _pattern(template.pieces).fullmatch(text)
    return dict(zip(template.pieces[1::2], fitted.groups(), strict=True)) if fitted else {}


def _place(places: tuple[Place, ...], index: int, file: str) -> tuple[Place, int, bool]:
    """The place to name, the release's number in it, and whether it is the release asked for (-1: none was)."""
    inside = [one for one in places if file and file.endswith(f"/{one.file}")] or list(places)
    holding = [one for one in inside if one.first <= index < one.first + len(one.lines)]
    if holding:
        return holding[0], index, True
    last = max(inside, key=lambda one: one.first + len(one.lines))
    return last, last.first + len(last.lines) - 1, False


def said(kind: str, release: str) -> list[Said]:
    """Every known message of one release, with file and line.

    Raises:
        ValueError: The release's messages are not known.
    """
    store = _store(kind)
    index = store.releases.index(release)
    return [
        Said(template, one.file, one.lines[index - one.first])
        for template, places in store.rows
        for one in places
        if one.first <= index < one.first + len(one.lines)
    ]


@cache
def _targets(kind: str) -> dict[str, Any]:
    return _read(kind, "targets")


def target_needs(release: Release, architecture: str) -> tuple[Lack, ...] | None:
    """What a target's class lacks for EAGLE-3 in a release; () where nothing, None where the release is not known.

    Args:
        release: Engine and release; a release without facts is judged by the nearest older one.
        architecture: The class that the engine builds, as the target's config names it.
    """
    known = nearest_known(release)
    number = _targets(known.kind)["releases"].get(known.number) if known else None
    if known is None or number is None:
        return None
    data = _targets(known.kind)
    found = data["tables"][number]
    if architecture in found:
        return tuple(Lack(*data["lacks"][row]) for row in found[architecture])
    if known.kind == "vllm":
        reason = f"{architecture} is not registered, and is served by a general class or not at all"
        return (Lack("interface", reason, "model_executor/models/registry.py", sure=False),)
    reason = f"{architecture} has no set_eagle3_layers_to_capture"
    return (Lack("hook", reason, "models/"),)


def pack_targets(read: list[tuple[str, dict[str, list[Lack]]]]) -> bytes:
    """The file with what these releases' targets lack."""
    lacks: dict[Lack, int] = {}
    tables: list[dict[str, list[int]]] = []
    numbers = {}
    for release, found in read:
        table = {name: [lacks.setdefault(x, len(lacks)) for x in rows] for name, rows in found.items()}
        if table not in tables:
            tables.append(table)
        numbers[release] = tables.index(table)
    rows = [[one.what, one.reason, one.source, one.sure] for one in lacks]
    return _packed({"schema": _SCHEMA, "releases": numbers, "tables": tables, "lacks": rows})


def _packed(data: dict[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return lzma.compress(text.encode(), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME)


def pack(read: list[tuple[str, list[Said]]]) -> bytes:
    """The file with these releases' messages, oldest first."""
    files: dict[str, int] = {}
    rows: dict[Template, dict[str, dict[int, int]]] = {}
    for index, (_, messages) in enumerate(read):
        for one in messages:
            files.setdefault(one.file, len(files))
            rows.setdefault(one.template, {}).setdefault(one.file, {}).setdefault(index, one.line)
    packed = []
    for template, places in rows.items():
        runs = []
        for file, lines in places.items():
            for first, run in _runs(lines):
                steps = [run[0], *(b - a for a, b in pairwise(run))]
                runs.append([files[file], first, *steps])
        packed.append([template.error, template.pieces, template.code, template.condition, runs])
    names = [release for release, _ in read]
    return _packed({"schema": _SCHEMA, "releases": names, "files": list(files), "messages": packed})


def _runs(lines: dict[int, int]) -> Iterator[tuple[int, list[int]]]:
    """Releases in a row, with their lines."""
    start = -1
    run: list[int] = []
    for index in sorted(lines):
        if run and index != start + len(run):
            yield start, run
            run = []
        if not run:
            start = index
        run.append(lines[index])
    if run:
        yield start, run
