"""An SGLang source tree read as the facts of a release."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from eagle3lab.engines.atlas.data import digests
from eagle3lab.engines.atlas.variants import Proof, composed
from eagle3lab.engines.extract.model import Drafter, ReleaseFacts, Unknown
from eagle3lab.engines.extract.reading import reading, unread_files
from eagle3lab.engines.extract.sglang.capture import find_targets, llama_capture, read_wiring
from eagle3lab.engines.extract.sglang.discover import eagle3_class, find_drafters, registered
from eagle3lab.engines.extract.sglang.reporting import (
    read_algorithms,
    read_log,
    read_metrics,
    read_server_info,
)
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, dotted_name
from eagle3lab.engines.extract.tree import open_sglang
from eagle3lab.engines.facts import ConstructionRule, DrafterClass, Source, VocabularyPadding
from eagle3lab.engines.proof import Surroundings, UnprovenError, assign

_FIRST_STRICT = (5, 4)
_HEADS = """\
Class validation error for validator 'validate_architecture':
    ValueError: The hidden size ({hidden_size}) is not a multiple of \
the number of attention heads ({num_attention_heads})."""
_ZERO_FILL = "pad_or_narrow_weight"
_KINDS = {"MergedColumnParallelLinear": "merged column", "RowParallelLinear": "row parallel"}


def read_tree(path: Path) -> ReleaseFacts:
    """See `eagle3lab.engines.extract.extract`."""
    with reading(path):
        return _read(path)


def _read(path: Path) -> ReleaseFacts:
    tree = open_sglang(path)
    syntax = Syntax(tree)
    unknown: list[Unknown] = []
    release = tree.release()
    if release is None:
        unknown.append(Unknown("release", "the package does not say which release it is", "version.py"))
    drafters = find_drafters(syntax)
    found = eagle3_class(syntax, drafters)
    if found is None:
        unknown.append(Unknown("drafter", "no class for EAGLE-3 drafters with a Llama layer", "models/"))
    targets, more = find_targets(syntax)
    wiring, wiring_unknown = read_wiring(syntax)
    log, acceptance, log_unknown = read_log(syntax)
    algorithms, algorithms_unknown = read_algorithms(syntax)
    unknown += [*more, *wiring_unknown, *log_unknown, *algorithms_unknown]
    capture = llama_capture(targets, wiring, syntax)
    if capture is None:
        unknown.append(
            Unknown("capture", "what a Llama target captures is not understood", "models/llama.py")
        )
    vocabulary = _vocabulary(syntax, unknown)
    zero_filled, zero_source = _zero_filled(syntax, unknown)
    pin = transformers_pin(syntax)
    if pin is None:
        reason = "the required transformers is not stated; its config classes are taken not to check values"
        unknown.append(Unknown("config_checked", reason, "pyproject.toml"))
    metrics, meta_info = read_metrics(syntax)
    proofs, undescribed = _proofs(syntax, drafters, found, vocabulary, bool(pin and pin[1]), unknown)
    unknown += unread_files(syntax)
    facts = ReleaseFacts(
        release=None if release is None else release[0],
        drafter=None if found is None else found[1],
        vocabulary=vocabulary,
        zero_filled=zero_filled,
        zero_filled_source=zero_source,
        capture=capture,
        acceptance=acceptance,
        config_checked=None if pin is None else pin[1],
        config_source=None if pin is None else pin[0],
        drafters=drafters,
        targets=targets,
        wiring=wiring,
        algorithms=algorithms,
        log=log,
        metrics=metrics,
        meta_info=meta_info,
        unknown=tuple(unknown),
        undescribed=undescribed,
        server_info=read_server_info(syntax),
        proofs=proofs,
    )
    checked = bool(facts.config_checked)
    return facts.with_classes([composed("sglang", proof.assigned, checked) for proof in proofs])


def _proofs(
    syntax: Syntax,
    drafters: tuple[Drafter, ...],
    main: tuple[ClassRef, DrafterClass] | None,
    vocabulary: VocabularyPadding | None,
    checked: bool,
    unknown: list[Unknown],
) -> tuple[tuple[Proof, ...], dict[str, str]]:
    """The variants of the EAGLE-3 and EAGLE-1 classes, the one with a Llama layer first, and why the rest has none."""
    if main is None:
        unknown += [
            Unknown(fact, "there is no class to read them from", "models/")
            for fact in ("names", "parameters")
        ]
    if vocabulary is None:
        return (), {}
    around = Surroundings("sglang", vocabulary, checked, tuple(_before(syntax)), digests=digests("sglang"))
    first: list[Proof] = []
    others: list[Proof] = []
    unproven: dict[str, str] = {}
    for one in drafters:
        module = syntax.module(one.source.file)
        cls = module.classes.get(one.name) if module else None
        if one.kind == "other" or module is None or cls is None:
            continue
        is_main = main is not None and one.name == main[1].name
        drafter = main[1] if main is not None and is_main else _registered(module, one)
        try:
            (first if is_main else others).append(assign(syntax, cls, drafter, one.kind, around))
        except UnprovenError as error:
            if is_main:
                unknown.append(Unknown(error.fact, error.reason, str(cls.source)))
            else:
                unproven[one.name] = f"{error.reason} ({cls.source})"
    return (*first, *others), unproven


def _registered(module: Module, drafter: Drafter) -> DrafterClass:
    return DrafterClass(drafter.name, module.dotted, (drafter.name,), (), registered(module)[drafter.name])


def _before(syntax: Syntax) -> Iterator[ConstructionRule]:
    """What is checked before any constructor runs: by transformers, when the config is read."""
    source = _config_line(syntax)
    if source is not None:
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        yield ConstructionRule("model_type stated", "ValueError", source, message)
    pin = transformers_pin(syntax)
    if pin is not None and pin[1]:
        exception = "StrictDataclassClassValidationError"
        yield ConstructionRule("hidden size multiple of heads", exception, pin[0], _HEADS)


def _vocabulary(syntax: Syntax, unknown: list[Unknown]) -> VocabularyPadding | None:
    """How vocabularies are padded on a GPU."""
    file = "layers/vocab_parallel_embedding.py"
    module = syntax.module(file)
    default = module.matching("DEFAULT_VOCAB_PADDING_SIZE = ") if module else None
    number = default.text.rpartition("=")[2].strip() if default else ""
    if module is None or default is None or not number.isdigit():
        unknown.append(Unknown("vocabulary", "the padding is not understood", file))
        return None
    for node in ast.walk(module.tree):
        if isinstance(node, ast.If) and "self.tp_size != 0" in ast.unparse(node.test):
            if "_is_cpu" in ast.unparse(node.test):
                break
            return VocabularyPadding(int(number), True, module.source(node))
    return VocabularyPadding(int(number), False, default)


def _zero_filled(syntax: Syntax, unknown: list[Unknown]) -> tuple[tuple[str, ...], Source | None]:
    """Kinds of parameters whose loader fills a short tensor up with zeros, and where it does."""
    linear = syntax.module("layers/linear.py")
    if linear is None:
        unknown.append(Unknown("zero_filled_source", "no layers to read", "layers/linear.py"))
        return (), None
    kinds = tuple(
        kind
        for name, kind in _KINDS.items()
        if name in linear.classes and _calls(linear.classes[name], _ZERO_FILL)
    )
    for file in syntax.tree.holding(f"def {_ZERO_FILL}(", "layers/"):
        module = syntax.module(file)
        line = module.matching("Padding with zeros") if module and kinds else None
        if line is not None:
            return kinds, line
    merged = linear.classes.get("MergedColumnParallelLinear")
    return kinds, linear.line(1) if merged is None else merged.source


def _calls(cls: ClassRef, name: str) -> bool:
    loader = cls.method("weight_loader")
    return loader is not None and name in {
        dotted_name(n.func) for n in ast.walk(loader) if isinstance(n, ast.Call)
    }


def transformers_pin(syntax: Syntax) -> tuple[Source, bool] | None:
    """The line that requires transformers, and whether that one's config classes check what they are given.

    They do from transformers 5.4 on. None if the requirement cannot be seen, or names no version.
    """
    found = syntax.tree.requirement("transformers")
    version = re.search(r"transformers\s*[=<>~!]+\s*(\d+)\.(\d+)", found[0]) if found else None
    if found is None or version is None:
        return None
    text, file, line = found
    return Source(file, line, text), (int(version[1]), int(version[2])) >= _FIRST_STRICT


def _config_line(syntax: Syntax) -> Source | None:
    """Where the drafter's config.json is read."""
    for file in syntax.tree.holding("AutoConfig.from_pretrained("):
        module = syntax.module(file) if "hf_transformers" in file else None
        if module is None:
            continue
        parser = module.classes.get("HfModelConfigParser")
        function = parser.method("parse") if parser else module.functions.get("get_config")
        if function is not None:
            words = "config = AutoConfig.from_pretrained("
            return module.matching(words, function.lineno, function.end_lineno)
    return None
