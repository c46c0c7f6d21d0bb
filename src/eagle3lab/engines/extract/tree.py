"""An SGLang source tree as text: a folder or a wheel, read file by file, never imported.

Nothing is written and nothing is executed. Files that are not regular, too large or not UTF-8 are left out and
said to be so; folders behind symbolic links are not entered, so a link that points upwards cannot trap anyone.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from pathlib import Path, PurePosixPath

from eagle3lab.errors import InputError

LARGEST_FILE = 8 * 2**20
MOST_FILES = 20_000
# Relative to what the user points at: the folder itself, an unpacked wheel or site-packages, a git checkout.
_PLACES = ("", "srt", "sglang/srt", "python/sglang/srt")
_MARKS = ("server_args.py", "models/registry.py", "managers/scheduler.py")
_ADVICE = "Point at an SGLang checkout, an installed sglang folder, site-packages, or an sglang wheel."


class SourceTree:
    """The Python files below `sglang/srt`, by their path relative to it, and what the package says of itself.

    Attributes:
        path: What the user pointed at.
        files: Path of every Python file relative to `sglang/srt`, sorted.
        skipped: Files that could not be read, with the reason.
    """

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
        """The release the package names, with the file (relative to `sglang/srt`) and line; None if it names none."""
        found = re.compile(
            r"^(?:__version__ = version|__version__|Version|version)\s*[=:]\s*[\"']?v?(\d[\w.+!-]*)"
        )
        for file in ("../version.py", "../_version.py", *self._package_files(), "../../pyproject.toml"):
            text = self.text(file) or ""
            for number, line in enumerate(text.splitlines(), 1):
                match = found.match(line)
                if match and match[1] not in ("0.0.0", "0.0.0.dev0"):
                    return match[1], file, number
        return None

    def requirement(self, package: str) -> tuple[str, str, int] | None:
        """The line by which the package requires `package`, with file and line; None if it cannot be seen."""
        found = re.compile(rf'^\s*(?:Requires-Dist:\s*)?"?{re.escape(package)}\s*[=<>~!]')
        for file in (*self._package_files(), "../../pyproject.toml"):
            for number, line in enumerate((self.text(file) or "").splitlines(), 1):
                if found.match(line):
                    return line.strip(), file, number
        return None

    def _package_files(self) -> tuple[str, ...]:
        """METADATA of the distribution, relative to `sglang/srt`."""
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
                raise InputError(f"holds more than {MOST_FILES} Python files", path=path, advice=_ADVICE)
        self.files = tuple(sorted(found))

    def _package_files(self) -> tuple[str, ...]:
        beside = self._root.parent.parent
        try:
            found = sorted(entry.name for entry in beside.glob("sglang-*.dist-info"))
        except OSError:
            return ()
        return tuple(f"../../{name}/METADATA" for name in found)

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


class WheelTree(SourceTree):
    """A source tree in a wheel, which stays packed."""

    _ROOT = "sglang/srt/"

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        super().__init__(path)
        self._archive = archive
        self._sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        self.files = tuple(
            sorted(
                name.removeprefix(self._ROOT)
                for name in self._sizes
                if name.startswith(self._ROOT) and name.endswith(".py")
            )
        )

    def _package_files(self) -> tuple[str, ...]:
        pattern = re.compile(r"sglang-[^/]*\.dist-info/METADATA")
        return tuple(f"../../{name}" for name in self._sizes if pattern.fullmatch(name))

    def _read(self, file: str) -> bytes | None:
        name = os.path.normpath(PurePosixPath(self._ROOT, file).as_posix())
        size = self._sizes.get(name)
        if size is None:
            return None
        if size > LARGEST_FILE:
            self.skipped[file] = f"is larger than {LARGEST_FILE >> 20} MiB"
            return None
        return self._archive.read(name)


def open_tree(path: Path) -> SourceTree:
    """The SGLang source tree at `path`: a checkout, an installed package, site-packages, or a wheel.

    Raises:
        InputError: There is none.
    """
    try:
        if path.is_file():
            return _wheel(path)
        if not path.is_dir():
            raise InputError("no such file or folder", path=path, advice=_ADVICE)
        for place in _PLACES:
            root = path / place
            if sum((root / mark).is_file() for mark in _MARKS) >= 2:
                return FolderTree(path, root.resolve())
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=path, advice=_ADVICE) from None
    raise InputError("holds no SGLang source tree", path=path, advice=_ADVICE)


def _wheel(path: Path) -> SourceTree:
    try:
        tree = WheelTree(path, zipfile.ZipFile(path))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"is not a wheel: {error}", path=path, advice=_ADVICE) from None
    if sum(mark in tree.files for mark in _MARKS) < 2:
        raise InputError("holds no SGLang source tree", path=path, advice=_ADVICE)
    return tree
