"""Chapters: the notebooks of a project, the parameters they declare, and what a run of one yields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3lab.book.claims import CLAIM_MIME, Claim
from eagle3lab.errors import InputError

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie in a project: its root, and the build folder `out` (by default `root/_build`)."""

    root: Path
    out: Path

    @classmethod
    def of(cls, root: Path, out: Path | None = None) -> Layout:
        """The layout of the project at `root`, every path absolute."""
        root = root.resolve()
        return cls(root, (root / "_build" if out is None else out).resolve())

    @property
    def notebooks(self) -> Path:
        """The chapters' sources, and their working directory when they run."""
        return self.root / "notebooks"

    @property
    def executed(self) -> Path:
        """Executed notebooks, one record (`.json`) beside each."""
        return self.out / "executed"

    @property
    def failed(self) -> Path:
        """Notebooks of chapters that failed, as far as they came."""
        return self.out / "failed"

    @property
    def logs(self) -> Path:
        """What a chapter's processes wrote outside the notebook."""
        return self.out / "logs"

    @property
    def claims(self) -> Path:
        """The claims of every chapter that ran."""
        return self.out / "claims.json"

    @property
    def html(self) -> Path:
        """The rendered book."""
        return self.out / "html"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a chapter failed.

    Attributes:
        kind: `error`, `claim`, `timeout`, `dead-kernel`, `exit`, `never-ran`, `no-claim`, `parameter`,
            `unreadable` or `crash`.
        message: One line.
        cell: The number n of the cell's `In [n]` (1-based, code cells only), if one cell is at fault.
        source: The cell's source, shortened.
        traceback: The traceback without colour codes, or the tail of the process's log.
    """

    kind: str
    message: str
    cell: int | None = None
    source: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class MadeClaim:
    """A claim and the number of the cell (`In [cell]`) that made it."""

    cell: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class ChapterRun:
    """One chapter's run: seconds of wall time, claims in order, and the failure if there is one.

    `digest` identifies everything that the outcome depends on; `cached` says that this run is an earlier one,
    reused.
    """

    chapter: str
    digest: str
    parameters: Parameters
    seconds: float
    claims: tuple[MadeClaim, ...]
    failure: Failure | None = None
    cached: bool = False

    def to_json(self) -> str:
        """The record kept beside the executed notebook."""
        data = asdict(self)
        del data["cached"]
        return json.dumps(data, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ChapterRun:
        """The run that `to_json` wrote, marked as cached.

        Raises:
            ValueError, KeyError, TypeError: `text` is not such a record.
        """
        data = json.loads(text)
        data["claims"] = tuple(MadeClaim(c["cell"], Claim.from_json(c["claim"])) for c in data["claims"])
        data["failure"] = Failure(**data["failure"]) if data["failure"] else None
        return cls(**data, cached=True)


def find_chapters(layout: Layout, wanted: Sequence[str] = ()) -> list[Path]:
    """The project's notebooks in reading order, or those that `wanted` names.

    Args:
        layout: The project.
        wanted: File names, stems, or leading parts of stems (`04` is enough when only one chapter starts so).

    Raises:
        InputError: There are no notebooks, or a name fits none or several.
    """
    every = sorted(layout.notebooks.glob("*.ipynb"))
    if not every:
        raise InputError("no notebooks here", path=layout.notebooks, advice="Run from the project's root")
    if not wanted:
        return every
    return sorted({_pick(name, every) for name in wanted})


def _pick(name: str, every: Sequence[Path]) -> Path:
    stem = Path(name).name.removesuffix(".ipynb")
    fits = [path for path in every if path.stem == stem] or [p for p in every if p.stem.startswith(stem)]
    if len(fits) != 1:
        problem = "no chapter is called" if not fits else "several chapters start with"
        known = ", ".join(path.stem for path in (fits or every))
        raise InputError(f"{problem} '{name}'", advice=f"Choose from {known}")
    return fits[0]


def read_record(layout: Layout, chapter: str) -> ChapterRun | None:
    """The record of the chapter's last run, or None when there is none that can be read."""
    try:
        return ChapterRun.from_json((layout.executed / f"{chapter}.json").read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def collect_claims(cells: Iterable[Mapping[str, Any]]) -> tuple[MadeClaim, ...]:
    """The claims in the outputs of an executed notebook's `cells`, in order."""
    made: list[MadeClaim] = []
    for number, cell in numbered(cells):
        for output in cell.get("outputs", ()):
            data = output.get("data", {}).get(CLAIM_MIME)
            if data is not None:
                made.append(MadeClaim(number, Claim.from_json(data)))
    return tuple(made)


def numbered(cells: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """The code cells with source, each with the n of its `In [n]` when run from top to bottom."""
    code = (cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip())
    return enumerate(code, start=1)
