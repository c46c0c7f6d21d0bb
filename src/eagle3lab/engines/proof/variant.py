"""The variants of a drafter class of a source tree: known by their digest, or found by running its code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle3lab.engines.atlas import variants
from eagle3lab.engines.atlas.variants import Assigned, Place, Proof
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, UnreadableError, find_scope
from eagle3lab.engines.facts import (
    Acceptance,
    Capture,
    ConstructionRule,
    DrafterClass,
    DrafterKind,
    DrafterRules,
    EngineFacts,
    FromTarget,
    Source,
    VocabularyPadding,
)
from eagle3lab.engines.proof import constructors
from eagle3lab.engines.proof.cut_out import CannotRunError, CutOut
from eagle3lab.engines.proof.cut_out import constructors as cut_constructors
from eagle3lab.engines.proof.loaders import Loader, disagreements, parameter_names, settings_of
from eagle3lab.engines.proof.names import EDGES, around_words, families, generated, offers

# Digest of cut-out code to the id of its variant.
Digests = Mapping[str, str]
_NOWHERE = Source("", 1, "")
_MADE_UP = 300


class UnprovenError(Exception):
    """No variant is known to say what a class does.

    Attributes:
        reason: The first difference from the nearest variant.
        fact: Which of the facts are unproven: "parameters" or "names".
    """

    def __init__(self, reason: str, fact: Literal["parameters", "names"] = "parameters") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fact = fact


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of an engine a class of it depends on, besides its own code.

    Attributes:
        engine: "sglang" or "vllm".
        vocabulary: How vocabularies are padded.
        checked: Whether config classes check the values they are given.
        before: What is checked before a class is built.
        from_target: What the engine, not the class, takes from the target.
        digests: Of code that is known to have a variant.
    """

    engine: str
    vocabulary: VocabularyPadding
    checked: bool
    before: tuple[ConstructionRule, ...] = ()
    from_target: tuple[FromTarget, ...] = ()
    digests: Digests = field(default_factory=dict)


def assign(
    syntax: Syntax, cls: ClassRef, drafter: DrafterClass, kind: DrafterKind, around: Surroundings
) -> Proof:
    """The variants of a class of a source tree.

    Raises:
        UnprovenError: There is none of which it is proved.
    """
    try:
        known = variants.family(around.engine, drafter.name)
    except KeyError:
        raise UnprovenError(f"no variant of {drafter.name} is written down") from None
    code = cut_constructors(syntax, cls)
    build = around.digests.get(code.digest, "")
    ran = build not in known.builds
    if ran:
        build = _build(syntax, code, known, drafter, kind, around)
    try:
        real = Loader(syntax, cls)
    except UnreadableError as error:
        raise UnprovenError(error.reason, "names") from None
    # What a loader does depends on which parameters there are.
    digest = f"{real.code.digest}-{build}"
    loader = around.digests.get(digest, "")
    if loader not in known.loaders:
        ran = True
        loader = _loader(syntax, real, known, build, drafter, kind, around)
    sources = tuple(
        _found(syntax, cls, variants.facts_of(around.engine, drafter.name, loader, build, around.checked))
    )
    assigned = Assigned(drafter, kind, loader, build, sources, around.before, around.from_target)
    return Proof(assigned, {code.digest: build, digest: loader}, ran)


def rules_of(
    drafter: DrafterClass, kind: DrafterKind, loader: str, build: str, around: Surroundings
) -> DrafterRules:
    """The rules by which two variants are compared with the code; their sources are nowhere."""
    facts = variants.facts_of(around.engine, drafter.name, loader, build, around.checked)
    nowhere = (_NOWHERE,) * sum(1 for _ in variants.places(*facts))
    assigned = Assigned(drafter, kind, loader, build, nowhere, around.before, around.from_target)
    return variants.composed(around.engine, assigned, around.checked)


def engine_with(rules: DrafterRules, around: Surroundings) -> EngineFacts:
    """An engine of which nothing is known but one class."""
    return EngineFacts(
        kind=around.engine,
        release="",
        drafter=rules.drafter,
        names=rules.names,
        sizes=rules.sizes,
        switches=rules.switches,
        parameters=rules.parameters,
        construction=rules.construction,
        vocabulary=around.vocabulary,
        zero_filled=(),
        zero_filled_source=_NOWHERE,
        from_target=rules.from_target,
        capture=Capture((), (), 0, _NOWHERE),
        acceptance=Acceptance("", _NOWHERE, "", "", _NOWHERE),
        drafter_kind=rules.kind,
        unfollowed_keys=rules.unfollowed_keys,
    )


def _build(
    syntax: Syntax,
    code: CutOut,
    known: variants.Family,
    drafter: DrafterClass,
    kind: DrafterKind,
    around: Surroundings,
) -> str:
    loader = next(iter(known.loaders))
    candidates = {build: rules_of(drafter, kind, loader, build, around) for build in known.builds}
    engines = [engine_with(rules, around) for rules in candidates.values()]
    try:
        wrong = dict(zip(candidates, constructors.differences(code, engines), strict=True))
    except CannotRunError as error:
        raise UnprovenError(f"its constructors {error}") from None
    right = [build for build in candidates if not wrong[build]]
    if not right:
        nearest = min(reversed(wrong), key=lambda build: len(wrong[build]))
        raise UnprovenError(f"{_unlike('its constructors', nearest, len(known.builds))}: {wrong[nearest][0]}")
    absent = {}
    for build in right:
        facts = variants.facts_of(around.engine, drafter.name, None, build, around.checked)
        absent[build] = [place for place in variants.places(*facts) if _line(syntax, place) is None]
    build = min(reversed(right), key=lambda build: len(absent[build]))
    folder = code.start[0].rpartition("/")[0]
    for place in absent[build]:
        # What the layers check is not run; the lines that say so must be there.
        if not place[0].file.startswith(folder):
            raise UnprovenError(
                f"variant {build} rests on a line that is not there: {place[0].file}: {place[0].text}"
            )
    return build


def _loader(
    syntax: Syntax,
    real: Loader,
    known: variants.Family,
    build: str,
    drafter: DrafterClass,
    kind: DrafterKind,
    around: Surroundings,
) -> str:
    candidates = {loader: rules_of(drafter, kind, loader, build, around) for loader in known.loaders}
    strangers = real.strangers()
    if strangers:
        raise UnprovenError(f"its load_weights calls {strangers[0]}, of which nothing is known", "names")
    pairs = [rule.parts for rules in candidates.values() for rule in rules.names.joined]
    first = next(iter(candidates.values()))
    known_names = parameter_names(around.engine, first.parameters, settings_of(around.engine, first)[0])
    edges = EDGES if around.engine == "vllm" else ()
    spoken = around_words(real.words(), known_names)
    names = offers([*edges, *families(), *generated(_MADE_UP), *spoken], pairs)
    try:
        found = disagreements(real, list(candidates.values()), names)
        wrong = dict(zip(candidates, found, strict=True))
    except CannotRunError as error:
        raise UnprovenError(f"its load_weights {error}", "names") from None
    right = [loader for loader in candidates if not wrong[loader]]
    if not right:
        nearest = min(reversed(wrong), key=lambda loader: len(wrong[loader]))
        text = f"{_unlike('its load_weights', nearest, len(known.loaders))}: {wrong[nearest][0]}"
        raise UnprovenError(text, "names")

    def absent(loader: str) -> int:
        return sum(_line(syntax, place) is None for place in variants.places(known.loaders[loader]["names"]))

    return min(reversed(right), key=absent)


def _unlike(what: str, nearest: str, count: int) -> str:
    if count == 1:
        return f"{what} does not do what the one known variant, that of {nearest}, does"
    return f"none of {count} known variants does what {what} does; the nearest is that of {nearest}"


# ---- the lines of facts --------------------------------------------------------------------------------------------


def _found(syntax: Syntax, cls: ClassRef, facts: tuple[dict[str, Any], dict[str, Any]]) -> Iterator[Source]:
    """The line of each fact; where it is not to be found, the one where its scope, or the class, begins."""
    for places in variants.places(*facts):
        yield _line(syntax, places) or _beginning(syntax, places) or cls.source


def _line(syntax: Syntax, places: tuple[Place, ...]) -> Source | None:
    for place in places:
        module = syntax.module(place.file)
        scope = find_scope(module, place.scope) if module is not None else None
        if module is not None and scope is not None:
            lines = (module.line(number) for number in scope)
            matching = [line for line in lines if line.text.startswith(place.text)]
            if len(matching) >= place.nth:
                return matching[place.nth - 1]
    return None


def _beginning(syntax: Syntax, places: tuple[Place, ...]) -> Source | None:
    for place in places:
        module = syntax.module(place.file)
        scope = find_scope(module, place.scope) if module is not None else None
        if module is not None and scope is not None:
            return module.line(scope.start)
    return None
