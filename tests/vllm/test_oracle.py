"""The simulator's rules against the releases' own loaders, name by name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from eagle3lab.engines.atlas import oracle
from eagle3lab.engines.atlas.oracle import OracleError
from eagle3lab.engines.atlas.oracle_names import families, generated
from eagle3lab.engines.atlas.vllm_oracle import (
    EDGES,
    SWITCHES,
    disagreements,
    loader_source,
    parameter_names,
    run_loader,
    simulated,
)
from eagle3lab.engines.facts.vllm import ModuleNames
from tests.vllm.sources import SAMPLE, facts, syntax

pytestmark = pytest.mark.engine
NAMES = [*EDGES, *families(), *generated(200)]
CLASSES = [(release, rules.drafter.name) for release in SAMPLE for rules in facts(release).classes()]


@pytest.mark.parametrize(("release", "drafter"), CLASSES)
def test_simulator_and_release_agree_on_every_name(release: str, drafter: str) -> None:
    rules = next(rules for rules in facts(release).classes() if rules.drafter.name == drafter)
    assert disagreements(syntax(release), rules.drafter, rules.names, rules.parameters, NAMES) == []


def test_wrong_rules_are_found_out() -> None:
    rules = facts("0.32.0").classes()[0]
    known = frozenset(parameter_names(rules.parameters, SWITCHES))
    fates = run_loader(loader_source(syntax("0.32.0"), rules.drafter), sorted(known), NAMES, SWITCHES)
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
        return sum(simulated(name, changed, known, SWITCHES) != fate for name, fate in pairs)

    names = rules.names
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


def test_a_loader_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "LIMIT_SECONDS", 1)
    source = "class Inner(Module): pass\nclass Drafter(Module):\n    def load_weights(self, weights):\n"
    with pytest.raises(OracleError, match="longer than 1 s"):
        run_loader(f"{source}        while True: pass\n", [], ["x"], ())
    assert run_loader(f"{source}        raise KeyError(1)\n", [], ["x"], ()) == [("raised", "KeyError")]
