"""An SGLang source tree read as the facts of a release."""

from __future__ import annotations

import ast
from pathlib import Path

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.model import ReleaseFacts, Unknown
from eagle3lab.engines.extract.reading import reading, unread_files
from eagle3lab.engines.extract.sglang.capture import find_targets, llama_capture, read_wiring
from eagle3lab.engines.extract.sglang.discover import eagle3_class, find_drafters
from eagle3lab.engines.extract.sglang.drafter import build_drafter, transformers_pin
from eagle3lab.engines.extract.sglang.from_target import from_target
from eagle3lab.engines.extract.sglang.loader import read_loader
from eagle3lab.engines.extract.sglang.others import read_others, switches_asked_for
from eagle3lab.engines.extract.sglang.reporting import (
    read_algorithms,
    read_log,
    read_metrics,
    read_server_info,
)
from eagle3lab.engines.extract.sglang.tree import open_tree
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, dotted_name
from eagle3lab.engines.extract.values import Built
from eagle3lab.engines.facts import FromTarget, NameRules, Source, VocabularyPadding

_NOTHING = Built((), {}, {}, ())
_ZERO_FILL = "pad_or_narrow_weight"
_KINDS = {"MergedColumnParallelLinear": "merged column", "RowParallelLinear": "row parallel"}


def read_tree(path: Path) -> ReleaseFacts:
    """See `eagle3lab.engines.extract.extract`."""
    with reading(path):
        return _read(path)


def _read(path: Path) -> ReleaseFacts:
    tree = open_tree(path)
    syntax = Syntax(tree)
    unknown: list[Unknown] = []
    release = tree.release()
    if release is None:
        unknown.append(Unknown("release", "the package does not say which release it is", "version.py"))
    drafters = find_drafters(syntax)
    found = eagle3_class(syntax, drafters)
    if found is None:
        unknown.append(Unknown("drafter", "no class for EAGLE-3 drafters with a Llama layer", "models/"))
    cls = None if found is None else found[0]
    names, built = _rules(syntax, cls, unknown), _built(syntax, cls, unknown)
    switches = {**switches_asked_for(names), **built.switches}
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
    others, undescribed = read_others(syntax, drafters, cls)
    unknown += unread_files(syntax)
    return ReleaseFacts(
        release=None if release is None else release[0],
        drafter=None if found is None else found[1],
        names=names,
        sizes=built.sizes,
        switches=switches,
        parameters=built.parameters or None,
        construction=built.construction,
        vocabulary=vocabulary,
        zero_filled=zero_filled,
        zero_filled_source=zero_source,
        from_target=_from_target(syntax, cls, unknown),
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
        others=others,
        undescribed=undescribed,
        server_info=read_server_info(syntax),
    )


def _rules(syntax: Syntax, cls: ClassRef | None, unknown: list[Unknown]) -> NameRules | None:
    if cls is None:
        unknown.append(Unknown("names", "there is no class to read them from", "models/"))
        return None
    try:
        return read_loader(syntax, cls)
    except UnreadableError as error:
        unknown.append(Unknown("names", error.reason, str(error.source)))
        return None


def _built(syntax: Syntax, cls: ClassRef | None, unknown: list[Unknown]) -> Built:
    if cls is None:
        unknown.append(Unknown("parameters", "there is no class to read them from", "models/"))
        return _NOTHING
    try:
        return build_drafter(syntax, cls)
    except UnreadableError as error:
        unknown.append(Unknown("parameters", error.reason, str(error.source)))
        return _NOTHING


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


def _from_target(syntax: Syntax, cls: ClassRef | None, unknown: list[Unknown]) -> tuple[FromTarget, ...]:
    if cls is None:
        unknown.append(Unknown("from_target", "the class takes no embedding from the target", "models/"))
        return ()
    try:
        return from_target(syntax, cls)
    except UnreadableError as error:
        unknown.append(Unknown("from_target", error.reason, str(error.source)))
        return ()
