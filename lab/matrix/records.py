"""The matrix's data: what was measured with each fault in each release, one JSON object a line.

The first line names the schema; every other one is a `Cell`. Cells are ordered by fault, engine and way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from eagle3lab.errors import InputError

SCHEMA_VERSION = 1
HEALTHY = "healthy"
"""Name and slug of the row without a fault."""
AND = " + "
"""Between the names (or slugs) of two faults that are in one head, in the order in which they were put in."""

Way = Literal["reference", "server"]
"""How a cell was measured: in plain torch as the release would, or by the release itself."""
Outcome = Literal["measured", "stops", "timeout", "not applicable", "not modelled", "not made"]
"""What became of a cell. `stops`: the engine ends while loading or at a request. `not applicable`: the release is
not affected. `not modelled`: the reference does not compute what the fault changes. `not made`: its head has not been
trained here."""


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """What `eagle3lab diagnose` says from folder, target, release and command.

    Of a server that answered it has the line of the log that the cell keeps as well, and ranks by the other half of the
    cells.

    Attributes:
        verdict: broken, suspect, healthy, unknown.
        first: Slug of the first finding; empty without one.
        code: Its check.
        confidence: How sure it is, 0 to 1; 0 without a finding.
        title: Its title.
        named: Whether the first finding is the fault that was put in, or one of two.
        place: Where the fault stands among the findings, 1 for first, or the later of two; None where one is not
            among them.
    """

    verdict: str
    first: str = ""
    code: str = ""
    confidence: float = 0.0
    title: str = ""
    named: bool = False
    place: int | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in one release, measured in one way.

    Attributes:
        fault: Name of the injector, `vocab.absolute/in-range`; `healthy` for none; two with `AND` between them.
        slug: The fault's slug in the taxonomy; two likewise.
        engine: `sglang==0.5.9`.
        way: See `Way`.
        outcome: See `Outcome`; figures are there for `measured` alone.
        detail: Why there are no figures: the exception, or the reason.
        change: What was changed, in words.
        expected: What the fault should look like, in words.
        prompts: Prompts answered.
        max_new_tokens: Length at which an answer was cut.
        steps: Draft steps.
        topk: Candidates that continue a node.
        draft_tokens: D, the root included.
        verify_steps: Verifications.
        accepted: Drafts accepted at position 1, 2, …
        accept_length: Tokens per verification, bonus included; None without figures.
        low: Lower end of its 95% interval over prompts; None where it is not known.
        high: Upper end.
        rounds: For each prompt, the drafts accepted at each verification, one digit each; empty where the server did
            not say it step by step.
        histograms: For each prompt, verifications with 0, 1, … accepted drafts.
        answers: First 12 hex digits of the SHA-256 of all answers' token ids: equal where the answers are.
        same_answers: Whether the answers are those of the target alone; None without figures.
        dropped: Names in the checkpoint that reached nothing.
        uninitialised: Parameters that nothing filled.
        widths: Drafter passes by `phase:width` (servers with the probe).
        log_line: The log's last line with an accept length (servers).
        diagnosis: What the diagnosis says of it; None where it was not asked.
        seconds: What the cell took.
        made: Date, `2026-11-29`.
        versions: Packages that computed it.
        inputs: Digest of what was measured: files, launch, prompts.
        code: Digest of the code that measured it.
    """

    fault: str
    slug: str
    engine: str
    way: Way
    outcome: Outcome
    detail: str = ""
    change: str = ""
    expected: str = ""
    prompts: int = 0
    max_new_tokens: int = 0
    steps: int = 0
    topk: int = 0
    draft_tokens: int = 0
    verify_steps: int = 0
    accepted: tuple[int, ...] = ()
    accept_length: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: tuple[str, ...] = ()
    histograms: tuple[tuple[int, ...], ...] = ()
    answers: str = ""
    same_answers: bool | None = None
    dropped: tuple[str, ...] = ()
    uninitialised: tuple[str, ...] = ()
    widths: dict[str, int] = {}
    log_line: str = ""
    diagnosis: Diagnosed | None = None
    seconds: float = 0.0
    made: str = ""
    versions: dict[str, str] = {}
    inputs: str = ""
    code: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Fault, engine and way: there is one cell of each."""
        return self.fault, self.engine, self.way

    @property
    def position_rates(self) -> tuple[float, ...]:
        """For each draft position, the share of all verifications that accepted it (and those before it)."""
        return tuple(count / self.verify_steps for count in self.accepted) if self.verify_steps else ()

    @property
    def accept_rate(self) -> float | None:
        """Accepted drafts / proposed drafts of a chain, between 0 and 1."""
        if not self.verify_steps:
            return None
        return sum(self.accepted) / (self.verify_steps * self.steps)


class _Head(msgspec.Struct, frozen=True):
    """The first line."""

    schema_version: int
    cells: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """All cells.

    Attributes:
        cells: Ordered by fault, engine and way, the healthy row first.
    """

    cells: tuple[Cell, ...]

    def cell(self, fault: str, engine: str, way: Way) -> Cell | None:
        """One cell; None where it was never run."""
        return next((one for one in self.cells if one.key == (fault, engine, way)), None)

    def of(self, *, slug: str | None = None, engine: str | None = None, way: Way | None = None) -> list[Cell]:
        """The cells with this slug, engine and way."""
        return [
            one
            for one in self.cells
            if slug in (None, one.slug) and engine in (None, one.engine) and way in (None, one.way)
        ]

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the injectors, in order."""
        return tuple(dict.fromkeys(one.fault for one in self.cells))

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines, in order."""
        return tuple(dict.fromkeys(one.engine for one in self.cells))

    def agreement(self, fault: str, engine: str) -> bool | None:
        """Whether reference and server agree step by step: answers, and accepted drafts of every verification.

        Where the server did not report each step, each prompt's histogram of accepted drafts is compared instead.
        None where one of the two has no figures.
        """
        ours, theirs = self.cell(fault, engine, "reference"), self.cell(fault, engine, "server")
        if ours is None or theirs is None or ours.outcome != "measured" or theirs.outcome != "measured":
            return None
        if ours.rounds and theirs.rounds:
            return ours.answers == theirs.answers and ours.rounds == theirs.rounds
        return ours.answers == theirs.answers and ours.histograms == theirs.histograms


def matrix_file() -> Path:
    """Where the measured matrix lies: `specimen/matrix.jsonl`."""
    from lab.specimen.paths import specimen_dir

    return specimen_dir() / "matrix.jsonl"


def pairs_file() -> Path:
    """Where the measured pairs of faults lie: `specimen/pairs.jsonl`."""
    return matrix_file().with_name("pairs.jsonl")


def read_matrix(path: Path | None = None) -> Matrix:
    """Read a matrix, the one of the specimen by default.

    Raises:
        InputError: It cannot be read, is of another schema version, or a line is no cell.
    """
    path = path or matrix_file()
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"the matrix cannot be read: {error.strerror}", path=path, advice="Run `make matrix`"
        ) from None
    cells: list[Cell] = []
    for number, line in enumerate(lines, 1):
        try:
            if number > 1:
                cells.append(msgspec.json.decode(line, type=Cell))
            elif (found := msgspec.json.decode(line, type=_Head).schema_version) != SCHEMA_VERSION:
                raise InputError(
                    f"a matrix of schema version {found}, not {SCHEMA_VERSION}", path=path, line=1
                )
        except msgspec.MsgspecError as error:
            raise InputError(f"this is no cell: {error}", path=path, line=number) from None
    return Matrix(tuple(cells))


def write_matrix(cells: Iterable[Cell], path: Path) -> None:
    """Write a matrix, so that an interruption leaves the earlier one whole."""
    ordered = sorted(cells, key=lambda one: (one.fault != HEALTHY, one.fault, _release(one.engine), one.way))
    lines = [msgspec.json.encode(_Head(SCHEMA_VERSION, len(ordered))), *map(msgspec.json.encode, ordered)]
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(b"\n".join(lines) + b"\n")
    partial.replace(path)


def _release(engine: str) -> tuple[str, tuple[int, ...]]:
    kind, _, release = engine.partition("==")
    return kind, tuple(int(part) for part in release.split(".") if part.isdigit())
