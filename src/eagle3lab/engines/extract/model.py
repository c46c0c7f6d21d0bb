"""What can be read from a source tree, typed; what could not be read stands beside it, never in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from eagle3lab.engines.atlas.variants import Proof
from eagle3lab.engines.facts import (
    Acceptance,
    AllowList,
    Capture,
    ConfigTranslation,
    ConstructionRule,
    DrafterClass,
    DrafterKind,
    DrafterRules,
    EngineFacts,
    FromTarget,
    ModuleNames,
    NameRules,
    Parameter,
    Size,
    Source,
    Switch,
    VocabularyPadding,
)
from eagle3lab.errors import InputError

# ---- every engine ----------------------------------------------------------------------------------------------------


LoaderOrigin = Literal["own", "inherited"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be read.

    Attributes:
        fact: Which: a field of `ReleaseFacts`, with a part of it after a dot where only that is unknown.
        reason: Why, in plain words.
        place: The file, with the line where there is one, that was looked at.
    """

    fact: str
    reason: str
    place: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.fact}: {self.reason} ({self.place})"


@dataclass(frozen=True, slots=True)
class Drafter:
    """A registered class that drafts: its forward pass starts from the hidden states of the target.

    Attributes:
        name: The class; what a config's `architectures` must say.
        module: Where it is defined.
        kind: "EAGLE-3" if it turns draft ids into target ids (it has a hot_token_id), "EAGLE-1" if it joins one
            hidden state and one embedding in a layer called fc and nothing else, "other" for the rest (the
            multi-token-prediction layers of particular targets).
        ancestors: Classes of the engine it descends from, nearest first.
        loader: Whether `load_weights` is its own.
        source: Where the class begins.
    """

    name: str
    module: str
    kind: DrafterKind
    ancestors: tuple[str, ...]
    loader: LoaderOrigin
    source: Source


@dataclass(frozen=True, slots=True)
class Shift:
    """What explicit layer ids become under a condition.

    Attributes:
        when: The condition as the source has it; "" for "otherwise" or "always".
        added: What is added to every id to make a capture point.
    """

    when: str
    added: int


@dataclass(frozen=True, slots=True)
class Target:
    """A class that can hand auxiliary hidden states to a drafter: it has `set_eagle3_layers_to_capture`.

    Attributes:
        name: The class with the method.
        module: Where it is defined.
        architectures: Registered classes that have the method from it, itself included if it is registered.
        delegates_to: The attribute whose method of the same name it calls instead of capturing itself.
        takes_ids: Whether the method takes layer ids at all.
        default_layers: Capture points without ids, as expressions in n; None if it delegates.
        shifts: What explicit ids become, the first condition that holds; empty if it delegates or takes none.
        source: Where the method begins.
        holds: The class that the constructor puts into that attribute; None where it does not name one.
    """

    name: str
    module: str
    architectures: tuple[str, ...]
    delegates_to: str | None
    takes_ids: bool
    default_layers: tuple[str, ...] | None
    shifts: tuple[Shift, ...]
    source: Source
    holds: str | None = None

    @property
    def rule(self) -> str:
        """What becomes of explicit ids, in words: "+1", "verbatim", "+1 if layer_ids[0] == 1, else verbatim"."""
        if self.delegates_to is not None:
            return f"as {self.delegates_to}"
        if not self.takes_ids:
            return "ignored"
        words = ["verbatim" if shift.added == 0 else f"{shift.added:+d}" for shift in self.shifts]
        parts = [
            f"{word} if {s.when}" if s.when else word for word, s in zip(words, self.shifts, strict=True)
        ]
        return ", else ".join(parts)


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that the engine reads from the drafter's config.

    Attributes:
        key: The config key, dotted where nested.
        source: Where it is read.
    """

    key: str
    source: Source


@dataclass(frozen=True, slots=True)
class Missing:
    """What is raised where a target cannot capture.

    Attributes:
        exception: Its type.
        message: Its text, with `{class}` for the class.
        source: Where.
    """

    exception: str
    message: str
    source: Source


@dataclass(frozen=True, slots=True)
class CaptureWiring:
    """Which ids reach the target, and when.

    Attributes:
        ids: Where layer ids are read from; empty if they never are.
        use_aux_hidden_state: Where the switch that turns capture off is read from; None if it is not read.
        graphs: "config ids" if CUDA graphs are captured with what the config says, "default layers" if the
            method is called without ids just before.
        graphs_source: The call before graphs are captured, or the call that sets the ids.
        missing: What is raised where the target's class has no such method; None where nothing is said, and
            Python raises its AttributeError.
        fc_if_wider: The lines in drafter classes that run fc only where the states are not as wide as the embeddings.
    """

    ids: tuple[Reading, ...]
    use_aux_hidden_state: Reading | None
    graphs: Literal["config ids", "default layers"]
    graphs_source: Source
    missing: Missing | None = None
    fc_if_wider: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Algorithms:
    """What `--speculative-algorithm` accepts.

    Attributes:
        names: Every accepted name, sorted.
        aliases: Names that mean another one.
        source: Where the names are listed.
    """

    names: tuple[str, ...]
    aliases: Mapping[str, str]
    source: Source


@dataclass(frozen=True, slots=True)
class DecodeLog:
    """The decode log line.

    Attributes:
        pieces: The format strings that are put one after the other, in order; fields are in braces, and a piece
            that is only appended under a condition is included.
        source: Where the line begins.
    """

    pieces: tuple[str, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class ReleaseFacts:
    """Everything read from one source tree. None means unknown, and `unknown` says why.

    The first block is what `EngineFacts` needs; `engine_facts` puts it together.

    Attributes:
        release: The release the package names.
        drafter: The class that serves EAGLE-3 drafters with a Llama layer.
        names: Its `load_weights`.
        sizes: Sizes it computes.
        switches: Decisions it takes from the config.
        parameters: Its parameters.
        construction: What stops it from being built.
        vocabulary: How vocabularies are padded.
        zero_filled: Kinds of parameters whose short tensors are filled up.
        zero_filled_source: Where.
        from_target: What the target supplies.
        capture: Which hidden states a Llama target hands over.
        acceptance: The formulas of the decode log.
        config_checked: Whether the required transformers checks what its config classes are given.
        config_source: The line that requires it.
        drafters: Every drafter class.
        targets: Every class that can capture.
        wiring: Which ids reach the target.
        algorithms: Accepted algorithms.
        log: The decode log line.
        metrics: Names of the metrics about speculation.
        meta_info: Fields about speculation in a request's `meta_info`.
        unknown: What could not be read.
        others: The other EAGLE-3 and EAGLE-1 classes that could be read.
        undescribed: Those that could not, with the reason.
        server_info: Paths that tell about a running server, and the fields about speculation in its answer.
        proofs: By what the variants of its classes are known; empty for a release of the atlas.
    """

    kind: ClassVar[str] = "sglang"
    # What messages call the engine.
    engine: ClassVar[str] = "SGLang"

    release: str | None
    drafter: DrafterClass | None
    vocabulary: VocabularyPadding | None
    zero_filled: tuple[str, ...]
    zero_filled_source: Source | None
    capture: Capture | None
    acceptance: Acceptance | None
    config_checked: bool | None
    config_source: Source | None
    drafters: tuple[Drafter, ...]
    targets: tuple[Target, ...]
    wiring: CaptureWiring | None
    algorithms: Algorithms | None
    log: DecodeLog | None
    metrics: tuple[str, ...]
    meta_info: tuple[str, ...]
    unknown: tuple[Unknown, ...]
    names: NameRules | None = None
    sizes: Mapping[str, Size] = field(default_factory=dict)
    switches: Mapping[str, Switch] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] | None = None
    construction: tuple[ConstructionRule, ...] = ()
    from_target: tuple[FromTarget, ...] = ()
    others: tuple[DrafterRules, ...] = ()
    undescribed: Mapping[str, str] = field(default_factory=dict)
    server_info: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = field(default=(), compare=False)

    def with_classes(self, rules: Sequence[DrafterRules]) -> Self:
        """The same with the rules of its drafter classes, those of `drafter` first if they are among them."""
        main = rules[0] if rules and rules[0].drafter == self.drafter else None
        if main is None:
            return replace(self, others=tuple(rules))
        return replace(
            self,
            names=main.names,
            sizes=main.sizes,
            switches=main.switches,
            parameters=main.parameters,
            construction=main.construction,
            from_target=main.from_target,
            others=tuple(rules[1:]),
        )

    def classes(self) -> tuple[DrafterRules, ...]:
        """Every drafter class whose rules are known, that of `drafter` first."""
        if self.drafter is None or self.names is None or self.parameters is None:
            return self.others
        main = DrafterRules(
            "EAGLE-3",
            self.drafter,
            self.names,
            self.sizes,
            self.switches,
            self.parameters,
            self.construction,
            self.from_target,
        )
        return (main, *self.others)

    def run_notes(self) -> tuple[str, ...]:
        """What a reader should know where code of the source tree was run, and not only read."""
        names = [proof.assigned.drafter.name for proof in self.proofs if proof.ran]
        if not names:
            return ()
        return (
            f"the constructors and load_weights of {' and '.join(names)} are not those of a release: they were run on "
            "stand-ins, in a process of their own, to see which known ones they agree with",
        )

    def further_topics(self) -> dict[str, dict[str, str]]:
        """What there is to say of this engine only, for people: topic to item to what is said of it."""
        return {}

    def engine_facts(self, label: str | None = None) -> EngineFacts:
        """The facts a load is simulated from.

        Args:
            label: Stands for the release where the package names none.

        Raises:
            InputError: One of them is unknown.
        """
        needed = (
            "drafter",
            "names",
            "parameters",
            "vocabulary",
            "capture",
            "acceptance",
            "zero_filled_source",
        )
        missing = [name for name in needed if getattr(self, name) is None]
        broken = {entry.fact.partition(".")[0] for entry in self.unknown}
        missing += [n for n in ("sizes", "switches", "construction", "from_target") if n in broken]
        if missing:
            why = [str(entry) for entry in self.unknown if entry.fact.partition(".")[0] in missing]
            raise self._not_shown("; ".join(why) or missing[0])
        assert self.drafter and self.names and self.parameters and self.vocabulary
        assert self.capture and self.acceptance and self.zero_filled_source
        return EngineFacts(
            kind=self.kind,
            release=self.release or label or "unknown",
            drafter=self.drafter,
            names=self.names,
            sizes=self.sizes,
            switches=self.switches,
            parameters=self.parameters,
            construction=self.construction,
            vocabulary=self.vocabulary,
            zero_filled=self.zero_filled,
            zero_filled_source=self.zero_filled_source,
            from_target=self.from_target,
            capture=self.capture,
            acceptance=self.acceptance,
            config_checked=bool(self.config_checked),
            config_source=self.config_source,
            others=self.others,
            undescribed=self.undescribed,
        )

    def _not_shown(self, why: str) -> InputError:
        return InputError(
            f"the source does not show what this {self.engine} does with a drafter: {why}",
            advice=f"Name the release it was made from instead, {self.kind}==X.Y.Z.",
        )


# ---- vLLM ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VllmFacts(ReleaseFacts):
    """Everything read from one vLLM source tree. None means unknown, and `unknown` says why.

    Sources are relative to the package `vllm`.

    Attributes:
        translation: How a config in the format of the speculators library is read.
        allowed: Which targets are taken for EAGLE-3.
    """

    kind: ClassVar[str] = "vllm"
    engine: ClassVar[str] = "vLLM"

    translation: ConfigTranslation | None = None
    allowed: AllowList | None = None

    def engine_facts(self, label: str | None = None) -> EngineFacts:
        """The facts a load is simulated from.

        Args:
            label: Stands for the release where the package names none.

        Raises:
            InputError: One of them is unknown.
        """
        broken = {entry.fact.partition(".")[0] for entry in self.unknown}
        if {"translation", "from_target"} & broken:
            raise self._not_shown("; ".join(str(entry) for entry in self.unknown))
        return replace(ReleaseFacts.engine_facts(self, label), speculators=self.translation)

    def further_topics(self) -> dict[str, dict[str, str]]:
        """What there is to say of vLLM only, for people."""
        return {
            "walk through modules": _walk(self.names),
            "skipped names": _unused(self.names),
            "config of speculators": _translated(self.translation),
            "targets allowed": {"": "unknown"}
            if self.allowed is None
            else dict.fromkeys(self.allowed.model_types, "model_type contains it")
            or {"": "any that can capture"},
        }


def _walk(names: NameRules | None) -> dict[str, str]:
    if not isinstance(names, ModuleNames) or names.token_map is None or names.own_prefix is None:
        return {"": "unknown"}
    words = {
        f"{names.token_map.old} in a name": f"becomes {names.token_map.new}, a parameter",
        "other names": f"get {names.own_prefix.text} in front, unless they contain {names.own_prefix.unless}",
        "leads nowhere": names.missing,
        "leads nowhere in the inner model": names.inner_missing or names.missing,
    }
    if names.fused_missing is not None:
        words["leads nowhere in a fused layer"] = names.fused_missing
    return words | {f"{end} that leads nowhere": "is dropped without a message" for end in names.optional}


def _unused(names: NameRules | None) -> dict[str, str]:
    words = {}
    for rule in names.unused if isinstance(names, ModuleNames) else ():
        words[rule.text] = (
            f"unless a name contains {rule.unless_shipped}"
            if rule.unless_shipped
            else f"unless {rule.unless_on} is on"
            if rule.unless_on
            else "always"
        )
    return words


def _translated(translation: ConfigTranslation | None) -> dict[str, str]:
    if translation is None:
        return {"": "unknown"}
    words = {
        key.key: "as it is, if true" if key.if_true else f"as it is, {key.default} where it is not stated"
        for key in translation.keys
    }
    for model_type, architecture in translation.architectures.items():
        words[f"layer of type {model_type}" if model_type else "any layer"] = architecture
    return words
