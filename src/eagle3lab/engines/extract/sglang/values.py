"""Values of a constructor's expressions, as far as they depend on the config: keys, products, sizes, switches."""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle3lab.engines.extract.values import Factor, Leaf, Literal, Unseen
from eagle3lab.engines.facts import Size, Source


@dataclass(frozen=True, slots=True)
class Config:
    """`Config("a.b")` is the value at `a.b` of the config, `Config("")` the config itself."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Factors:
    """A product of numbers, config keys and sizes, and where it is written."""

    items: tuple[Factor, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Keys:
    """True if any of these config keys is true, or, with `present`, if the first that is stated is."""

    keys: tuple[str, ...]
    source: Source
    present: bool = False


@dataclass(frozen=True, slots=True)
class Stated:
    """The value at the first of these paths that is not null; `counted` is the length of what is there."""

    paths: tuple[str, ...]
    counted: bool = False


@dataclass(frozen=True, slots=True)
class LayerIndex:
    """The number of the layer that is being built."""


@dataclass(frozen=True, slots=True)
class IsFirstLayer:
    """Whether it is the first."""


@dataclass(frozen=True, slots=True)
class ByLayer:
    """One value in the first layer, another in later ones."""

    first: Value
    later: Value


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values."""

    items: tuple[Value, ...]


@dataclass(slots=True)
class Module:
    """A module of the model: attributes in the order first set, which is that of `named_parameters()`."""

    attributes: dict[str, Value] = field(default_factory=dict)

    def leaves(self) -> list[Leaf]:
        """Every parameter in it."""
        found: list[Leaf] = []
        for value in self.attributes.values():
            if isinstance(value, Leaf):
                found.append(value)
            elif isinstance(value, Module):
                found += value.leaves()
        return found


Value = (
    Unseen
    | Config
    | Literal
    | Factors
    | Size
    | Keys
    | Stated
    | LayerIndex
    | IsFirstLayer
    | ByLayer
    | Sequence
    | Leaf
    | Module
)


def factors(value: Value) -> tuple[Factor, ...] | None:
    """A value as factors of a product; None if it is not one."""
    if isinstance(value, Factors):
        return value.items
    if isinstance(value, Size):
        return (value,)
    if isinstance(value, Literal) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return (value.value,)
    if isinstance(value, Keys) and len(value.keys) > 1:
        *first, last = value.keys
        present, others = (first[0], ()) if value.present else (None, tuple(first))
        return (Size(value.keys[0], value.source, {}, present, others, last, None),)
    return (value.path,) if isinstance(value, Config) and value.path else None
