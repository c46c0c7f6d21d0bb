"""The ways in which drafter classes load and are built, as data: `variants/ENGINE/CLASS.json`, a few for each class.

A loader variant is what `load_weights` does with names; a build variant is what the constructors make of a config,
what they refuse, and what the target's own weights replace. Each has the id of the first release that has it, a line
about it, and at every fact the place of the line that says so, `FILE:SCOPE: BEGINNING OF THE LINE` (a list where
releases differ; a number in brackets after the scope for one of several such lines). Which variant a release has is
proved by its own code (`eagle3lab.engines.proof`); where its lines are is written down in the atlas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.engines.atlas.codec import decode
from eagle3lab.engines.facts import (
    ConstructionRule,
    DrafterClass,
    DrafterKind,
    DrafterRules,
    FromTarget,
    ModuleNames,
    NameRules,
    Parameter,
    Size,
    Source,
    Switch,
)

_FOLDER = Path(__file__).with_name("variants")
# The fields that hold a source.
_SOURCES = ("source", "layers")
_PLACE = re.compile(r"(?P<file>[^:]+):(?P<scope>[\w.]*)(?:\((?P<nth>\d+)\))?: (?P<text>.+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the line of a fact is to be looked for.

    Attributes:
        file: Relative to the engine's source root.
        scope: Class and function around it, dotted; empty for the whole file.
        nth: Which of the lines in it that begin with `text`, from 1 on.
        text: How the line begins, blanks aside.
    """

    file: str
    scope: str
    nth: int
    text: str


@dataclass(frozen=True, slots=True)
class Family:
    """The variants of one drafter class.

    Attributes:
        loaders: Id to variant, as the file has it, oldest first.
        builds: The same for how the class is built.
    """

    loaders: Mapping[str, Mapping[str, Any]]
    builds: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Assigned:
    """The variants that a drafter class of a release has.

    Attributes:
        drafter: The class.
        kind: The kind of head that it serves.
        loader: Id of its loader variant.
        build: Id of its build variant.
        sources: The lines of all facts of both, in the order of the file.
        before: What is checked before the class is built.
        from_target: What the engine, not the class, takes from the target.
    """

    drafter: DrafterClass
    kind: DrafterKind
    loader: str
    build: str
    sources: tuple[Source, ...]
    before: tuple[ConstructionRule, ...] = ()
    from_target: tuple[FromTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """The variants of a class of a source tree, and by what they are known.

    Attributes:
        assigned: The variants, with the lines of their facts.
        digests: Of the class's constructors and of its loader, with the ids of their variants.
        ran: Whether code of the tree was run to find them.
    """

    assigned: Assigned
    digests: Mapping[str, str]
    ran: bool


def classes(engine: str) -> tuple[str, ...]:
    """The drafter classes of an engine that there are variants of."""
    return tuple(sorted(path.stem for path in (_FOLDER / engine).glob("*.json")))


@cache
def family(engine: str, name: str) -> Family:
    """The variants of a drafter class of an engine.

    Raises:
        KeyError: There are none.
    """
    path = _FOLDER / engine / f"{name}.json"
    if not path.is_file():
        raise KeyError(name)
    tables = json.loads(path.read_bytes())
    return Family(tables["loaders"], tables["builds"])


def facts_of(
    engine: str, name: str, loader: str | None, build: str, checked: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts of a loader and of a build variant as the file has them, places instead of sources.

    Args:
        engine: "sglang" or "vllm".
        name: The drafter class.
        loader: Id of the loader; None for one that is not known yet.
        build: Id of the build.
        checked: Whether the release's config classes check the values they are given.
    """
    known = family(engine, name)
    names = known.loaders[loader]["names"] if loader is not None else {}
    built = {key: value for key, value in known.builds[build].items() if key != "about"}
    built["construction"] = [
        rule for rule in built["construction"] if checked or not rule.get("checked_config")
    ]
    # Switches that only a rule which is left out depends on go with it.
    tables = (*built["parameters"], *built["construction"], *names.get("special", ()))
    asked = {rule.get("when") for rule in tables} | {
        rule.get("unless_on") for rule in names.get("unused", ())
    }
    built["switches"] = {key: value for key, value in built["switches"].items() if key in asked}
    return names, built


def places(*facts: Any) -> Iterator[tuple[Place, ...]]:
    """The places in facts as the file has them, in its order; several where releases differ."""
    for value in facts:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key in _SOURCES:
                    yield tuple(map(_place, [inner] if isinstance(inner, str) else inner))
                else:
                    yield from places(inner)
        elif isinstance(value, list):
            yield from places(*value)


def _place(text: str) -> Place:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no place in a source tree")
    return Place(match["file"], match["scope"], int(match["nth"] or 1), match["text"])


def composed(engine: str, assigned: Assigned, checked: bool) -> DrafterRules:
    """The rules of a class by its variants.

    Raises:
        ValueError: The variants have changed since the sources were found: the atlas must be made again.
    """
    name = assigned.drafter.name
    given = iter(assigned.sources)
    names, built = _sourced(facts_of(engine, name, assigned.loader, assigned.build, checked), given, name)
    if next(given, None) is not None:
        raise ValueError(f"the variants of {name} have fewer facts than sources: run `make atlas`")
    return DrafterRules(
        assigned.kind,
        assigned.drafter,
        decode(ModuleNames if engine == "vllm" else NameRules, names),
        {key: decode(Size, {"name": key, **size}) for key, size in built["sizes"].items()},
        {key: decode(Switch, {"name": key, **one}) for key, one in built["switches"].items()},
        decode(tuple[Parameter, ...], [_parameter(entry) for entry in built["parameters"]]),
        (*assigned.before, *decode(tuple[ConstructionRule, ...], built["construction"])),
        assigned.from_target or decode(tuple[FromTarget, ...], built["from_target"]),
        tuple(built.get("unfollowed_keys", ())),
    )


def _parameter(entry: dict[str, Any]) -> dict[str, Any]:
    """A parameter whose later layers are as wide as the first unless it says otherwise."""
    return {"later_columns": entry.get("columns", []), **entry}


def _sourced(value: Any, given: Iterable[Source], name: str) -> Any:
    """Facts with sources in the places of `source`."""
    if isinstance(value, Mapping):
        return {
            key: _source(given, name) if key in _SOURCES else _sourced(inner, given, name)
            for key, inner in value.items()
        }
    return [_sourced(inner, given, name) for inner in value] if isinstance(value, list | tuple) else value


def _source(given: Iterable[Source], name: str) -> Source:
    for source in given:
        return source
    raise ValueError(f"the variants of {name} have more facts than sources: run `make atlas`")
