"""What the diagnosis made of every case of the corpus, as recorded for the book: `book/faults/examples.json`.

The corpus belongs to the tests and is not part of the package; `make cases` writes the record, and a test compares it
with the diagnosis as it is now.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec

from eagle3lab.errors import InputError

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Example:
    """A finding as a report shows it.

    Attributes:
        fault: Its slug.
        code: The check that made it.
        title: One line.
        evidence: Pairs of what was seen and where (`file:line, tensor`; empty where nowhere in particular).
        effect: What it does to acceptance.
        fix: The change that repairs it.
        repair: What `eagle3lab repair` says to it; empty where it is no matter of the drafter's files.
    """

    fault: str
    code: str
    title: str
    evidence: tuple[tuple[str, str], ...]
    effect: str
    fix: str
    repair: str = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """The four marks of a case: the right fault first, all found, the verdict, no false alarm."""

    first: bool
    found: bool
    verdict: bool
    no_alarm: bool


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """One case and what came of it.

    Attributes:
        case: Its name in the corpus.
        title: What it is, in a few words.
        engine: Such as `sglang==0.5.9`; empty when not given.
        given: What the diagnosis was given besides, in words.
        launch: The launch command; empty when not given.
        expected: The slug that should come first, or `healthy`.
        first: The slug that did, or `healthy`.
        marks: See `Marks`.
        examples: The findings that the case was made for.
    """

    case: str
    title: str
    engine: str
    given: tuple[str, ...]
    launch: str
    expected: str
    first: str
    marks: Marks
    examples: tuple[Example, ...]


def confusion(outcomes: Iterable[CaseOutcome]) -> Counter[tuple[str, str]]:
    """Number of cases by (expected slug, first slug)."""
    return Counter((one.expected, one.first) for one in outcomes)


def marks_held(outcomes: Sequence[CaseOutcome]) -> dict[str, int]:
    """Number of cases by mark."""
    return {mark.name: sum(getattr(one.marks, mark.name) for one in outcomes) for mark in fields(Marks)}


def to_json(outcomes: Sequence[CaseOutcome]) -> str:
    """The record as it is kept, a line for each case."""
    lines = (json.dumps(asdict(one), ensure_ascii=False) for one in outcomes)
    return '{"cases": [\n' + ",\n".join(lines) + "\n]}\n"


def read_record(path: Path) -> tuple[CaseOutcome, ...]:
    """The outcomes that `to_json` wrote.

    Raises:
        InputError: The file cannot be read, or is no such record.
    """
    again = "Write it with `make cases`."
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[CaseOutcome, ...]])["cases"]
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=path, advice=again) from error
    except (msgspec.MsgspecError, KeyError) as error:
        raise InputError(f"no record of cases ({error})", path=path, advice=again) from error
