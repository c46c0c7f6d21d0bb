"""A vLLM source tree as text: a folder, a source distribution or a wheel, read file by file, never imported."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from eagle3lab.engines.extract.tree import LARGEST_FILE, FolderTree, SourceTree
from eagle3lab.errors import InputError

# Relative to what the user points at: the folder itself, a checkout, an unpacked distribution, site-packages.
_PLACES = ("", "vllm")
_MARKS = ("model_executor/models/registry.py", "v1/spec_decode/eagle.py", "config/speculative.py")
_ADVICE = (
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
    for place in _PLACES[: 1 if beside_sglang else None]:
        root = path / place
        if sum((root / mark).is_file() for mark in _MARKS) >= 2:
            return root
    return None


class _Release(SourceTree):
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


class VllmFolder(_Release, FolderTree):
    """A vLLM package in a folder."""

    advice = _ADVICE

    def _package_files(self) -> tuple[str, ...]:
        beside = self._root.parent
        try:
            found = sorted(beside.glob("vllm*.dist-info"))
        except OSError:
            return ()
        return ("../PKG-INFO", *(f"../{folder.name}/METADATA" for folder in found))


class VllmArchive(_Release):
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
    raise InputError(problem, path=path, advice=_ADVICE)


def _archive(path: Path) -> SourceTree:
    if path.stat().st_size > _LARGEST_ARCHIVE:
        raise InputError(f"is larger than {_LARGEST_ARCHIVE >> 20} MiB", path=path, advice=_ADVICE)
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
            f"is neither a source distribution nor a wheel: {error}", path=path, advice=_ADVICE
        ) from None
    if sum(mark in contents for mark in _MARKS) < 2:
        raise InputError("holds no vLLM source tree", path=path, advice=_ADVICE)
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
