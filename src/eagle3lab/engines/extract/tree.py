"""An engine's source tree as text: a folder, a wheel or a source distribution, read file by file, never imported.

Nothing is written and nothing is executed. Files that are not regular, too large or not UTF-8 are left out and
said to be so; folders behind symbolic links are not entered, so a link that points upwards cannot trap anyone.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
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


def open_source(path: Path) -> SourceTree:
    """The source tree of SGLang or vLLM at `path`.

    Raises:
        InputError: There is neither.
    """
    return open_vllm(path) if is_vllm(path) else open_sglang(path)


# ---- SGLang -------------------------------------------------------------------------------------------------------

# Relative to what the user points at: the folder itself, an unpacked wheel or site-packages, a git checkout.
_SGLANG_PLACES = ("", "srt", "sglang/srt", "python/sglang/srt")
_SGLANG_MARKS = ("server_args.py", "models/registry.py", "managers/scheduler.py")
# What a checkout without tags calls itself, followed by .dev0 or .dev1 and a commit.
_NO_RELEASE = "0.0.0"
_SGLANG_ADVICE = "Point at an SGLang checkout, an installed sglang folder, site-packages, or an sglang wheel."


class _Sglang(SourceTree):
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


class SglangFolder(_Sglang, FolderTree):
    """An SGLang package in a folder."""

    advice = _SGLANG_ADVICE

    def _package_files(self) -> tuple[str, ...]:
        beside = self._root.parent.parent
        try:
            found = sorted(entry.name for entry in beside.glob("sglang-*.dist-info"))
        except OSError:
            return ()
        return tuple(f"../../{name}/METADATA" for name in found)


class SglangWheel(_Sglang):
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


def open_sglang(path: Path) -> SourceTree:
    """The SGLang source tree at `path`: a checkout, an installed package, site-packages, or a wheel.

    Raises:
        InputError: There is none.
    """
    try:
        if path.is_file():
            return _sglang_wheel(path)
        if not path.is_dir():
            raise InputError("no such file or folder", path=path, advice=_SGLANG_ADVICE)
        for place in _SGLANG_PLACES:
            root = path / place
            if sum((root / mark).is_file() for mark in _SGLANG_MARKS) >= 2:
                return SglangFolder(path, root.resolve())
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=path, advice=_SGLANG_ADVICE) from None
    raise InputError("holds no SGLang source tree", path=path, advice=_SGLANG_ADVICE)


def _sglang_wheel(path: Path) -> SourceTree:
    try:
        tree = SglangWheel(path, zipfile.ZipFile(path))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"is not a wheel: {error}", path=path, advice=_SGLANG_ADVICE) from None
    if sum(mark in tree.files for mark in _SGLANG_MARKS) < 2:
        raise InputError("holds no SGLang source tree", path=path, advice=_SGLANG_ADVICE)
    return tree


# ---- vLLM ---------------------------------------------------------------------------------------------------------

# Relative to what the user points at: the folder itself, a checkout, an unpacked distribution, site-packages.
_VLLM_PLACES = ("", "vllm")
_VLLM_MARKS = ("model_executor/models/registry.py", "v1/spec_decode/eagle.py", "config/speculative.py")
_VLLM_ADVICE = (
    "Point at a vLLM checkout, an installed vllm folder, site-packages, a source distribution or a wheel."
)
# Facts are read from nowhere else.
_UNDER = ("attention/", "config/", "distributed/", "model_executor/", "transformers_utils/", "v1/")
_LARGEST_ARCHIVE = 512 * 2**20


def is_vllm(path: Path) -> bool:
    """Whether there is vLLM at `path`: a folder with its marks, or an archive that is called like one of its own."""
    try:
        if path.is_file():
            return re.match(r"vllm(_cpu)?-\d", path.name) is not None
        return _root(path) is not None
    except OSError:
        return False  # what is wrong with the path is said where it is opened


def _root(path: Path) -> Path | None:
    beside_sglang = (
        path / "sglang" / "srt"
    ).is_dir()  # site-packages with both: SGLang is what was always read
    for place in _VLLM_PLACES[: 1 if beside_sglang else None]:
        root = path / place
        if sum((root / mark).is_file() for mark in _VLLM_MARKS) >= 2:
            return root
    return None


class _Vllm(SourceTree):
    """What the distribution says of itself."""

    package = "vllm."

    def release(self) -> tuple[str, str, int] | None:
        """The release that the distribution or the generated `_version.py` names."""
        found = re.compile(
            r"^(?:__version__ = version|__version__|version|Version)\s*[=:]\s*[\"']?v?(\d[\w.+!-]*)"
        )
        for file in ("_version.py", *self._package_files()):
            for number, line in enumerate((self.text(file) or "").splitlines(), 1):
                match = found.match(line)
                if match:
                    # A build's own marks (`+cpu`) are no part of the release.
                    return match[1].partition("+")[0], file, number
        return None


class VllmFolder(_Vllm, FolderTree):
    """A vLLM package in a folder."""

    advice = _VLLM_ADVICE

    def _package_files(self) -> tuple[str, ...]:
        beside = self._root.parent
        try:
            found = sorted(beside.glob("vllm*.dist-info"))
        except OSError:
            return ()
        return ("../PKG-INFO", *(f"../{folder.name}/METADATA" for folder in found))


class VllmArchive(_Vllm):
    """A vLLM package in an archive, the texts that matter taken out of it."""

    def __init__(self, path: Path, contents: Mapping[str, bytes]) -> None:
        super().__init__(path)
        self._contents = contents
        self.files = tuple(sorted(name for name in contents if name.endswith(".py")))

    def _package_files(self) -> tuple[str, ...]:
        return tuple(name for name in self._contents if name.startswith("../"))

    def _read(self, file: str) -> bytes | None:
        return self._contents.get(os.path.normpath(PurePosixPath(file).as_posix()))


def open_vllm(path: Path) -> SourceTree:
    """The vLLM source tree at `path`.

    Raises:
        InputError: There is none.
    """
    try:
        if path.is_file():
            return _archive(path)
        root = _root(path)
        if root is not None:
            return VllmFolder(path, root.resolve())
        problem = "holds no vLLM source tree" if path.is_dir() else "no such file or folder"
    except OSError as error:
        problem = error.strerror or "cannot be read"
    raise InputError(problem, path=path, advice=_VLLM_ADVICE)


def _archive(path: Path) -> SourceTree:
    if path.stat().st_size > _LARGEST_ARCHIVE:
        raise InputError(f"is larger than {_LARGEST_ARCHIVE >> 20} MiB", path=path, advice=_VLLM_ADVICE)
    try:
        contents = _from_wheel(path) if zipfile.is_zipfile(path) else _from_sdist(path)
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,
    ) as error:
        raise InputError(
            f"is neither a source distribution nor a wheel: {error}", path=path, advice=_VLLM_ADVICE
        ) from None
    if sum(mark in contents for mark in _VLLM_MARKS) < 2:
        raise InputError("holds no vLLM source tree", path=path, advice=_VLLM_ADVICE)
    return VllmArchive(path, contents)


def _from_sdist(path: Path) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            place = _place(member.name.partition("/")[2])
            if place is None or not member.isfile() or member.size > LARGEST_FILE:
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                contents[place] = stream.read()
    return contents


def _from_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist() if entry.file_size <= LARGEST_FILE}
        places = {name: _place(name) for name in entries}
        return {place: archive.read(name) for name, place in places.items() if place is not None}


def _place(name: str) -> str | None:
    """A member's path relative to the package `vllm`; None if no fact is read from it."""
    if name == "PKG-INFO" or re.fullmatch(r"vllm[^/]*\.dist-info/METADATA", name):
        return f"../{name}"
    inside = name.removeprefix("vllm/")
    if inside == name or not name.endswith(".py"):
        return None
    return inside if inside.startswith(_UNDER) or "/" not in inside else None
