"""The facts about one engine release, typed.

Sizes count elements; n is the number of the target's layers, D the number of draft tokens a step verifies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Literal

from eagle3lab.engines.facts.names import NameRules
from eagle3lab.engines.facts.source import Source

if TYPE_CHECKING:
    from eagle3lab.engines.facts.vllm import ConfigTranslation

ParameterKind = Literal[
    "vocabulary", "replicated", "replicated linear", "qkv", "merged column", "column parallel", "row parallel"
]
DrafterKind = Literal["EAGLE-3", "EAGLE-1", "other"]


@dataclass(frozen=True, slots=True)
class DrafterClass:
    """A class that serves drafters.

    Attributes:
        name: The class.
        module: Where it is defined.
        architectures: Names in a config's `architectures` that lead to it.
        other_architectures: EAGLE-3 names that lead to another class of this release.
        source: Where the class is registered.
    """

    name: str
    module: str
    architectures: tuple[str, ...]
    other_architectures: tuple[str, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Size:
    """How a size is found in the config.

    Tried in this order: `terms` (the size is their sum), `divided` (the quotient of two keys), `model_types` (a key
    for this model_type), `present` (a key that counts even when it is null), `stated` (keys that count when they are
    not null), `first` (keys that count when neither null nor empty; `len(key)` is the length of a list), `fallback`
    (another key), `default` (a number).
    """

    name: str
    source: Source
    model_types: Mapping[str, str]
    present: str | None
    first: tuple[str, ...]
    fallback: str | None
    default: int | None
    stated: tuple[str, ...] = ()
    terms: tuple[str | int, ...] = ()
    divided: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """A yes or no found in the config.

    It is on where two sizes differ (`differs`); where the first `present` key that is stated is true; where none of
    `none` is true; where any of `any` is true. The first of these that there is anything in decides.
    """

    name: str
    source: Source
    any: tuple[str, ...]
    none: tuple[str, ...]
    present: tuple[str, ...]
    differs: tuple[str, ...] = ()


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
        first_layer: Whether the first layer has it, too.
    """

    name: str
    kind: ParameterKind
    rows: tuple[str | int, ...]
    columns: tuple[str | int, ...]
    later_columns: tuple[str | int, ...]
    when: str | None
    source: Source
    first_layer: bool = True


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
    """A parameter that the target's own replaces after loading, under the class's own algorithm.

    Attributes:
        parameter: The drafter's parameter.
        unless_differs: Two sizes; the parameter stays the drafter's where they differ.
        when_null: The config key that must be null for the replacement.
        source: Where.
        algorithm: Under which algorithm.
        absent_too: Whether an absent key counts like null.
        unless_shipped: It happens unless a name in the checkpoint contains this; None where names do not matter.
    """

    parameter: str
    unless_differs: tuple[str, ...]
    when_null: str | None
    source: Source
    algorithm: Literal["EAGLE3", "EAGLE"] = "EAGLE3"
    absent_too: bool = False
    unless_shipped: str | None = None


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
class DrafterRules:
    """One drafter class of a release: how it is built and what it loads.

    Attributes:
        kind: "EAGLE-3", or "EAGLE-1" for a head over one hidden state.
        drafter: The class.
        names: What happens to tensor names.
        sizes: Sizes the class computes from its config, by name.
        switches: Yes-or-no decisions it takes from its config, by name.
        parameters: Its parameters, in the order of `named_parameters()`.
        construction: What stops it from being built, in the order it is met.
        from_target: What the target supplies.
        unfollowed_keys: Config keys whose effect on the class is not described here.
    """

    kind: DrafterKind
    drafter: DrafterClass
    names: NameRules
    sizes: Mapping[str, Size]
    switches: Mapping[str, Switch]
    parameters: tuple[Parameter, ...]
    construction: tuple[ConstructionRule, ...]
    from_target: tuple[FromTarget, ...]
    unfollowed_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine release, with the rules of one of its drafter classes.

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
        others: The release's other drafter classes that are described.
        undescribed: Its drafter classes that are not, with the reason.
        drafter_kind: Which kind of head the class is for.
        unfollowed_keys: Config keys whose effect on the class is not described here.
        speculators: How it reads a config in the format of the speculators library; None where it cannot.
        root: The source tree or wheel that the facts were read from; None for those of a release.
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
    others: tuple[DrafterRules, ...] = ()
    undescribed: Mapping[str, str] = field(default_factory=dict)
    drafter_kind: DrafterKind = "EAGLE-3"
    unfollowed_keys: tuple[str, ...] = ()
    speculators: ConfigTranslation | None = None
    root: str | None = None

    @property
    def joins_halves(self) -> bool:
        """Whether the class joins two tensors into one parameter, as that for low-rank attention does."""
        return bool(self.names.joined)

    def serving(self, architectures: Iterable[str]) -> EngineFacts:
        """The same release with the class that a config with these `architectures` is loaded by.

        The first name that is one of the release's drafter classes decides, as it does in the release's registry.
        Without one, the facts stay those of the class they are about.
        """
        for name in architectures:
            if name in self.drafter.architectures:
                return self
            for rules in self.others:
                if name in rules.drafter.architectures:
                    return replace(
                        self,
                        drafter=rules.drafter,
                        names=rules.names,
                        sizes=rules.sizes,
                        switches=rules.switches,
                        parameters=rules.parameters,
                        construction=rules.construction,
                        from_target=rules.from_target,
                        drafter_kind=rules.kind,
                        unfollowed_keys=rules.unfollowed_keys,
                    )
            if name in self.undescribed:
                return self
        return self

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
