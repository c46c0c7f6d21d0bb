"""An engine's source tree as text: read file by file, never imported.

Nothing is written and nothing is executed. Files that are not regular, too large or not UTF-8 are left out and
said to be so; folders behind symbolic links are not entered, so a link that points upwards cannot trap anyone.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from pathlib import Path
from typing import ClassVar

from eagle3lab.errors import InputError

LARGEST_FILE = 8 * 2**20
MOST_FILES = 20_000


class SourceTree:
    """The Python files of an engine, by their path relative to its root, and what the package says of itself.

    Attributes:
        path: What the user pointed at.
        files: Path of every Python file relative to the root, sorted.
        skipped: Files that could not be read, with the reason.
        package: What the names of its modules begin with.
    """

    package: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[str, ...] = ()
        self.skipped: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}

    def text(self, file: str) -> str | None:
        """Content of `file`; None if there is no such file or it cannot be read (then `skipped` says why)."""
        if file not in self._texts:
            self._texts[file] = self._decoded(file)
        return self._texts[file]

    def holding(self, word: str, under: str = "") -> tuple[str, ...]:
        """The files under a folder whose text holds `word`."""
        return tuple(f for f in self.files if f.startswith(under) and word in (self.text(f) or ""))

    def release(self) -> tuple[str, str, int] | None:
        """The release the package names, with the file (relative to its root) and line; None if it names none."""
        raise NotImplementedError

    def requirement(self, package: str) -> tuple[str, str, int] | None:
        """The line by which the package requires `package`, with file and line; None if it cannot be seen."""
        found = re.compile(rf'^\s*(?:Requires-Dist:\s*)?"?{re.escape(package)}\s*[=<>~!]')
        for file in (*self._package_files(), "../../pyproject.toml"):
            for number, line in enumerate((self.text(file) or "").splitlines(), 1):
                if found.match(line):
                    return line.strip(), file, number
        return None

    def _package_files(self) -> tuple[str, ...]:
        """METADATA of the distribution, relative to the root."""
        return ()

    def _read(self, file: str) -> bytes | None:
        raise NotImplementedError

    def _decoded(self, file: str) -> str | None:
        try:
            data = self._read(file)
            return None if data is None else data.decode("utf-8")
        except UnicodeDecodeError:
            self.skipped[file] = "is not UTF-8"
        except (
            OSError,
            zipfile.BadZipFile,
            NotImplementedError,
            RuntimeError,
            ValueError,
            EOFError,
        ) as error:
            self.skipped[file] = f"cannot be read: {error}"
        return None


class FolderTree(SourceTree):
    """A source tree in a folder."""

    # What to point at instead.
    advice: ClassVar[str]

    def __init__(self, path: Path, root: Path) -> None:
        super().__init__(path)
        self._root = root
        found: list[str] = []
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(
                name for name in folders if name != "__pycache__" and not name.startswith(".")
            )
            inside = Path(folder).relative_to(root)
            found += [(inside / name).as_posix() for name in names if name.endswith(".py")]
            if len(found) > MOST_FILES:
                raise InputError(f"holds more than {MOST_FILES} Python files", path=path, advice=self.advice)
        self.files = tuple(sorted(found))

    def _read(self, file: str) -> bytes | None:
        path = Path(os.path.normpath(self._root / file))
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):
            self.skipped[file] = "is not a regular file"
            return None
        if status.st_size > LARGEST_FILE:
            self.skipped[file] = f"is larger than {LARGEST_FILE >> 20} MiB"
            return None
        return path.read_bytes()
