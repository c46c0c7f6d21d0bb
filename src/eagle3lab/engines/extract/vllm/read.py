"""A vLLM source tree read as the facts of a release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from eagle3lab.engines.atlas.data import digests
from eagle3lab.engines.atlas.variants import Proof, composed
from eagle3lab.engines.extract.model import Algorithms, Unknown, VllmFacts
from eagle3lab.engines.extract.reading import reading, unread_files
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, UnreadableError
from eagle3lab.engines.extract.tree import SourceTree, open_vllm
from eagle3lab.engines.extract.vllm import registry, serving
from eagle3lab.engines.facts import (
    Capture,
    ConstructionRule,
    DrafterClass,
    Source,
    VocabularyPadding,
)
from eagle3lab.engines.proof import Surroundings, UnprovenError, assign

LINEAR = "model_executor/layers/linear.py"
_EMBEDDING = "model_executor/layers/vocab_parallel_embedding.py"
_MODEL_CONFIG = "config/model.py"
_CONFIGS = "transformers_utils/config.py"
T = TypeVar("T")


def read_vllm(path: Path) -> VllmFacts:
    """The facts of the vLLM source tree at `path`.

    Raises:
        InputError: There is no vLLM there.
    """
    return read_opened(open_vllm(path))


def read_opened(tree: SourceTree) -> VllmFacts:
    """The same from a source tree that is open already."""
    with reading(tree.path):
        return _read(tree)


class _Notes:
    """What could not be read, so far."""

    def __init__(self) -> None:
        self.unknown: list[Unknown] = []

    def tried(self, fact: str, read: Callable[[], T]) -> T | None:
        """What `read` gives; None, and a note, if it cannot be read."""
        try:
            return read()
        except UnreadableError as error:
            self.unknown.append(Unknown(fact, error.reason, str(error.source)))
            return None


def _read(tree: SourceTree) -> VllmFacts:
    syntax = Syntax(tree)
    notes = _Notes()
    release = tree.release()
    if release is None:
        notes.unknown.append(
            Unknown("release", "the package does not say which release it is", "_version.py")
        )
    targets_listed, drafters_listed = registry.read_registry(syntax)
    drafters = registry.find_drafters(syntax, drafters_listed)
    translated = notes.tried("translation", lambda: serving.read_translation(syntax))
    translation, refusal = translated or (None, None)
    from_target = notes.tried("from_target", lambda: serving.read_sharing(syntax)) or ()
    found = registry.eagle3_classes(syntax, drafters_listed, drafters)
    main = found[0][1] if found and registry.is_llama(syntax, found[0][0]) else None
    if main is None:
        notes.unknown.append(
            Unknown("drafter", "no class for EAGLE-3 drafters with a Llama layer", registry.REGISTRY)
        )
    vocabulary = notes.tried("vocabulary", lambda: _vocabulary(syntax))
    before = tuple(one for one in (refusal, *_config_rules(syntax), _heads_rule(syntax)) if one is not None)
    proofs: tuple[Proof, ...] = ()
    unproven: dict[str, str] = {}
    if vocabulary is not None:
        around = Surroundings("vllm", vocabulary, False, before, from_target, digests("vllm"))
        proofs, unproven = _proofs(syntax, found, main, around, notes)
    targets, unread = registry.find_targets(syntax, targets_listed)
    notes.unknown += unread
    wiring = notes.tried("wiring", lambda: serving.read_wiring(syntax))
    llama = registry.llama_target(targets)
    capture = None
    if wiring is None or llama is None or llama.default_layers is None:
        notes.unknown.append(
            Unknown("capture", "what a Llama target captures is not understood", registry.REGISTRY)
        )
    else:
        capture = Capture(llama.default_layers, tuple(r.key for r in wiring.ids), 0, wiring.graphs_source)
    reported = notes.tried("log", lambda: serving.read_log(syntax))
    methods = registry.read_methods(syntax)
    if methods is None:
        notes.unknown.append(Unknown("algorithms", "the methods are not understood", registry.SPECULATIVE))
    notes.unknown += unread_files(syntax)
    pin = tree.requirement("transformers")
    facts = VllmFacts(
        release=None if release is None else release[0],
        drafter=main,
        vocabulary=vocabulary,
        zero_filled=(),
        zero_filled_source=notes.tried("zero_filled", lambda: _loaded_exactly(syntax)),
        capture=capture,
        acceptance=reported[1] if reported else None,
        config_checked=None,
        config_source=Source(pin[1], pin[2], pin[0]) if pin else None,
        drafters=drafters,
        targets=targets,
        wiring=wiring,
        algorithms=None if methods is None else Algorithms(tuple(sorted(methods[0])), {}, methods[1]),
        log=reported[0] if reported else None,
        metrics=reported[2] if reported else (),
        meta_info=(),
        unknown=tuple(notes.unknown),
        undescribed=unproven,
        translation=translation,
        allowed=notes.tried("allowed", lambda: registry.read_allowed(syntax)),
        proofs=proofs,
    )
    return facts.with_classes([composed("vllm", proof.assigned, False) for proof in proofs])


def _proofs(
    syntax: Syntax,
    found: list[tuple[ClassRef, DrafterClass]],
    main: DrafterClass | None,
    around: Surroundings,
    notes: _Notes,
) -> tuple[tuple[Proof, ...], dict[str, str]]:
    """The variants of every EAGLE-3 class, and, by architecture, why some have none."""
    proofs: list[Proof] = []
    unproven: dict[str, str] = {}
    for cls, drafter in found:
        try:
            proofs.append(assign(syntax, cls, drafter, "EAGLE-3", around))
        except UnprovenError as error:
            if drafter == main:
                notes.unknown.append(Unknown(error.fact, error.reason, str(cls.source)))
            else:
                unproven |= dict.fromkeys(drafter.architectures, error.reason)
    return tuple(proofs), unproven


def _config_rules(syntax: Syntax) -> list[ConstructionRule]:
    """What is refused before the class is looked for: a config of no type, an architecture that is not registered.

    pydantic, which checks the engine's arguments, reports both as errors of its own.
    """
    rules = []
    configs, models = syntax.module(_CONFIGS), syntax.module(registry.REGISTRY)
    read_by = configs.matching("AutoConfig.from_pretrained(") if configs else None
    refused = models.matching("Model architectures {architectures} are not supported") if models else None
    if read_by is not None:
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        rules.append(ConstructionRule("model_type stated", "ValidationError", read_by, message))
    if refused is not None:
        message = "Model architectures {architectures} are not supported for now."
        rules.append(ConstructionRule("architecture registered", "ValidationError", refused, message))
    return rules


def _heads_rule(syntax: Syntax) -> ConstructionRule | None:
    """The engine's own check of heads and ranks, made before any class is built."""
    module = syntax.module(_MODEL_CONFIG)
    source = module.matching("Total number of attention heads (") if module else None
    if source is None:
        return None
    message = (
        "Total number of attention heads ({num_attention_heads}) must be divisible by tensor parallel size "
        "({tp_size})."
    )
    # Raised while pydantic checks the config, which reports it as its own error.
    return ConstructionRule("heads divisible", "ValidationError", source, message)


def _vocabulary(syntax: Syntax) -> VocabularyPadding:
    module = syntax.module(_EMBEDDING)
    line = module.matching("DEFAULT_VOCAB_PADDING_SIZE = ") if module else None
    if line is None:
        raise UnreadableError("how vocabularies are padded is not understood", Source(_EMBEDDING, 1, ""))
    return VocabularyPadding(int(line.text.rpartition("=")[2]), False, line)


def _loaded_exactly(syntax: Syntax) -> Source:
    """Where a tensor of another shape is refused; nothing is filled up."""
    module = syntax.module(LINEAR)
    line = module.matching("assert param_data.shape == loaded_weight.shape") if module else None
    if line is None:
        raise UnreadableError(
            "what happens to a tensor of another shape is not understood", Source(LINEAR, 1, "")
        )
    return line
