"""The simulator's rules against the releases' own loaders, name by name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from eagle3lab.engines.atlas.data import digests
from eagle3lab.engines.extract.syntax import ClassRef, Syntax
from eagle3lab.engines.facts import DrafterRules, ModuleNames
from eagle3lab.engines.proof.constructors import differences
from eagle3lab.engines.proof.cut_out import constructors
from eagle3lab.engines.proof.loaders import (
    SWITCHES,
    Loader,
    Setting,
    disagreements,
    parameter_names,
    predicted,
)
from eagle3lab.engines.proof.names import EDGES, families, generated
from eagle3lab.engines.proof.variant import Surroundings, engine_with
from tests.vllm.sources import SAMPLE, facts, syntax

pytestmark = pytest.mark.engine
NAMES = [*EDGES, *families(), *generated(200)]
CLASSES = [(release, rules.drafter.name) for release in SAMPLE for rules in facts(release).classes()]


def class_in(tree: Syntax, rules: DrafterRules) -> ClassRef:
    module = tree.module(rules.drafter.module.removeprefix("vllm.").replace(".", "/") + ".py")
    assert module is not None
    return module.classes[rules.drafter.name]


@pytest.mark.parametrize(("release", "drafter"), CLASSES)
def test_every_class_agrees_on_names_and_configs(release: str, drafter: str) -> None:
    rules = next(rules for rules in facts(release).classes() if rules.drafter.name == drafter)
    tree, known = syntax(release), facts(release)
    cls = class_in(tree, rules)
    assert disagreements(Loader(tree, cls), [rules], NAMES) == [[]]
    assert known.vocabulary is not None
    around = Surroundings("vllm", known.vocabulary, False)
    code = constructors(tree, cls)
    assert differences(code, [engine_with(rules, around)]) == [[]]
    assert code.digest in digests("vllm")
    # Without any one of its parameters a build is found out: it is really compared.
    fewer = [
        dataclasses.replace(rules, parameters=tuple(one for one in rules.parameters if one is not left_out))
        for left_out in rules.parameters
    ]
    assert all(differences(code, [engine_with(one, around) for one in fewer]))


def test_wrong_rules_are_found_out() -> None:
    rules = facts("0.32.0").classes()[0]
    setting, tree = Setting(on=SWITCHES), syntax("0.32.0")
    known = frozenset(parameter_names("vllm", rules.parameters, setting))
    fates = Loader(tree, class_in(tree, rules)).run(sorted(known), NAMES, setting)
    # The names reach every parameter, every shard and every outcome.
    assert {fate[1] for fate in fates if fate[0] == "loaded"} == known
    assert {fate[2] for fate in fates if fate[0] == "loaded"} == {None, "q", "k", "v", 0, 1}
    outcomes = Counter(fate if fate[0] == "raised" else fate[:1] for fate in fates)
    assert outcomes.keys() == {
        ("loaded",),
        ("nothing",),
        ("raised", "ValueError"),
        ("raised", "AttributeError"),
    }
    assert min(outcomes.values()) > 4

    def wrong(changed: ModuleNames) -> int:
        pairs = zip(NAMES, fates, strict=True)
        return sum(predicted(name, changed, known, setting) != fate for name, fate in pairs)

    names = rules.names
    assert isinstance(names, ModuleNames)
    assert wrong(names) == 0
    for table in ("renames", "special", "stacked"):
        for entry in getattr(names, table):
            if entry is names.special[-1]:
                continue  # mask_hidden is skipped by a second rule, too
            fewer = tuple(other for other in getattr(names, table) if other is not entry)
            changed: Any = {table: fewer}
            assert wrong(dataclasses.replace(names, **changed)), entry
    changes: list[dict[str, Any]] = [
        {"optional": ()},
        {"once": False},
        {"missing": "KeyError"},
        {"fused_missing": None},
        {"inner_missing": "KeyError"},
        {"token_map": None},
        {"own_prefix": None},
        {"unused": ()},
    ]
    for change in changes:
        assert wrong(dataclasses.replace(names, **change)), change
