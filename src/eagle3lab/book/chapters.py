"""Chapters: the notebooks of a project, what a run of one yields and depends on, and all their claims in one file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

import eagle3lab
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
        kept = msgspec.json.decode((layout.executed / f"{chapter}.json").read_bytes(), type=ChapterRun)
    except (OSError, msgspec.MsgspecError):
        return None
    return replace(kept, cached=True)


def collect_claims(cells: Iterable[Mapping[str, Any]]) -> tuple[MadeClaim, ...]:
    """The claims in the outputs of an executed notebook's `cells`, in order."""
    made: list[MadeClaim] = []
    for number, cell in numbered(cells):
        for output in cell.get("outputs", ()):
            data = output.get("data", {}).get(CLAIM_MIME)
            if data is not None:
                made.append(MadeClaim(number, msgspec.convert(data, Claim)))
    return tuple(made)


def numbered(cells: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """The code cells with source, each with the n of its `In [n]` when run from top to bottom."""
    code = (cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip())
    return enumerate(code, start=1)


PACKAGE = Path(eagle3lab.__file__).parent


def surroundings(root: Path) -> str:
    """Digest of what every chapter depends on: package, specimen, locks and interpreter."""
    state = hashlib.sha256(f"{sys.version}\n{sys.executable}\n".encode())
    for folder in (PACKAGE, root / "specimen", root / "requirements"):
        state.update(digest_of_tree(folder).encode())
    return state.hexdigest()


def digest_of_tree(folder: Path) -> str:
    """Digest of names and contents of all files below `folder`, byte code aside; none if it is absent."""
    state = hashlib.sha256()
    for path in sorted(_files(folder)):
        state.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()


def digest_of_chapter(notebook: Path, parameters: Mapping[str, Any], around: str) -> str:
    """Digest of one chapter's run.

    A parameter that names a file or folder counts with the sizes and times of its files, not with their
    contents: checkpoints are large.
    """
    state = hashlib.sha256(around.encode())
    state.update(notebook.read_bytes())
    state.update(json.dumps(parameters, sort_keys=True, default=str).encode())
    for value in parameters.values():
        if isinstance(value, str) and os.sep in value and Path(value).exists():
            state.update(repr(sorted(_stats(Path(value)))).encode())
    return state.hexdigest()


def _files(folder: Path) -> Iterable[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(parent, name)
            if path.suffix != ".pyc" and path.is_file():
                yield path


def _stats(path: Path) -> Iterable[tuple[str, int, int]]:
    for file in [path] if path.is_file() else _files(path):
        status = file.stat()
        yield str(file), status.st_size, status.st_mtime_ns


VERSIONED = (
    "eagle3lab", "numpy", "torch", "transformers", "sglang", "speculators", "safetensors",
    "papermill", "ipykernel", "plotly", "jupyter-book", "Sphinx",
)  # fmt: skip


def write_claims(layout: Layout) -> None:
    """Write `claims.json` from the records of every chapter that the project has and that ever ran."""
    runs = [read_record(layout, path.stem) for path in sorted(layout.notebooks.glob("*.ipynb"))]
    known = [run for run in runs if run is not None]
    data = {
        "schema_version": 1,
        "claims": [
            {
                "chapter": run.chapter,
                "cell": made.cell,
                "text": made.claim.text,
                "measured": made.claim.measured,
                "expected": made.claim.expected,
                "passed": made.claim.passed,
            }
            for run in known
            for made in run.claims
        ],
        "chapters": [
            {
                "chapter": run.chapter,
                "seconds": run.seconds,
                "claims": len(run.claims),
                "parameters": dict(run.parameters),
                "failure": run.failure.message if run.failure else None,
            }
            for run in known
        ],
        "versions": versions(),
    }
    layout.claims.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Python and the packages that a chapter's outcome may depend on, where installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
