"""A reader for the pickle inside a torch checkpoint that executes nothing.

Python's own unpickler calls whatever the file names. This one is an interpreter of its own for the few
opcodes that a state dict needs; a global is only ever a token, and calling one is only ever the construction
of one of the inert records below. Everything else is refused with its name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

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
_CALLABLE = {_ORDERED_DICT, _SIZE, _REBUILD_PARAMETER, *_REBUILD_TENSOR}
_ALLOWED = {
    _UNTYPED_STORAGE,
    *_CALLABLE,
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
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error, OverflowError) as error:
        raise UnsafePickleError(f"the pickle is malformed ({type(error).__name__}: {error})") from None


_MARK = object()


class _Machine:
    """The stack machine of the pickle format, reduced to data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        while True:
            opcode = self.take(1)
            if opcode == b".":
                if len(self.stack) != 1:
                    raise UnsafePickleError("the pickle ends with an unbalanced stack")
                return self.stack[0]
            handler = _HANDLERS.get(opcode)
            if handler is None:
                raise UnsafePickleError(f"the pickle uses opcode {opcode!r}, which no state dict needs")
            handler(self)

    # -- the stream
    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise UnsafePickleError("the pickle ends in the middle")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.take(end - self.at).decode("utf-8")
        self.at += 1
        return text

    # -- the stack
    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise UnsafePickleError("the pickle is malformed (unexpected mark)")
        return value

    def pop_to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise UnsafePickleError("the pickle is malformed (no mark)")

    def pop_items(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self.pop() for _ in range(count)]))

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if not isinstance(value, kind):
            raise UnsafePickleError("the pickle is malformed (wrong container)")
        return value

    # -- what the opcodes do
    def protocol(self) -> None:
        if self.number("<B") > 5:
            raise UnsafePickleError("the pickle uses an unknown protocol")

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise UnsafePickleError("the pickle is malformed (a key without a value)")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Only flat keys: hashing a deeply nested tuple would recurse without bound.
            if not isinstance(key, str | int):
                raise UnsafePickleError(f"the pickle uses a {type(key).__name__} as a dictionary key")
            target[key] = value

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def global_(self, module: object, name: object) -> None:
        full = f"{module}.{name}"
        if full not in _ALLOWED:
            raise UnsafePickleError(f"the pickle refers to {full}, which no state dict needs")
        self.push(Global(full))

    def stack_global(self) -> None:
        module, name = self.pop_items(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise UnsafePickleError("the pickle is malformed (a global without a name)")
        self.global_(module, name)

    def persistent(self) -> None:
        reference = self.pop()
        if not (isinstance(reference, tuple) and len(reference) == 5 and reference[0] == "storage"):
            raise UnsafePickleError("the pickle refers to something other than a tensor storage")
        _, kind, key, _location, size = reference
        if not (isinstance(kind, Global) and isinstance(key, str) and type(size) is int and size >= 0):
            raise UnsafePickleError("the pickle refers to a malformed tensor storage")
        if kind.name == _UNTYPED_STORAGE:
            self.push(Storage(None, key, size))
        else:
            self.push(Storage(STORAGE_DTYPES[kind.name.removeprefix("torch.")], key, size))

    def reduce(self) -> None:
        function, arguments = self.pop_items(2)
        if (
            not isinstance(function, Global)
            or function.name not in _CALLABLE
            or not isinstance(arguments, tuple)
        ):
            what = function.name if isinstance(function, Global) else "a value"
            raise UnsafePickleError(f"the pickle calls {what}, which no state dict needs")
        if function.name in _REBUILD_TENSOR:
            self.push(_tensor(function.name, arguments))
        elif function.name == _REBUILD_PARAMETER:
            if not (arguments and isinstance(arguments[0], StoredTensor)):
                raise UnsafePickleError("the pickle holds a parameter without a tensor")
            self.push(arguments[0])
        elif function.name == _SIZE:
            if len(arguments) != 1 or not isinstance(arguments[0], tuple | list):
                raise UnsafePickleError("the pickle is malformed (torch.Size)")
            self.push(tuple(arguments[0]))
        else:
            self.push({})
            if arguments:
                self.set_items([item for pair in arguments[0] for item in _pair(pair)])

    def build(self) -> None:
        """State put onto an object: only the `_metadata` that a state dict's OrderedDict carries."""
        state = self.pop()
        self.top(dict)
        if not isinstance(state, dict) or set(state) - {"_metadata"}:
            raise UnsafePickleError("the pickle sets attributes on an object")


def _pair(pair: object) -> tuple[object, object]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UnsafePickleError("the pickle is malformed (OrderedDict)")
    return pair[0], pair[1]


def _tensor(function: str, arguments: tuple[Any, ...]) -> StoredTensor:
    """The arguments are (storage, offset, size, stride, requires_grad, hooks[, dtype for v3][, metadata])."""
    if len(arguments) < 4:
        raise UnsafePickleError("the pickle is malformed (a tensor without its shape)")
    storage, offset, shape, strides = arguments[:4]
    dtype = storage.dtype if isinstance(storage, Storage) else None
    if function.endswith("_v3"):
        kind = arguments[6] if len(arguments) > 6 else None
        dtype = TORCH_DTYPES.get(kind.name.removeprefix("torch.")) if isinstance(kind, Global) else None
    if not isinstance(storage, Storage) or dtype is None:
        raise UnsafePickleError("the pickle holds a tensor without a storage or dtype")
    sizes = (offset, *shape, *strides)
    if not all(type(size) is int and size >= 0 for size in sizes) or len(shape) != len(strides):
        raise UnsafePickleError("the pickle holds a tensor whose offset, shape or strides are not sizes")
    return StoredTensor(storage, dtype, offset, tuple(shape), tuple(strides))


def _text(layout: str) -> Any:
    return lambda machine: machine.push(machine.take(machine.number(layout)).decode("utf-8", "surrogatepass"))


def _constant(value: object) -> Any:
    return lambda machine: machine.push(value)


def _integer(layout: str) -> Any:
    return lambda machine: machine.push(machine.number(layout))


def _remember(layout: str) -> Any:
    def handler(machine: _Machine) -> None:
        machine.memo[machine.number(layout)] = machine.stack[-1]

    return handler


def _recall(layout: str) -> Any:
    return lambda machine: machine.push(machine.memo[machine.number(layout)])


def _tuple(count: int) -> Any:
    return lambda machine: machine.push(machine.pop_items(count))


_HANDLERS: dict[bytes, Any] = {
    b"\x80": _Machine.protocol,
    b"\x95": lambda machine: machine.take(8),  # a frame's length: buffering advice
    b"(": lambda machine: machine.push(_MARK),
    b"0": _Machine.pop,
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"K": _integer("<B"),
    b"M": _integer("<H"),
    b"J": _integer("<i"),
    b"\x8a": lambda machine: machine.push(
        int.from_bytes(machine.take(machine.number("<B")), "little", signed=True)
    ),
    b"G": lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    b"X": _text("<I"),
    b"\x8c": _text("<B"),
    b"\x8d": _text("<Q"),
    b"}": lambda machine: machine.push({}),
    b"]": lambda machine: machine.push([]),
    b")": _constant(()),
    b"t": lambda machine: machine.push(tuple(machine.pop_to_mark())),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"a": lambda machine: machine.append([machine.pop()]),
    b"e": lambda machine: machine.append(machine.pop_to_mark()),
    b"s": lambda machine: machine.set_items(list(machine.pop_items(2))),
    b"u": lambda machine: machine.set_items(machine.pop_to_mark()),
    b"q": _remember("<B"),
    b"r": _remember("<I"),
    b"\x94": lambda machine: machine.memo.__setitem__(len(machine.memo), machine.stack[-1]),
    b"h": _recall("<B"),
    b"j": _recall("<I"),
    b"c": lambda machine: machine.global_(machine.line(), machine.line()),
    b"\x93": _Machine.stack_global,
    b"Q": _Machine.persistent,
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
