"""An SGLang source tree as text: a folder or a wheel, read file by file, never imported."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path, PurePosixPath

from eagle3lab.engines.extract.tree import LARGEST_FILE, FolderTree, SourceTree
from eagle3lab.errors import InputError

# Relative to what the user points at: the folder itself, an unpacked wheel or site-packages, a git checkout.
_PLACES = ("", "srt", "sglang/srt", "python/sglang/srt")
_MARKS = ("server_args.py", "models/registry.py", "managers/scheduler.py")
# What a checkout without tags calls itself, followed by .dev0 or .dev1 and a commit.
_NO_RELEASE = "0.0.0"
_ADVICE = "Point at an SGLang checkout, an installed sglang folder, site-packages, or an sglang wheel."


class _Release(SourceTree):
    """What the package says of itself; paths are relative to `sglang/srt`."""

    package = "sglang.srt."

    def release(self) -> tuple[str, str, int] | None:
        """The release the package names, with the file (relative to `sglang/srt`) and line; None if it names none."""
        found = re.compile(
            r"^(?:__version__ = version|__version__|Version|version)\s*[=:]\s*[\"']?v?(\d[\w.+!-]*)"
        )
        for file in ("../version.py", "../_version.py", *self._package_files(), "../../pyproject.toml"):
            text = self.text(file) or ""
            for number, line in enumerate(text.splitlines(), 1):
                match = found.match(line)
                if match and not match[1].startswith(_NO_RELEASE):
                    return match[1], file, number
        return None


class SglangFolder(_Release, FolderTree):
    """An SGLang package in a folder."""

    advice = _ADVICE

    def _package_files(self) -> tuple[str, ...]:
        beside = self._root.parent.parent
        try:
            found = sorted(entry.name for entry in beside.glob("sglang-*.dist-info"))
        except OSError:
            return ()
        return tuple(f"../../{name}/METADATA" for name in found)


class SglangWheel(_Release):
    """An SGLang package in a wheel, which stays packed."""

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
                return SglangFolder(path, root.resolve())
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=path, advice=_ADVICE) from None
    raise InputError("holds no SGLang source tree", path=path, advice=_ADVICE)


def _wheel(path: Path) -> SourceTree:
    try:
        tree = SglangWheel(path, zipfile.ZipFile(path))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"is not a wheel: {error}", path=path, advice=_ADVICE) from None
    if sum(mark in tree.files for mark in _MARKS) < 2:
        raise InputError("holds no SGLang source tree", path=path, advice=_ADVICE)
    return tree
