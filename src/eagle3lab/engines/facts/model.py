"""The facts about one engine release, typed.

Sizes count elements; n is the number of the target's layers, D the number of draft tokens a step verifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Literal

ParameterKind = Literal["vocabulary", "replicated", "qkv", "merged column", "row parallel"]


@dataclass(frozen=True, slots=True)
class Source:
    """The line of the release that a fact was read from.

    Attributes:
        file: Relative to the engine's source root (`sglang/srt` for SGLang).
        line: 1-based.
        text: The line without surrounding blanks.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class DrafterClass:
    """The class that serves EAGLE-3 drafters.

    Attributes:
        name: The class.
        module: Where it is defined.
        architectures: Names in a config's `architectures` that lead to it.
        other_architectures: EAGLE-3 names that lead to another class of this release, not described here.
        source: Where the class is registered.
    """

    name: str
    module: str
    architectures: tuple[str, ...]
    other_architectures: tuple[str, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Rename:
    """Every occurrence of `old` in a tensor's name becomes `new`."""

    old: str
    new: str
    source: Source


@dataclass(frozen=True, slots=True)
class Special:
    """A tensor whose name contains `contains` is no weight.

    Attributes:
        contains: The substring.
        effect: "hot_token_id": it becomes the map from draft to target ids, tensor + arange(rows);
            "skipped": it is ignored.
        source: Where.
        when: The switch that must be on for the rule to hold; None for always.
    """

    contains: str
    effect: Literal["hot_token_id", "skipped"]
    source: Source
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor whose name contains `part` is shard `shard` of the parameter with `fused` in its place."""

    part: str
    fused: str
    shard: str | int
    source: Source


@dataclass(frozen=True, slots=True)
class Prefix:
    """Every name gets `text` in front, but not those that contain `unless`."""

    text: str
    unless: str
    source: Source


@dataclass(frozen=True, slots=True)
class NameRules:
    """What `load_weights` does with a tensor's name, in the order of the first attributes.

    Attributes:
        renames: Applied first, all of them, one after the other.
        special: The first that matches ends the matter.
        stacked: The first that matches decides the shard.
        prefixes: Put before the name, in this order, until a parameter of that name exists.
        unmatched: What happens to a name that reaches no parameter.
        source: Where parameters are looked up.
        own_prefix: Put before names ahead of everything but the special ones; None for nothing.
        unmatched_shard: Type of the exception where a shard's fused parameter does not exist; None where shards
            are treated like other names.
        optional: Ends of names that are dropped without a message where they reach no parameter.
        unfollowed: Names that contain one of these are rewritten in a way that is not described here.
    """

    renames: tuple[Rename, ...]
    special: tuple[Special, ...]
    stacked: tuple[Stacked, ...]
    prefixes: tuple[str, ...]
    unmatched: str
    source: Source
    own_prefix: Prefix | None = None
    unmatched_shard: str | None = None
    optional: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()

    @property
    def warns(self) -> bool:
        """Whether a name that reaches no parameter is mentioned in a warning."""
        return "warning" in self.unmatched


@dataclass(frozen=True, slots=True)
class Size:
    """How a size is found in the config.

    Tried in this order: `model_types` (a key for this model_type), `present` (a key that counts even when it
    is null), `first` (keys that count when neither null nor empty; `len(key)` is the length of a list),
    `fallback` (another key), `default` (a number).
    """

    name: str
    source: Source
    model_types: Mapping[str, str]
    present: str | None
    first: tuple[str, ...]
    fallback: str | None
    default: int | None


@dataclass(frozen=True, slots=True)
class Switch:
    """A yes or no found in the config: `any` or `none` of some keys true, or the first `present` key true."""

    name: str
    source: Source
    any: tuple[str, ...]
    none: tuple[str, ...]
    present: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the drafter class, or a family of them.

    Attributes:
        name: The name; `{layer}` stands for each layer's index, `{aux}` for each auxiliary state's.
        kind: How it is split over tensor-parallel ranks, hence which loader fills it.
        rows: Factors of the row count (numbers, size names or config keys). Of one part for "merged column";
            empty for "qkv", whose rows follow from the heads.
        columns: Factors of the column count; empty for a vector.
        later_columns: The same for layers after the first where they differ.
        when: The switch that must be on for the parameter to exist.
        source: Where it is made.
    """

    name: str
    kind: ParameterKind
    rows: tuple[str | int, ...]
    columns: tuple[str | int, ...]
    later_columns: tuple[str | int, ...]
    when: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class ConstructionRule:
    """Something that must hold for the class to be built.

    Attributes:
        rule: Which rule; `eagle3lab.engines.loading.construction` implements them by name.
        exception: Type of the exception when it does not hold.
        message: Its text, with fields in braces.
        size: The size that the rule is about, for rules that need one.
        allowed: The values that pass, for rules that list them.
        when: The switch that must be on for it to be checked at all.
        source: Where it is checked.
    """

    rule: str
    exception: str
    message: str
    size: str | None
    allowed: tuple[str, ...]
    when: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class VocabularyPadding:
    """How vocabularies are padded.

    Attributes:
        padding: To a multiple of this many rows.
        grows_with_tp: Whether to a multiple of `padding` × ranks where the ranks do not divide it otherwise.
        source: Where.
    """

    padding: int
    grows_with_tp: bool
    source: Source


@dataclass(frozen=True, slots=True)
class FromTarget:
    """A parameter that the target's own replaces after loading, under the algorithm EAGLE3.

    Attributes:
        parameter: The drafter's parameter.
        unless_differs: Two sizes; the parameter stays the drafter's where they differ.
        when_null: The config key that must be null for the replacement.
        source: Where.
    """

    parameter: str
    unless_differs: tuple[str, ...]
    when_null: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Capture:
    """Which hidden states a Llama-style target hands to the drafter.

    Attributes:
        default_layers: Capture points when the config names none, as expressions in n; point i is the input
            of layer i.
        ids_from: Config keys that may name them.
        shift: Added to each configured id to make a capture point: with 1, an id names a layer's output.
        source: Where.
    """

    default_layers: tuple[str, ...]
    ids_from: tuple[str, ...]
    shift: int
    source: Source


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The formulas behind the decode log.

    Attributes:
        length_formula: Of "accept len", tokens a verify step, bonus included.
        length_source: Where.
        rate_formula: Of "accept rate".
        rate_key: The rate in terms of len (accept length) and D: "len/D" or "(len-1)/(D-1)".
        rate_source: Where.
    """

    length_formula: str
    length_source: Source
    rate_formula: str
    rate_key: str
    rate_source: Source


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine release.

    Attributes:
        kind: The engine: "sglang".
        release: Its version.
        drafter: The class that serves EAGLE-3 drafters.
        names: What happens to tensor names.
        sizes: Sizes the class computes from its config, by name.
        switches: Yes-or-no decisions it takes from its config, by name.
        parameters: Its parameters, in the order of `named_parameters()`.
        construction: What stops it from being built, in the order it is met.
        vocabulary: How vocabularies are padded.
        zero_filled: Kinds of parameters for which a tensor that is too short is filled up with zeros.
        zero_filled_source: Where.
        from_target: What the target supplies.
        capture: Which hidden states are captured.
        acceptance: The formulas of the decode log.
        config_checked: Whether the transformers that the release requires checks the values given to its config
            classes (transformers 5 does, 4 does not).
        config_source: Where.
        notes: What a reader of any result should know: that another release stands in, or where the facts come
            from if not from the release itself.
    """

    kind: str
    release: str
    drafter: DrafterClass
    names: NameRules
    sizes: Mapping[str, Size]
    switches: Mapping[str, Switch]
    parameters: tuple[Parameter, ...]
    construction: tuple[ConstructionRule, ...]
    vocabulary: VocabularyPadding
    zero_filled: tuple[str, ...]
    zero_filled_source: Source
    from_target: tuple[FromTarget, ...]
    capture: Capture
    acceptance: Acceptance
    config_checked: bool = True
    config_source: Source | None = None
    notes: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """As on the command line: `sglang==0.5.9`."""
        return f"{self.kind}=={self.release}"


def sources(value: object) -> Iterator[Source]:
    """Every source anywhere in some facts, in the order of their fields."""
    if isinstance(value, Source):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from sources(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from sources(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from sources(item)
