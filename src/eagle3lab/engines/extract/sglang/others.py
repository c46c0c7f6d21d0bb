"""The drafter classes beside the one with a Llama layer: read like it, each on its own.

One that cannot be read is named with the reason; it does not make anything else unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.model import Drafter
from eagle3lab.engines.extract.sglang.discover import registered
from eagle3lab.engines.extract.sglang.drafter import build_drafter
from eagle3lab.engines.extract.sglang.from_target import both_from_target, from_target
from eagle3lab.engines.extract.sglang.loader import read_loader
from eagle3lab.engines.extract.syntax import ClassRef, Syntax
from eagle3lab.engines.facts import DrafterClass, DrafterRules, NameRules, Switch


def read_others(
    syntax: Syntax, drafters: Iterable[Drafter], main: ClassRef | None
) -> tuple[tuple[DrafterRules, ...], dict[str, str]]:
    """The rules of every EAGLE-3 and EAGLE-1 class but `main`, and why those that are missing could not be read."""
    described: list[DrafterRules] = []
    undescribed: dict[str, str] = {}
    for drafter in drafters:
        if drafter.kind == "other" or (main is not None and drafter.name == main.name):
            continue
        module = syntax.module(drafter.source.file)
        cls = module.classes.get(drafter.name) if module else None
        if cls is None:
            continue
        try:
            described.append(_rules(syntax, drafter, cls))
        except UnreadableError as error:
            undescribed[drafter.name] = f"{error.reason} ({error.source})"
    return tuple(described), undescribed


def _rules(syntax: Syntax, drafter: Drafter, cls: ClassRef) -> DrafterRules:
    names = read_loader(syntax, cls)
    built = build_drafter(syntax, cls, drafter.kind)
    supplied = both_from_target(syntax, cls) if drafter.kind == "EAGLE-1" else from_target(syntax, cls)
    source = registered(cls.module)[drafter.name]
    return DrafterRules(
        drafter.kind,
        DrafterClass(drafter.name, cls.module.dotted, (drafter.name,), (), source),
        names,
        built.sizes,
        {**switches_asked_for(names), **built.switches},
        built.parameters,
        built.construction,
        supplied,
        built.unfollowed_keys,
    )


def switches_asked_for(names: NameRules | None) -> dict[str, Switch]:
    """The switches that name rules depend on: whether the embeddings are tied."""
    special = names.special if names else ()
    return {
        one.when: Switch(one.when, one.source, ("tie_word_embeddings",), (), ())
        for one in special
        if one.when
    }
