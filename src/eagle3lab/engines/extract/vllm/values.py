"""What a constructor's expressions come to while the config is unknown."""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle3lab.engines.extract.values import Factor, Leaf, Literal, Unseen
from eagle3lab.engines.facts import Size, Source, Switch


@dataclass(frozen=True, slots=True)
class Key:
    """The value at a dotted path of the config; `Key("")` is the config itself."""

    path: str


@dataclass(frozen=True, slots=True)
class Either:
    """The value of the first key that is stated, or, with `true`, of the first that is true."""

    keys: tuple[str, ...]
    source: Source
    true: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """A yes or no that config keys decide."""

    switch: Switch


@dataclass(frozen=True, slots=True)
class Product:
    """A product of numbers, config keys and sizes."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class ByLayer:
    """One value in the first layer, another in later ones."""

    first: Value
    later: Value


@dataclass(slots=True)
class Module:
    """A module: attributes in the order in which they were last made, and what its constructor calls by name.

    torch keeps the place of an attribute that is set a second time, so a layer that replaces another stands where
    that stood.
    """

    attributes: dict[str, Value] = field(default_factory=dict)


Value = Literal | Key | Either | Flag | Product | ByLayer | Unseen | Leaf | Module


def factors(value: Value) -> tuple[Factor, ...] | None:
    """A value as factors of a product; None if it is not one."""
    if isinstance(value, Product):
        return value.factors
    if isinstance(value, Key) and value.path:
        return (value.path,)
    if isinstance(value, Literal) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return (value.value,)
    if isinstance(value, Either) and not value.true and len(value.keys) == 2:
        name = value.keys[0].rpartition(".")[2]
        return (Size(name, value.source, {}, value.keys[0], (), value.keys[1], None),)
    return None


def switch(value: Value, source: Source) -> Switch | None:
    """A value as a switch; None if it is none."""
    if isinstance(value, Flag):
        return value.switch
    if isinstance(value, Key) and value.path:
        return Switch(value.path.rpartition(".")[2], source, (value.path,), (), ())
    if isinstance(value, Either):
        names = [key.rpartition(".")[2] for key in value.keys]
        if value.true:
            return Switch(" or ".join(names), value.source, value.keys, (), ())
        return Switch(names[0], value.source, (), (), value.keys)
    return None
