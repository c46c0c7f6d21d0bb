"""The original of a repaired folder, byte for byte, from the folder and its journal."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from eagle3lab.checkpoint.files import safe_file
from eagle3lab.checkpoint.json_input import read_json_object
from eagle3lab.checkpoint.writer import FileRange, Part, write_parts
from eagle3lab.errors import InputError
from eagle3lab.repair.folder import atomic_folder, carry, check_out
from eagle3lab.repair.journal import JOURNAL, LARGEST_KEPT, SCHEMA_VERSION, digest

_WEIGHTS = (".safetensors", ".bin", ".pt")


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put together again: the folder and the names of its files."""

    path: Path
    files: tuple[str, ...]


def undo_repair(repaired: Path, out: Path, *, sync: bool = False) -> Restored:
    """Write the original of `repaired` into the new folder `out`.

    Args:
        repaired: A folder written by `write_repair`; only read. Its journal is trusted with nothing: it cannot name
            a file outside either folder, and each file's size and digests must come out right.
        out: A folder that does not exist yet.
        sync: Whether it must be on the disk, not in memory alone, before it gets its name.

    Raises:
        InputError: There is no journal, it is damaged, the folder was changed since, or `out` cannot be written.
    """
    root = _folder(repaired)
    check_out(out, root)
    journal = _Journal(read_json_object(safe_file(root, JOURNAL))[0], repaired / JOURNAL)
    with atomic_folder(out, sync=sync) as folder:
        for name in journal.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, entry in journal.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _restore(root, journal, name, entry, folder / name)
    return Restored(out, tuple(journal.files))


def _folder(path: Path) -> Path:
    try:
        root = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise InputError("does not exist", path=path) from None
    if not (root / JOURNAL).exists():
        raise InputError(f"has no {JOURNAL}, so nothing can be undone", path=path)
    return root


class _Journal:
    """The part of a journal that undoing needs, checked."""

    def __init__(self, raw: Mapping[str, Any], path: Path) -> None:
        self.path = path
        if raw.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"is no journal of version {SCHEMA_VERSION}", path=path)
        source = self._typed(raw.get("source"), dict)
        self.folders = [self._name(name) for name in self._typed(source.get("folders"), list)]
        self.files: dict[str, dict[str, Any]] = {}
        for entry in self._typed(source.get("files"), list):
            name = self._name(self._typed(entry, dict).get("name"))
            if name in self.files:
                raise InputError(f"names the file '{name}' twice", path=path)
            self.files[name] = entry

    def _typed(self, value: object, kind: type) -> Any:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError("is damaged: something is not what it should be", path=self.path)
        return value

    def _name(self, value: object) -> str:
        name: str = self._typed(value, str)
        parts = PurePosixPath(name).parts
        if not parts or "\0" in name or name.startswith("/") or ".." in parts or "/".join(parts) != name:
            raise InputError(f"names '{name}', which is no file of the folder", path=self.path)
        return name

    def parts(self, root: Path, entry: Mapping[str, Any]) -> Iterator[Part]:
        """The pieces of a file."""
        for piece in self._typed(entry.get("pieces"), list):
            if "bytes" in self._typed(piece, dict):
                yield self._unpacked(self._typed(piece["bytes"], dict))
            else:
                offset, length = self._size(piece.get("offset")), self._size(piece.get("length"))
                path = safe_file(root, self._name(piece.get("file")))
                if offset + length > path.stat().st_size:
                    raise InputError("is shorter than when it was written", path=path)
                yield FileRange(path.resolve(), offset, length)

    def _size(self, value: object) -> int:
        number: int = self._typed(value, int)
        if not 0 <= number < 2**63:
            raise InputError("is damaged: a size is impossible", path=self.path)
        return number

    def _unpacked(self, kept: Mapping[str, Any]) -> bytes:
        length = self._size(kept.get("length"))
        try:
            inflate = zlib.decompressobj()
            packed = base64.b64decode(self._typed(kept.get("zlib"), str), validate=True)
            data = inflate.decompress(packed, min(length, LARGEST_KEPT) + 1)
        except (binascii.Error, zlib.error, ValueError):
            raise InputError("is damaged: kept bytes cannot be read", path=self.path) from None
        if len(data) != length or not inflate.eof:
            raise InputError("is damaged: kept bytes have another length than stated", path=self.path)
        return data


def _restore(root: Path, journal: _Journal, name: str, entry: Mapping[str, Any], to: Path) -> None:
    parts = list(journal.parts(root, entry))
    whole = parts[0] if len(parts) == 1 else None
    if (
        isinstance(whole, FileRange)
        and whole.offset == 0
        and whole.length == whole.path.stat().st_size
        and name.endswith(_WEIGHTS)
    ):
        carry(whole.path, to, link=True)
    else:
        write_parts(to, parts)
        mode = entry.get("mode")
        if isinstance(mode, str) and len(mode) == 4 and set(mode) <= set("01234567"):
            to.chmod(int(mode, 8) & 0o777)
    found = digest(to).to_dict()
    unlike = [key for key in ("size", "covers", "sha256") if found[key] != entry.get(key)]
    if unlike:
        raise InputError(
            f"the original of '{name}' cannot be put together: its {unlike[0]} is {found[unlike[0]]}, and was "
            f"{entry.get(unlike[0])}",
            path=journal.path.parent,
            advice="The repaired folder was changed since; keep the original for as long as you may need it.",
        )
