"""repair-journal.json: what was changed, and how each original file is put together again; and that being done.

A file of the original is a list of *pieces*: stretches of files of the repaired folder, and bytes kept in the journal
itself (zlib, base64). Together they are the original byte for byte, which its size and digest confirm. The digest
covers every byte: SHA-256, and beyond `SHA256_UP_TO` bytes the CRC-32 of each block of `BLOCK` bytes, which takes no
longer than the copy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from eagle3lab.checkpoint.json_input import read_json_object
from eagle3lab.checkpoint.safetensors import FileRange, Part, write_parts
from eagle3lab.checkpoint.store import safe_file
from eagle3lab.errors import InputError
from eagle3lab.repair.folder import atomic_folder, carry, check_out, list_folder, plain_mode
from eagle3lab.repair.model import packed

JOURNAL = "repair-journal.json"
SCHEMA_VERSION = 2
SHA256_UP_TO = BLOCK = 64 * 2**20
# Bytes of an original that the journal can hold: headers, a token map, the frame of a torch archive.
LARGEST_KEPT = 24 * 2**20
WEIGHTS = (".safetensors", ".bin", ".pt")
_READ = 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """A stretch of an original file that is in the repaired folder.

    Attributes:
        offset: Where it begins in the original, in bytes.
        length: Its bytes.
        file: The repaired folder's file that holds it.
        at: Where it begins there.
    """

    offset: int
    length: int
    file: str
    at: int


def pieces(path: Path, kept: Iterable[Kept]) -> list[dict[str, Any]]:
    """The pieces that make up the file `path`: what is kept elsewhere by reference, the rest by its bytes.

    Raises:
        InputError: It cannot be read, or too little of it is kept for a journal.
    """
    found: list[dict[str, Any]] = []
    at, held = 0, 0
    try:
        with path.open("rb") as stream:
            ends = Kept(path.stat().st_size, 0, "", 0)
            for one in [*sorted(kept, key=lambda one: (one.offset, -one.length)), ends]:
                if one.offset < at:  # a storage that two tensors share
                    continue
                if one.offset > at:
                    held += one.offset - at
                    if held > LARGEST_KEPT:
                        raise InputError(
                            f"more than {LARGEST_KEPT} bytes of it would have to be kept to undo the repair",
                            path=path,
                            advice="Save it as safetensors first.",
                        )
                    stream.seek(at)
                    found.append({"bytes": packed(stream.read(one.offset - at))})
                _add(found, one)
                at = one.offset + one.length
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
    return found


def _add(found: list[dict[str, Any]], one: Kept) -> None:
    if not one.length:
        return
    last = found[-1] if found else {}
    if last.get("file") == one.file and last["offset"] + last["length"] == one.at:
        last["length"] += one.length
    else:
        found.append({"file": one.file, "offset": one.at, "length": one.length})


def digest(path: Path) -> dict[str, Any]:
    """What a file is known by again: its size in bytes, and `sha256` or the `crc32` of its blocks. Reads every byte.

    Raises:
        InputError: It cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size <= SHA256_UP_TO:
                return {"size": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
            blocks, buffer = [0] * -(-size // BLOCK), memoryview(bytearray(_READ))
            for number in range(len(blocks)):
                for _ in range(BLOCK // _READ):
                    count = stream.readinto(buffer)
                    blocks[number] = zlib.crc32(buffer[:count], blocks[number])
            return {"size": size, "crc32": [f"{block:08x}" for block in blocks]}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None


# ---- the original ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put together again: the folder and the names of its files."""

    path: Path
    files: tuple[str, ...]


def undo_repair(repaired: Path, out: Path, *, sync: bool = False) -> Restored:
    """Write the original of `repaired` into the new folder `out`.

    Args:
        repaired: A folder written by `write_repair`; only read. Its journal is trusted with nothing: it cannot name
            a file outside either folder, it cannot ask for more than the folder holds, and each file's size and
            digest must come out right.
        out: A folder that does not exist yet.
        sync: Whether it must be on the disk, not in memory alone, before it gets its name.

    Raises:
        InputError: There is no journal, it is damaged, the folder was changed since, or `out` cannot be written.
    """
    root = _folder(repaired)
    check_out(out, root)
    journal = _Journal(read_json_object(safe_file(root, JOURNAL))[0], root, repaired / JOURNAL)
    with atomic_folder(out, sync=sync) as folder:
        for name in journal.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, entry in journal.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            journal.restore(name, entry, folder / name)
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
    """The part of a journal that undoing needs, checked before anything is written."""

    def __init__(self, raw: Mapping[str, Any], root: Path, path: Path) -> None:
        self.root, self.path = root, path
        if raw.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"is no journal of version {SCHEMA_VERSION}", path=path)
        source = self._typed(raw.get("source"), dict)
        self.folders = [self._name(name) for name in self._typed(source.get("folders"), list)]
        self.files: dict[str, dict[str, Any]] = {}
        asked = 0
        for entry in self._typed(source.get("files"), list):
            name = self._name(self._typed(entry, dict).get("name"))
            if name in self.files:
                raise InputError(f"names the file '{name}' twice", path=path)
            self.files[name] = entry
            lengths = [self._length(piece) for piece in self._typed(entry.get("pieces"), list)]
            if sum(lengths) != self._size(entry.get("size")):
                raise InputError(f"is damaged: the pieces of '{name}' are not as long as the file", path=path)
            asked += sum(self._length(piece) for piece in entry["pieces"] if "file" in piece)
        held = sum((root / name).stat().st_size for name in list_folder(root)[0])
        if asked > held:
            raise InputError("is damaged: it asks for more bytes than the folder holds", path=path)

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

    def _size(self, value: object) -> int:
        number: int = self._typed(value, int)
        if not 0 <= number < 2**63:
            raise InputError("is damaged: a size is impossible", path=self.path)
        return number

    def _length(self, piece: object) -> int:
        found = self._typed(piece, dict)
        return self._size((self._typed(found["bytes"], dict) if "bytes" in found else found).get("length"))

    def restore(self, name: str, entry: Mapping[str, Any], to: Path) -> None:
        """Put one file together and hold it against its digest."""
        parts = list(self._parts(entry))
        whole = parts[0] if len(parts) == 1 else None
        if (
            isinstance(whole, FileRange)
            and (whole.offset, whole.length) == (0, whole.path.stat().st_size)
            and name.endswith(WEIGHTS)
        ):
            carry(whole.path, to, link=True)
        else:
            write_parts(to, parts)
            mode = entry.get("mode")
            if isinstance(mode, str) and len(mode) == 4 and set(mode) <= set("01234567"):
                to.chmod(plain_mode(int(mode, 8)))
        found = digest(to)
        if unlike := [key for key in ("size", "sha256", "crc32") if found.get(key) != entry.get(key)]:
            raise InputError(
                f"the original of '{name}' cannot be put together: its {unlike[0]} is not what it was",
                path=self.path.parent,
                advice="The repaired folder was changed since; keep the original for as long as you may need it.",
            )

    def _parts(self, entry: Mapping[str, Any]) -> Iterator[Part]:
        kept = 0
        for piece in entry["pieces"]:
            length = self._length(piece)
            if "bytes" in piece:
                kept += length
                if kept > LARGEST_KEPT:
                    raise InputError(
                        f"is damaged: it keeps more than {LARGEST_KEPT} bytes of a file", path=self.path
                    )
                yield self._unpacked(piece["bytes"], length)
                continue
            offset = self._size(piece.get("offset"))
            path = safe_file(self.root, self._name(piece.get("file")))
            if offset + length > path.stat().st_size:
                raise InputError("is shorter than when it was written", path=path)
            yield FileRange(path.resolve(), offset, length)

    def _unpacked(self, kept: Mapping[str, Any], length: int) -> bytes:
        try:
            inflate = zlib.decompressobj()
            data = inflate.decompress(
                base64.b64decode(self._typed(kept.get("zlib"), str), validate=True), length + 1
            )
        except (binascii.Error, zlib.error, ValueError):
            raise InputError("is damaged: kept bytes cannot be read", path=self.path) from None
        if len(data) != length or not inflate.eof:
            raise InputError("is damaged: kept bytes have another length than stated", path=self.path)
        return data
