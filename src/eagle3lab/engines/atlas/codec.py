"""Frozen dataclasses to plain JSON values and back, by their type hints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A value as JSON: a dataclass as the list of its fields, a mapping as an object, a tuple as a list."""
    if is_dataclass(value) and not isinstance(value, type):
        return [encode(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def as_json(value: Any) -> Any:
    """A value as JSON for readers: a dataclass as an object with the names of its fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, tuple | list) else value


def decode(kind: type[T], value: Any) -> T:
    """The dataclass that `encode` was given.

    Raises:
        ValueError: The value is not what `kind` says.
    """
    decoded: T = _decode(kind, value)
    return decoded


def _decode(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(value, list) or len(value) != len(hints):
            raise ValueError(f"not the fields of {getattr(kind, '__name__', kind)}")
        return kind(*(_decode(hint, item) for hint, item in zip(hints, value, strict=True)))
    if origin in (Union, UnionType):
        return _decode_union(get_args(kind), value)
    if origin is tuple:
        element = get_args(kind)[0]
        return tuple(_decode(element, item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        element = get_args(kind)[1]
        return MappingProxyType({key: _decode(element, item) for key, item in value.items()})
    if origin is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{value!r} is none of {get_args(kind)}")
        return value
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def _decode_union(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and NoneType in kinds:
        return None
    rest = [kind for kind in kinds if kind is not NoneType]
    if len(rest) == 1:
        return _decode(rest[0], value)
    if not isinstance(value, tuple(rest)):  # of plain types only
        raise ValueError(f"{value!r} is none of {rest}")
    return value


@cache
def _hints(kind: Any) -> tuple[Any, ...]:
    """The types of a dataclass's fields, in order."""
    hints = get_type_hints(kind)
    return tuple(hints[field.name] for field in fields(kind))
