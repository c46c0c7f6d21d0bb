"""The contents of a torch checkpoint (`torch.save`, zip format), listed without torch and never executed.

A `.bin` or `.pt` of torch ≥ 1.6 is a zip archive of uncompressed members: `<top>/data.pkl` describes the
object, `<top>/data/<key>` holds the bytes of one storage each. `eagle3lab.checkpoint.torch_archive` reads
the first; the second stay on disk.

The pickle inside is read without executing anything: Python's own unpickler calls whatever the file names, and this
one only makes inert records of it. Everything that a state dict does not need is refused with its name.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from eagle3lab.checkpoint.tensors import DTYPE_BITS, LARGEST_RANK, LARGEST_SIZE, TensorInfo
from eagle3lab.errors import InputError

# The storage classes of `torch` and the dtype each one holds.
STORAGE_DTYPES = {
    "BFloat16Storage": "BF16",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ComplexFloatStorage": "C64",
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "ShortStorage": "I16",
}
# dtypes that are pickled as globals, beside an untyped storage.
TORCH_DTYPES = {
    "bfloat16": "BF16",
    "bool": "BOOL",
    "complex64": "C64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "int8": "I8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "uint8": "U8",
}
_ORDERED_DICT = "collections.OrderedDict"
_SIZE = "torch.Size"
_REBUILD_TENSOR = {"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"}
_REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
_UNTYPED_STORAGE = "torch.storage.UntypedStorage"
_ALLOWED = {
    _UNTYPED_STORAGE,
    _ORDERED_DICT,
    _SIZE,
    _REBUILD_PARAMETER,
    *_REBUILD_TENSOR,
    *(f"torch.{name}" for name in STORAGE_DTYPES),
    *(f"torch.{name}" for name in TORCH_DTYPES),
}


class UnsafePickleError(Exception):
    """The pickle asks for something that a state dict does not need; the message says what."""


@dataclass(frozen=True, slots=True)
class Global:
    """A name the pickle referred to; never imported."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A reference to the zip member `data/<key>`.

    Attributes:
        dtype: The dtype of a typed storage, None for an untyped one.
        key: The member's name.
        size: Elements of a typed storage, bytes of an untyped one.
    """

    dtype: str | None
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view into a storage; `offset` and `strides` count elements, as torch's do."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_state_dict_pickle(data: bytes) -> object:
    """The object in `data`, built from dicts, lists, tuples, strings, numbers and `StoredTensor`s.

    Raises:
        UnsafePickleError: An opcode, a global or a call that a state dict does not need, or a malformed
            stream.
    """
    machine = _StateDict(data)
    try:
        value: object = machine.load()
    except EOFError:
        raise UnsafePickleError("the pickle ends in the middle") from None
    except (
        AttributeError, IndexError, KeyError, OverflowError, pickle.UnpicklingError, struct.error, TypeError,
        ValueError,
    ) as error:  # fmt: skip
        raise UnsafePickleError(f"the pickle is malformed ({type(error).__name__}: {error})") from None
    if machine.stack:
        raise UnsafePickleError("the pickle ends with an unbalanced stack")
    return value


class _Opcodes(dict[int, Any]):
    """Opcode → what reads it."""

    def __missing__(self, opcode: int) -> Any:
        raise UnsafePickleError(f"the pickle uses opcode {bytes([opcode])!r}, which no state dict needs")


class _StateDict(pickle._Unpickler):
    """Python's own machine for pickles, reduced to the opcodes of a state dict, its names never looked up.

    A global is only ever a `Global`, and calling one only ever makes one of the inert records above.
    """

    dispatch: ClassVar[dict[int, Any]] = _Opcodes(
        (opcode, pickle._Unpickler.dispatch[opcode])
        for opcode in b"\x80\x95(0N\x88\x89KMJ\x8aGX\x8c\x8d}])t\x85\x86\x87aeqr\x94hjc\x93Q."
    )

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.stack: list[Any] = []
        # What is unpacked a second time: a small pickle must not become a large object.
        self.room = len(data)

    def copied(self, items: Any) -> tuple[Any, ...]:
        """The items of a tuple or list; all copies together are at most as many as the pickle has bytes."""
        if not isinstance(items, tuple | list):
            raise TypeError("a sequence was due")
        self.room -= len(items)
        if self.room < 0:
            raise UnsafePickleError("the pickle unpacks to more than it holds")
        return tuple(items)

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _ALLOWED:
            raise UnsafePickleError(f"the pickle refers to {full}, which no state dict needs")
        return Global(full)

    def persistent_load(self, reference: Any) -> Storage:
        if not (isinstance(reference, tuple) and len(reference) == 5 and reference[0] == "storage"):
            raise UnsafePickleError("the pickle refers to something other than a tensor storage")
        _, kind, key, _location, size = reference
        if not (isinstance(kind, Global) and isinstance(key, str) and type(size) is int and size >= 0):
            raise UnsafePickleError("the pickle refers to a malformed tensor storage")
        if kind.name == _UNTYPED_STORAGE:
            return Storage(None, key, size)
        return Storage(STORAGE_DTYPES[kind.name.removeprefix("torch.")], key, size)

    def set_items(self, items: Sequence[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise UnsafePickleError("the pickle is malformed (a dictionary was due)")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Only flat keys: hashing a deeply nested tuple would recurse without bound.
            if not isinstance(key, str | int):
                raise UnsafePickleError(f"the pickle uses a {type(key).__name__} as a dictionary key")
            target[key] = value

    def set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items((key, value))

    def set_many(self) -> None:
        self.set_items(self.pop_mark())  # type: ignore[attr-defined]

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        name = function.name if isinstance(function, Global) else "a value"
        made: object
        if name in _REBUILD_TENSOR:
            made = _tensor(name, arguments, self.copied)
        elif name == _REBUILD_PARAMETER:
            made = arguments[0]
            if not isinstance(made, StoredTensor):
                raise UnsafePickleError("the pickle holds a parameter without a tensor")
        elif name == _SIZE:
            [sizes] = arguments
            made = self.copied(sizes)
        elif name == _ORDERED_DICT:
            made = {}
        else:
            raise UnsafePickleError(f"the pickle calls {name}, which no state dict needs")
        self.stack.append(made)
        if name == _ORDERED_DICT and arguments:
            pairs = [self.copied(pair) for pair in self.copied(arguments[0])]
            self.set_items([item for key, value in pairs for item in (key, value)])

    def build(self) -> None:
        """State put onto an object: only the `_metadata` that a state dict's OrderedDict carries."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], dict) or not isinstance(state, dict) or set(state) - {"_metadata"}:
            raise UnsafePickleError("the pickle sets attributes on an object")

    dispatch |= {ord("s"): set_one, ord("u"): set_many, ord("R"): call, ord("b"): build}


def _tensor(
    function: str, arguments: tuple[Any, ...], copied: Callable[[Any], tuple[Any, ...]]
) -> StoredTensor:
    """The arguments are (storage, offset, size, stride, requires_grad, hooks[, dtype for v3][, metadata])."""
    if len(arguments) < 4:
        raise UnsafePickleError("the pickle is malformed (a tensor without its shape)")
    storage, offset = arguments[:2]
    shape, strides = copied(arguments[2]), copied(arguments[3])
    dtype = storage.dtype if isinstance(storage, Storage) else None
    if function.endswith("_v3"):
        kind = arguments[6] if len(arguments) > 6 else None
        dtype = TORCH_DTYPES.get(kind.name.removeprefix("torch.")) if isinstance(kind, Global) else None
    if not isinstance(storage, Storage) or dtype is None:
        raise UnsafePickleError("the pickle holds a tensor without a storage or dtype")
    sizes = (offset, *shape, *strides)
    if not all(type(size) is int and size >= 0 for size in sizes) or len(shape) != len(strides):
        raise UnsafePickleError("the pickle holds a tensor whose offset, shape or strides are not sizes")
    return StoredTensor(storage, dtype, offset, shape, strides)


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
