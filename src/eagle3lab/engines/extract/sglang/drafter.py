"""The class that serves EAGLE-3 drafters: its parameters, sizes, switches, and what stops it from being built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.sglang.construct import Builder
from eagle3lab.engines.extract.sglang.values import Config, Module
from eagle3lab.engines.extract.syntax import ClassRef, Syntax
from eagle3lab.engines.extract.values import Built, Leaf, named_sizes
from eagle3lab.engines.facts import ConstructionRule, DrafterKind, Parameter, Size, Source, Switch

_FIRST_STRICT = (5, 4)
_NOT_NULL = """\
Validation error for field 'vocab_size':
    TypeError: Field 'vocab_size' expected int, got NoneType (value: None)"""
_HEADS = """\
Class validation error for validator 'validate_architecture':
    ValueError: The hidden size ({hidden_size}) is not a multiple of \
the number of attention heads ({num_attention_heads})."""


def build_drafter(syntax: Syntax, cls: ClassRef, kind: DrafterKind = "EAGLE-3") -> Built:
    """Follow the constructors of `cls`, which serves heads of this kind.

    Raises:
        UnreadableError: A parameter depends on something that cannot be followed.
    """
    builder = Builder(syntax, cls.name, joins_states=kind == "EAGLE-3")
    module = builder.build(cls, {"config": Config(), "0": Config()})
    borne_out = {rule.size for rule in builder.checks.rules if rule.rule == "key not null"}
    for path, source in builder.assumed.items():
        if path not in borne_out:
            raise UnreadableError(f"the parameters depend on whether {path} is null", source)
    sizes: dict[str, Size] = {}
    switches = dict(builder.checks.switches)
    parameters = []
    for name, leaf in (*_named(module, "", set()), *_orphans(builder, module)):
        rows, columns, later = (
            named_sizes(part, sizes) for part in (leaf.rows, leaf.columns, leaf.later_columns)
        )
        when = None
        if leaf.when is not None:
            when = leaf.when.name
            switches.setdefault(when, leaf.when)
        parameters.append(
            Parameter(name, leaf.kind, rows, columns, later, when, leaf.source, leaf.first_layer)
        )
    if not parameters:
        raise UnreadableError("its constructor makes no parameters", cls.source)
    for size in builder.checks.sizes:
        sizes.setdefault(size.name, size)
    rules = (*_before(syntax), *builder.checks.rules, *_after(syntax, builder, switches, parameters))
    return Built(tuple(parameters), sizes, switches, rules, tuple(dict.fromkeys(builder.unfollowed_keys)))


def _named(module: Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    """Parameters with their names; one that is reached twice counts where it is reached first."""
    if id(module) in seen:
        return
    seen.add(id(module))
    # A module's own parameters come before those of its modules.
    for name, value in module.attributes.items():
        if isinstance(value, Leaf):
            yield prefix + name, value
    for name, value in module.attributes.items():
        if isinstance(value, Module):
            yield from _named(value, f"{prefix}{name}.", seen)


def _orphans(builder: Builder, module: Module) -> Iterator[tuple[str, Leaf]]:
    """The tied module's parameters where its owner was replaced afterwards: then it is no longer the embedding."""
    reached = {id(leaf) for _, leaf in _named(module, "", set())}
    for holder, name, tied, switch in builder.tied:
        for key, leaf in tied.attributes.items():
            if holder is module and isinstance(leaf, Leaf) and id(leaf) not in reached:
                yield f"{name}.{key}", replace(leaf, when=switch)


def _before(syntax: Syntax) -> Iterator[ConstructionRule]:
    """What is checked before any constructor runs: by transformers, when the config is read."""
    source = _config_line(syntax)
    if source is not None:
        message = "Unrecognized model. Should have a `model_type` key in its config.json."
        yield ConstructionRule("model_type stated", "ValueError", message, None, (), None, source)
    strict = _strict_config(syntax)
    if strict is not None:
        exception = "StrictDataclassClassValidationError"
        yield ConstructionRule("hidden size multiple of heads", exception, _HEADS, None, (), None, strict)


def _after(
    syntax: Syntax, builder: Builder, switches: dict[str, Switch], parameters: list[Parameter]
) -> Iterator[ConstructionRule]:
    """What is checked when the logits processor gets its copy of the config, and where a null size ends."""
    tied = next((s for s in builder.checks.switches.values() if s.any == ("tie_word_embeddings",)), None)
    head = next((p for p in parameters if p.name == "lm_head.weight"), None)
    if builder.checks.head_config is not None and _strict_config(syntax) is not None and head is not None:
        own = switches[head.when] if head.when else None
        if own is not None:
            tied = tied or Switch("tied", own.source, own.none, (), ())
            switches["tied"] = tied
            yield ConstructionRule(
                "draft_vocab_size not null",
                "StrictDataclassFieldValidationError",
                _NOT_NULL,
                None,
                (),
                "tied",
                builder.checks.head_config,
            )
    if head is not None and head.rows == ("draft_vocab_size",):
        message = "unsupported operand type(s) for +: 'NoneType' and 'int'"
        yield ConstructionRule(
            "draft_vocab_size not null", "TypeError", message, None, (), head.when, head.source
        )


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


def _strict_config(syntax: Syntax) -> Source | None:
    pin = transformers_pin(syntax)
    return pin[0] if pin is not None and pin[1] else None


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
