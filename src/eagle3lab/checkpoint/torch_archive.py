"""The contents of a torch checkpoint (`torch.save`, zip format), listed without torch and never executed.

A `.bin` or `.pt` of torch ≥ 1.6 is a zip archive of uncompressed members: `<top>/data.pkl` describes the
object, `<top>/data/<key>` holds the bytes of one storage each. `eagle3lab.checkpoint.state_dict_pickle` reads
the first; the second stay on disk.
"""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

from eagle3lab.checkpoint.state_dict_pickle import StoredTensor, UnsafePickleError, read_state_dict_pickle
from eagle3lab.checkpoint.tensors import DTYPE_BITS, LARGEST_RANK, LARGEST_SIZE, TensorInfo
from eagle3lab.errors import InputError

LARGEST_PICKLE = 64 * 2**20  # bytes; a state dict of 100,000 tensors needs a quarter of it
_RESAVE = "Load it where you trust it and save it again with torch.save, or as safetensors."
_AGAIN = "The file is damaged or was only partly copied; copy or download it again."
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled number before torch 1.6


@dataclass(frozen=True, slots=True)
class Archive:
    """What a torch checkpoint holds.

    Attributes:
        tensors: In the order of the state dict, which is the order an engine is offered them.
        strides: Strides in elements of every tensor that is not stored contiguously, by name.
        others: "name (type)" of top-level entries that are not tensors, such as an epoch number.
    """

    tensors: tuple[TensorInfo, ...]
    strides: dict[str, tuple[int, ...]]
    others: tuple[str, ...]


def read_archive(path: Path, file: str) -> Archive:
    """List the tensors of one `.bin` or `.pt` file.

    Args:
        path: The file.
        file: How the resulting tensors name it.

    Raises:
        InputError: Not a torch zip, a pickle that needs more than a state dict does, a nested or non-dict
            object, a tensor that reaches beyond its storage, a compressed or duplicate member.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            _check_magic(stream.read(16), size, path)
            with zipfile.ZipFile(stream) as archive:
                members = _Members(archive, stream, size, path)
                state = _state(members, path)
                return _list(state, members, path, file)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
        struct.error,
        KeyError,
    ) as error:
        raise InputError(f"is not a readable zip archive: {error}", path=path, advice=_AGAIN) from None


def _check_magic(head: bytes, size: int, path: Path) -> None:
    if size == 0:
        raise InputError("is empty", path=path, advice=_AGAIN)
    if head.startswith(b"version "):
        raise InputError(
            "is a Git LFS pointer, not the weights themselves",
            path=path,
            advice="Run `git lfs pull` in its repository, or download the file itself.",
        )
    if head.startswith(b"PK"):
        return
    if head.startswith(_LEGACY_MAGIC):
        raise InputError(
            "is in torch's format from before 1.6, which only a full unpickler can read",
            path=path,
            advice=_RESAVE,
        )
    if head.startswith(b"\x80"):
        raise InputError(
            "is a bare pickle, which is never loaded: it could run code", path=path, advice=_RESAVE
        )
    raise InputError("is not a torch checkpoint (no zip archive)", path=path, advice=_AGAIN)


class _Members:
    """The members of the archive, with the place of their bytes in the file."""

    def __init__(self, archive: zipfile.ZipFile, stream: object, size: int, path: Path) -> None:
        self.archive, self.size, self.path = archive, size, path
        self.by_name: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            if info.filename in self.by_name:
                raise InputError(f"holds the member '{info.filename}' twice", path=path)
            self.by_name[info.filename] = info
        pickles = [name for name in self.by_name if name == "data.pkl" or name.endswith("/data.pkl")]
        pickles = [name for name in pickles if name.count("/") <= 1]
        if len(pickles) != 1:
            what = "is a TorchScript archive" if self._torchscript() else "holds no data.pkl"
            raise InputError(f"{what}: not a state dict saved by torch.save", path=path, advice=_RESAVE)
        self.pickle = pickles[0]
        self.top = self.pickle.removesuffix("data.pkl")

    def _torchscript(self) -> bool:
        return any(name.endswith("constants.pkl") for name in self.by_name)

    def read(self, name: str, limit: int) -> bytes:
        info = self.by_name[name]
        if info.file_size > limit:
            raise InputError(
                f"its member '{name}' claims {info.file_size} bytes, more than any state dict", path=self.path
            )
        begin = self.place(name)
        stream = self.archive.fp
        assert stream is not None
        stream.seek(begin)
        return stream.read(info.file_size)

    def place(self, name: str) -> int:
        """Absolute offset of an uncompressed member's first byte; its whole extent lies in the file."""
        info = self.by_name[name]
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1:
            raise InputError(
                f"its member '{name}' is compressed or encrypted, which torch never writes", path=self.path
            )
        stream = self.archive.fp
        assert stream is not None
        stream.seek(info.header_offset)
        local = stream.read(30)
        if len(local) != 30 or not local.startswith(b"PK\x03\x04"):
            raise InputError(f"its member '{name}' has no header", path=self.path, advice=_AGAIN)
        name_length, extra_length = struct.unpack("<HH", local[26:30])
        begin = info.header_offset + 30 + name_length + extra_length
        if begin + info.file_size > self.size or info.compress_size != info.file_size:
            raise InputError(
                f"its member '{name}' reaches beyond the end of the file", path=self.path, advice=_AGAIN
            )
        return int(begin)


def _state(members: _Members, path: Path) -> dict[object, object]:
    byteorder = members.top + "byteorder"
    if byteorder in members.by_name and members.read(byteorder, 16) != b"little":
        raise InputError("was written on a big-endian machine", path=path, advice=_RESAVE)
    try:
        state = read_state_dict_pickle(members.read(members.pickle, LARGEST_PICKLE))
    except UnsafePickleError as error:
        raise InputError(f"{error}; nothing was executed", path=path, advice=_RESAVE) from None
    if not isinstance(state, dict):
        what = "a single tensor" if isinstance(state, StoredTensor) else f"a {type(state).__name__}"
        raise InputError(f"holds {what}, not a state dict of named tensors", path=path, advice=_RESAVE)
    return state


def _list(state: dict[object, object], members: _Members, path: Path, file: str) -> Archive:
    tensors: list[TensorInfo] = []
    strides: dict[str, tuple[int, ...]] = {}
    others: list[str] = []
    for name, value in state.items():
        if isinstance(value, StoredTensor) and isinstance(name, str):
            info = _place_tensor(name, value, members, path, file)
            tensors.append(info)
            if not _contiguous(value):
                strides[name] = value.strides
        elif isinstance(value, dict) and any(
            isinstance(inner, StoredTensor | dict) for inner in value.values()
        ):
            raise InputError(
                f"keeps its tensors one level down, under '{name}': a trainer's state, not an export",
                path=path,
                advice="Use the trainer's export script, which writes the tensors under their own names.",
            )
        else:
            others.append(f"{name} ({type(value).__name__})")
    return Archive(tuple(tensors), strides, tuple(others))


def _place_tensor(name: str, stored: StoredTensor, members: _Members, path: Path, file: str) -> TensorInfo:
    def bad(problem: str) -> InputError:
        return InputError(problem, path=path, tensor=name, advice=_AGAIN)

    member = f"{members.top}data/{stored.storage.key}"
    if member not in members.by_name:
        raise bad(f"its storage '{stored.storage.key}' is not in the archive")
    if len(stored.shape) > LARGEST_RANK:
        raise bad(
            f"its shape has {len(stored.shape)} dimensions, more than any reader takes ({LARGEST_RANK})"
        )
    item = DTYPE_BITS[stored.dtype] // 8
    stored_bytes = members.by_name[member].file_size
    claimed = stored.storage.size * (DTYPE_BITS[stored.storage.dtype] // 8 if stored.storage.dtype else 1)
    if claimed > stored_bytes:
        raise bad(f"its storage '{stored.storage.key}' should be {claimed} bytes but is {stored_bytes}")
    elements = prod(stored.shape)
    last = (
        sum((size - 1) * stride for size, stride in zip(stored.shape, stored.strides, strict=True))
        if elements
        else -1
    )
    if (stored.offset + last + 1) * item > stored_bytes or elements * item > stored_bytes:
        raise bad("it reaches beyond the end of its storage")
    offset = members.place(member) + stored.offset * item
    if offset > LARGEST_SIZE:
        raise bad("its offset overflows any file")
    return TensorInfo(name, stored.dtype, stored.shape, elements * item, file, offset)


def _contiguous(stored: StoredTensor) -> bool:
    due = 1
    for size, stride in zip(reversed(stored.shape), reversed(stored.strides), strict=True):
        if size != 1 and stride != due:
            return 0 in stored.shape
        due *= size
    return True
