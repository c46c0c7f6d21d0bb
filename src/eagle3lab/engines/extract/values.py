"""What constructors come to while the config is unknown, as far as it is the same in every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.facts import ConstructionRule, Parameter, ParameterKind, Size, Source, Switch

Factor = str | int | Size
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unseen:
    """A value that cannot be followed; harmless until a parameter depends on it."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, text, truth value or None."""

    value: object


@dataclass(slots=True)
class Leaf:
    """A parameter: how it is split, its shape, where it is made, and the switch under which it is."""

    kind: ParameterKind
    rows: tuple[Factor, ...]
    columns: tuple[Factor, ...]
    later_columns: tuple[Factor, ...]
    source: Source
    when: Switch | None = None
    first_layer: bool = True


@dataclass(frozen=True, slots=True)
class Built:
    """What the constructors show.

    Attributes:
        parameters: In the order of `named_parameters()`.
        sizes: By name.
        switches: By name.
        construction: What must hold, in the order it is met.
        unfollowed_keys: Config keys whose effect is not described.
    """

    parameters: tuple[Parameter, ...]
    sizes: dict[str, Size]
    switches: dict[str, Switch]
    construction: tuple[ConstructionRule, ...]
    unfollowed_keys: tuple[str, ...] = ()


UNSEEN = Unseen()
NONE = Literal(None)


def by_name(leading: tuple[str, ...], given: Mapping[str, T]) -> dict[str, T]:
    """What a call is given, with what comes by position, under "0", "1", …, also under its name in `leading`."""
    numbered = {name: given[str(number)] for number, name in enumerate(leading) if str(number) in given}
    return {**given, **numbered}


def named_sizes(shape: tuple[Factor, ...], sizes: dict[str, Size]) -> tuple[str | int, ...]:
    """A shape with its sizes by name; what each name means is added to `sizes`.

    Raises:
        UnreadableError: A name means something else already.
    """
    named: list[str | int] = []
    for factor in shape:
        if isinstance(factor, Size):
            known = sizes.setdefault(factor.name, factor)
            if replace(known, source=factor.source) != factor:  # the same on another line is the same
                raise UnreadableError(f"{factor.name} is computed in two ways", factor.source)
            named.append(factor.name)
        else:
            named.append(factor)
    return tuple(named)
