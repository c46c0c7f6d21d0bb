"""repair-journal.json: what was changed, before and after, and how each original file is put together again.

A file of the original is a list of *pieces*: stretches of files of the repaired folder, and bytes kept in the journal
itself (zlib, base64). Together they are the original byte for byte, which its size and SHA-256 confirm. Of files beyond
`WHOLE_UP_TO` bytes the SHA-256 is that of evenly spaced blocks: of all bytes it would take longer than the copy.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.errors import InputError
from eagle3lab.repair.model import (
    ABSENT,
    Change,
    ConfigEdit,
    Edit,
    IndexEdit,
    Refusal,
    RenameEdit,
    TensorValue,
    ValuesEdit,
)

JOURNAL = "repair-journal.json"
SCHEMA_VERSION = 1
WHOLE_UP_TO = 64 * 2**20
SAMPLES, SAMPLE = 64, 2**16
# Bytes of an original that the journal can hold: headers, a token map, the frame of a torch archive.
LARGEST_KEPT = 24 * 2**20


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
    size, at, held = path.stat().st_size, 0, 0
    try:
        with path.open("rb") as stream:
            ends = Kept(size, 0, "", 0)
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


def packed(data: bytes) -> dict[str, Any]:
    """Bytes as JSON."""
    return {"length": len(data), "zlib": base64.b64encode(zlib.compress(data)).decode("ascii")}


@dataclass(frozen=True, slots=True)
class Digest:
    """What a file is known by again.

    Attributes:
        size: In bytes.
        sha256: Of every byte, or of the sample.
        covers: Which, in words.
        mode: Its permissions.
    """

    size: int
    sha256: str
    covers: str
    mode: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"size": self.size, "sha256": self.sha256, "covers": self.covers, "mode": f"{self.mode:04o}"}


def digest(path: Path) -> Digest:
    """Read a file once, or a sample of it.

    Raises:
        InputError: It cannot be read.
    """
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_size <= WHOLE_UP_TO:
                covers, sha = "every byte", hashlib.file_digest(stream, "sha256")
            else:
                covers, sha = f"{SAMPLES} evenly spaced blocks of {SAMPLE} bytes", hashlib.sha256()
                for number in range(SAMPLES):
                    stream.seek((status.st_size - SAMPLE) * number // (SAMPLES - 1))
                    sha.update(stream.read(SAMPLE))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
    return Digest(status.st_size, sha.hexdigest(), covers, stat.S_IMODE(status.st_mode))


def change_to_dict(change: Change) -> dict[str, Any]:
    """A change as JSON."""
    return {
        "fault": change.fault,
        "title": change.title,
        "evidence": list(change.evidence),
        "proof": change.proof,
        "edits": [_edit(edit) for edit in change.edits],
    }


def refusal_to_dict(refusal: Refusal) -> dict[str, Any]:
    """A refusal as JSON."""
    return {
        "fault": refusal.fault,
        "reason": refusal.reason,
        "evidence": list(refusal.evidence),
        "alternatives": list(refusal.alternatives),
    }


def _edit(edit: Edit) -> dict[str, Any]:
    if isinstance(edit, ConfigEdit):
        sides = {"before": edit.before, "after": edit.after}
        return {"config": edit.path} | {key: value for key, value in sides.items() if value is not ABSENT}
    if isinstance(edit, RenameEdit):
        return {"rename": edit.before, "to": edit.after}
    if isinstance(edit, IndexEdit):
        return {"index": edit.tensor, "file": edit.file}
    assert isinstance(edit, ValuesEdit)
    before = None if edit.before is None else _value(edit.before)
    return {"tensor": edit.tensor, "before": before, "after": _value(edit.after)}


def _value(value: TensorValue) -> dict[str, Any]:
    data = None if value.data is None else packed(value.data)
    return {"dtype": value.dtype, "shape": list(value.shape), "values": data}
