"""What an engine release does with a drafter, typed; every fact with the line of the release that says so.

How a class loads and how it is built is one of the variants in `eagle3lab.engines.atlas.variants`; what changes more
often is read from each release by `eagle3lab.engines.extract`. Nothing in eagle3lab compares release numbers; the code
asks the facts. Sizes count elements; n is the number of the target's layers, D the number of draft tokens that a step
verifies.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

ParameterKind = Literal[
    "vocabulary", "replicated", "replicated linear", "qkv", "merged column", "column parallel", "row parallel"
]
DrafterKind = Literal["EAGLE-3", "EAGLE-1", "other"]
_CONFIG_CLASSES = Path(__file__).with_name("config-classes.toml")


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


# ---- what a loader does with names -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rename:
    """Every occurrence of `old` in a tensor's name becomes `new`.

    Attributes:
        old: The text.
        new: What takes its place.
        source: Where.
        at_start: Only at the beginning of the name.
    """

    old: str
    new: str
    source: Source
    at_start: bool = False

    def apply(self, name: str) -> str:
        """The name with it done."""
        if self.at_start:
            return self.new + name[len(self.old) :] if name.startswith(self.old) else name
        return name.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Special:
    """A tensor whose name contains `contains` is no weight.

    Attributes:
        contains: The substring.
        effect: "hot_token_id": it becomes the map from draft to target ids, tensor + arange(rows);
            "skipped": it is ignored.
        source: Where.
        when: The switch that must be on for the rule to hold; None for always.
        whole: Only if it is the last of the name's dotted parts, not anywhere in the name.
        unless: Not for names that contain this; None for no exception.
    """

    contains: str
    effect: Literal["hot_token_id", "skipped"]
    source: Source
    when: str | None = None
    whole: bool = False
    unless: str | None = None

    def matches(self, name: str) -> bool:
        """Whether the rule is about this name, its switch aside."""
        if self.unless is not None and self.unless in name:
            return False
        return name.rpartition(".")[2] == self.contains if self.whole else self.contains in name


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor whose name contains `part` is shard `shard` of the parameter with `fused` in its place."""

    part: str
    fused: str
    shard: str | int
    source: Source


@dataclass(frozen=True, slots=True)
class Joined:
    """Two tensors that are kept until both are there, then put one below the other and loaded as one.

    A tensor is one of them if its name contains one of `parts`; its partner is the one whose name has the other part
    in the same place. One without the other is forgotten when the loop ends.

    Attributes:
        parts: In the order in which they are stacked.
        fused: What takes the part's place in the name of the parameter.
        source: Where.
    """

    parts: tuple[str, str]
    fused: str
    source: Source


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name that matches `old` as a whole becomes `new`, whose groups are those of the regular expression."""

    old: str
    new: str
    source: Source


@dataclass(frozen=True, slots=True)
class Translation:
    """A table from the names of another format, looked up before anything else.

    Attributes:
        unless: Names that begin with one of these are left as they are.
        patterns: The first that matches gives the name.
        endings: Ends of names that are replaced afterwards.
        unmatched: What happens to a name that no pattern matches.
        source: Where.
    """

    unless: tuple[str, ...]
    patterns: tuple[Pattern, ...]
    endings: tuple[tuple[str, str], ...]
    unmatched: str
    source: Source

    def apply(self, name: str) -> str | None:
        """The name in the other format; None if no pattern matches."""
        if name.startswith(self.unless):
            return name
        for pattern in self.patterns:
            match = re.fullmatch(pattern.old, name)
            if match is not None:
                name = match.expand(pattern.new)
                break
        else:
            return None
        for end, new in self.endings:
            if name.endswith(end):
                return name.removesuffix(end) + new
        return name


@dataclass(frozen=True, slots=True)
class Prefix:
    """Every name gets `text` in front, but not those that contain `unless`, or, with `at_start`, begin with it.

    An empty `unless` excludes none.
    """

    text: str
    unless: str
    source: Source
    at_start: bool = False

    def apply(self, name: str) -> str:
        """The name with the prefix where it gets one."""
        spared = name.startswith(self.unless) if self.at_start else self.unless in name
        return name if self.unless and spared else self.text + name


@dataclass(frozen=True, slots=True)
class NameRules:
    """What `load_weights` does with a tensor's name, in the order of the first attributes.

    Attributes:
        renames: Applied first, all of them, one after the other.
        special: The first that matches ends the matter.
        stacked: The first that matches decides the shard, and `missing_shard` what happens where that parameter does
            not exist.
        prefixes: Put before the name, in this order, until a parameter of that name exists.
        unmatched: What happens to a name that reaches no parameter.
        source: Where parameters are looked up.
        own_prefix: Put before names ahead of everything but the special ones; None for nothing.
        unmatched_shard: Type of the exception where a shard's fused parameter does not exist; None where shards
            are treated like other names.
        optional: Ends of names that are dropped without a message where they reach no parameter.
        unfollowed: Names that contain one of these are rewritten in a way that is not described here.
        special_first: Whether special names are looked for before anything is renamed.
        missing_shard: Where a shard's fused parameter does not exist: "ends" (the name is tried no further),
            "goes on" (the next shards and the plain lookup see the name with the fused part in it) or "starts again"
            (they see it as it was).
        joined: Pairs of tensors that are loaded as one; looked for after the shards.
        translation: The table that names go through first; None if there is none.
        layers: Where names of layers that the drafter does not have are skipped without a message; None if nowhere.
        optional_starts: Beginnings of names that are dropped without a message where they are no parameter.
        unmatched_name: Type of the exception where a name that is no shard reaches no parameter; None if none is
            raised.
        walked: Whether names are walked from module to module, as `ModuleNames` describes, and not
            looked up as a whole.
    """

    walked: ClassVar[bool] = False

    unmatched: str
    source: Source
    renames: tuple[Rename, ...] = ()
    special: tuple[Special, ...] = ()
    stacked: tuple[Stacked, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    own_prefix: Prefix | None = None
    unmatched_shard: str | None = None
    optional: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()
    special_first: bool = False
    missing_shard: Literal["ends", "goes on", "starts again"] = "ends"
    joined: tuple[Joined, ...] = ()
    translation: Translation | None = None
    layers: Source | None = None
    unmatched_name: str | None = None
    optional_starts: tuple[str, ...] = ()

    @property
    def warns(self) -> bool:
        """Whether a name that reaches no parameter is mentioned in a warning."""
        return "warning" in self.unmatched


@dataclass(frozen=True, slots=True)
class Unused:
    """Names that contain `text` are skipped without a message.

    Attributes:
        text: The substring, looked for in the name with its prefix.
        source: Where.
        unless_shipped: Not if some name in the checkpoint contains this.
        unless_on: Not if this switch is on.
    """

    text: str
    source: Source
    unless_shipped: str | None = None
    unless_on: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleNames(NameRules):
    """Name rules of a release that walks from module to module, and stops at a name that leads nowhere.

    All names are looked at first: `special`, `token_map`, `own_prefix`. Then each is walked in its order: `unused`,
    and for what lies in the inner model `renames` and `stacked`, then the parameter of that name.

    Attributes:
        token_map: How the tensor with the draft-to-target offsets is renamed; it gets no prefix.
        unused: Names that are skipped.
        once: Whether a rename replaces only the first occurrence, and every rule of `stacked` applies, one after the
            other; else every occurrence, and only the first rule that matches.
        missing: Type of the exception where a name leads to no module or parameter.
        missing_message: Its text, with the fields name and owner.
        inner_missing: The same inside the inner model where that has a loop of its own; None where it is walked too.
        fused_missing: The same inside a fused layer that loads its own; None where it is walked too.
        owners: Class of the drafter and of its inner model, as messages name them.
    """

    walked: ClassVar[bool] = True

    token_map: Rename | None = None
    unused: tuple[Unused, ...] = ()
    once: bool = False
    missing: str = "ValueError"
    missing_message: str = ""
    inner_missing: str | None = None
    fused_missing: str | None = None
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Translated:
    """One key of a translated config.

    Attributes:
        key: In the translated config, and in the one it is read from.
        default: Its value where the config does not state it; null counts as stated.
        if_true: Only if the stated value is true; nothing is written otherwise.
        source: Where.
    """

    key: str
    default: str | bool | int | None
    if_true: bool
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigTranslation:
    """How a config in the format of the speculators library becomes one of the engine's own.

    The nested `transformer_layer_config` comes first, then `keys`, then the architecture.

    Attributes:
        keys: Written in this order.
        architectures: By the layer's model_type; the one under "" for every other, absent where there is no other.
        default_type: The model_type taken where none is stated.
        source: Where it begins.
        asked_for: The key by which the engine knows such a config.
    """

    keys: tuple[Translated, ...]
    architectures: Mapping[str, str]
    default_type: str
    source: Source
    asked_for: str = "speculators_config"

    def knows(self, raw: Mapping[str, Any]) -> bool:
        """Whether the engine takes this config.json for one in the format."""
        return raw.get(self.asked_for) is not None

    def architecture(self, model_type: str | None) -> str | None:
        """The engine's class for a layer of this model_type; None where it has none."""
        return self.architectures.get(model_type or self.default_type, self.architectures.get(""))

    def apply(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The translated config of `raw`, the whole config.json."""
        nested = raw.get("transformer_layer_config")
        flat = {"model_type": self.default_type, **nested} if isinstance(nested, Mapping) else {}
        for item in self.keys:
            if not item.if_true:
                flat[item.key] = raw.get(item.key, item.default)
            elif raw.get(item.key):
                flat[item.key] = raw[item.key]
        architecture = self.architecture(flat.get("model_type"))
        flat["architectures"] = [] if architecture is None else [architecture]
        flat["speculators_model_type"] = raw.get("speculators_model_type")
        return flat


@dataclass(frozen=True, slots=True)
class AllowList:
    """The targets that the engine takes for EAGLE-3.

    Attributes:
        model_types: A target passes if its model_type contains one of these; empty where any class that can hand
            over hidden states passes.
        source: Where.
    """

    model_types: tuple[str, ...]
    source: Source


# ---- what a class is built from ----------------------------------------------------------------------------------


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
    model_types: Mapping[str, str] = field(default_factory=dict)
    present: str | None = None
    first: tuple[str, ...] = ()
    fallback: str | None = None
    default: int | None = None
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
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
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
    source: Source
    rows: tuple[str | int, ...] = ()
    columns: tuple[str | int, ...] = ()
    later_columns: tuple[str | int, ...] = ()
    when: str | None = None
    first_layer: bool = True


@dataclass(frozen=True, slots=True)
class ConstructionRule:
    """Something that must hold for the class to be built.

    Attributes:
        rule: Which rule; `eagle3lab.engines.loading.drafter` implements them by name.
        exception: Type of the exception when it does not hold.
        message: Its text, with fields in braces.
        size: The size that the rule is about, for rules that need one.
        allowed: The values that pass, for rules that list them.
        when: The switch that must be on for it to be checked at all.
        checked_config: Whether only a config class checks it that checks the values it is given.
        source: Where it is checked.
    """

    rule: str
    exception: str
    source: Source
    message: str = ""
    size: str | None = None
    allowed: tuple[str, ...] = ()
    when: str | None = None
    checked_config: bool = False


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
    source: Source
    unless_differs: tuple[str, ...] = ()
    when_null: str | None = None
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


@cache
def config_class(model_type: str) -> Mapping[str, Any] | None:
    """What transformers' config class of this model_type supplies; None where eagle3lab has not written it down."""
    tables = tomllib.loads(_CONFIG_CLASSES.read_text(encoding="utf-8"))
    return tables.get(model_type)
