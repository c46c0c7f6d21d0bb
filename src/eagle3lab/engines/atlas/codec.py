"""Frozen dataclasses to plain JSON values and back, by their type hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
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


def encode_named(value: Any) -> dict[str, Any]:
    """A dataclass as JSON with the names of its own fields, so that fields may come and go between the others."""
    return {field.name: encode(getattr(value, field.name)) for field in fields(value)}


def as_json(value: Any) -> Any:
    """A value as JSON for readers: a dataclass as an object with the names of its fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, tuple | list) else value


def decode(kind: type[T], value: Any) -> T:
    """The dataclass that `encode` or `encode_named` was given.

    Raises:
        ValueError: The value is not what `kind` says.
    """
    whole: Any = kind
    decoded: T = _decoder(whole)(value)
    return decoded


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """What decodes values of a kind: made once, because a release's facts are thousands of values of few kinds."""
    origin = get_origin(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _decoder_of_fields(kind)
    if origin in (Union, UnionType):
        return _decoder_of_union(get_args(kind))
    if origin is tuple:
        element = _decoder(get_args(kind)[0])
        return lambda value: tuple(map(element, value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        element = _decoder(get_args(kind)[1])
        return lambda value: MappingProxyType({key: element(item) for key, item in value.items()})
    if origin is Literal:
        return _decoder_of_choices(get_args(kind))
    return _decoder_of_instances(kind, kind.__name__)


def _decoder_of_fields(kind: type) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    named = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    decoders = tuple(named.values())
    # What was written before a field was added lacks it: the field's default is what it meant.
    needed = sum(field.default is MISSING and field.default_factory is MISSING for field in fields(kind))

    def decode_fields(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, dict) and value.keys() <= named.keys():
            return kind(**{name: named[name](item) for name, item in value.items()})
        if not isinstance(value, list) or not needed <= len(value) <= len(decoders):
            raise ValueError(f"not the fields of {kind.__name__}")
        return kind(*(decoder(item) for decoder, item in zip(decoders, value, strict=False)))

    return decode_fields


def _decoder_of_union(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    rest = tuple(kind for kind in kinds if kind is not NoneType)
    # Of several, all are plain types.
    decoder = _decoder(rest[0]) if len(rest) == 1 else _decoder_of_instances(rest, f"value of {list(rest)}")
    if len(rest) == len(kinds):
        return decoder
    return lambda value: None if value is None else decoder(value)


def _decoder_of_choices(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def decode_choice(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {choices}")
        return value

    return decode_choice


def _decoder_of_instances(kinds: type | tuple[type, ...], words: str) -> Callable[[Any], Any]:
    def decode_instance(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise ValueError(f"{value!r} is no {words}")
        return value

    return decode_instance
