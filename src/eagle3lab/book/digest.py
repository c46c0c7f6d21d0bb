"""What a chapter's outcome depends on, as one digest: nothing runs again while it is unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import eagle3lab

PACKAGE = Path(eagle3lab.__file__).parent


def surroundings(root: Path) -> str:
    """Digest of what every chapter depends on: package, specimen, locks and interpreter."""
    state = hashlib.sha256(f"{sys.version}\n{sys.executable}\n".encode())
    for folder in (PACKAGE, root / "specimen", root / "requirements"):
        state.update(tree(folder).encode())
    return state.hexdigest()


def tree(folder: Path) -> str:
    """Digest of names and contents of all files below `folder`, byte code aside; none if it is absent."""
    state = hashlib.sha256()
    for path in sorted(_files(folder)):
        state.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()


def of_chapter(notebook: Path, parameters: Mapping[str, Any], around: str) -> str:
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
