"""The simulator's rules against the releases' own `load_weights`, name by name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from eagle3lab.engines.atlas import oracle
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.atlas.oracle import (
    OracleError,
    disagreements,
    parameter_names,
    run_loader,
    simulated,
)
from eagle3lab.engines.atlas.oracle_names import families, generated, layers_of, offers
from eagle3lab.engines.extract.sglang.tree import open_tree
from eagle3lab.engines.extract.syntax import Syntax
from eagle3lab.engines.facts import DrafterRules, NameRules, Parameter
from tests.extract.trees import INSTALLED, LOADER, small_copy, syntax_of

NAMES = [*families(), *generated(1500)]


def rules_of(release: str) -> tuple[NameRules, tuple[Parameter, ...]]:
    facts = release_facts(release)
    assert facts.names is not None and facts.parameters is not None
    return facts.names, facts.parameters


@pytest.mark.engine
@pytest.mark.parametrize("release", INSTALLED)
def test_simulator_and_release_agree_on_every_name(release: str) -> None:
    assert disagreements(syntax_of(release), *rules_of(release), NAMES) == []


def others_of(release: str) -> dict[str, DrafterRules]:
    return {other.drafter.name: other for other in release_facts(release).others}


@pytest.mark.engine
@pytest.mark.parametrize("release", INSTALLED)
def test_every_other_class_agrees_too(release: str) -> None:
    """Each on a sample of the made-up names; `make atlas-check` takes all, and every release."""
    compared = others_of(release)
    expected = {"LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"}
    if release == "0.5.23":
        expected |= {"Eagle3DeepseekV2ForCausalLM", "MistralForCausalLMEagle"}
    assert set(compared) == expected
    sample = [*families()[::5], *generated(100)]
    for name, other in compared.items():
        asked, layers = offers(sample, other.names), layers_of([rule.rule for rule in other.construction])
        wrong = disagreements(
            syntax_of(release), other.names, other.parameters, asked, drafter=name, layers=layers
        )
        assert wrong == [], name


@pytest.mark.engine
def test_pairs_and_their_halves() -> None:
    """What the class with low-rank attention does with its first projections, by its own code."""
    other = others_of("0.5.23")["Eagle3DeepseekV2ForCausalLM"]
    known = parameter_names(other.parameters)
    start = "layers.0.self_attn."
    q, kv = start + "q_a_proj.weight", start + "kv_a_proj_with_mqa.weight"
    fused = "model.midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"
    asked = [
        q, kv, (q, kv), (kv, q), (q, q, kv), (q, kv, q), (q, kv.replace("layers.0", "midlayer")),
        "q_a_proj.kv_a_proj_with_mqa",
        start + "fused_qkv_a_proj_with_mqa.weight", start + "q_a_proj.bias",
    ]  # fmt: skip
    fates = run_loader(syntax_of("0.5.23"), known, asked, drafter=other.drafter.name)
    joined, lost = ("loaded", fused, None), ("nothing",)
    assert fates == [lost, lost, joined, joined, joined, joined, joined, ("raised", "KeyError"), lost, lost]
    assert fates == [simulated(offer, other.names, set(known)) for offer in asked]
    # Without the rule, or with its parts turned round, the simulator would say something else.
    (rule,) = other.names.joined
    without = dataclasses.replace(other.names, joined=())
    assert [simulated(offer, without, set(known)) for offer in asked] != fates
    assert rule.parts == ("q_a_proj", "kv_a_proj_with_mqa")


@pytest.mark.engine
def test_the_names_reach_every_outcome() -> None:
    rules, parameters = rules_of("0.5.23")
    known = parameter_names(parameters)
    fates = run_loader(syntax_of("0.5.23"), known, NAMES)
    reached = {fate[1] for fate in fates if fate[0] == "loaded"}
    assert reached == set(known)
    assert {fate[2] for fate in fates if fate[0] == "loaded"} == {None, "q", "k", "v", 0, 1}
    counts = Counter(fate[0] for fate in fates)
    assert counts.keys() == {"loaded", "nothing", "token map"} and min(counts.values()) > 5
    assert fates == [simulated(name, rules, set(known)) for name in NAMES]


@pytest.mark.engine
def test_wrong_rules_are_found_out() -> None:
    rules, parameters = rules_of("0.5.23")
    known = parameter_names(parameters)
    fates = run_loader(syntax_of("0.5.23"), known, NAMES)

    def wrong(changed: NameRules) -> int:
        return sum(simulated(n, changed, set(known)) != fate for n, fate in zip(NAMES, fates, strict=True))

    assert wrong(rules) == 0
    # Without the rule that skips t2d its names are dropped all the same, so its absence cannot be seen.
    for table, entries in (
        ("renames", rules.renames),
        ("special", rules.special[:1]),
        ("stacked", rules.stacked),
    ):
        for entry in entries:
            fewer = tuple(other for other in getattr(rules, table) if other != entry)
            assert wrong(dataclasses.replace(rules, **{table: fewer})), entry
    assert wrong(dataclasses.replace(rules, prefixes=rules.prefixes[:1]))
    assert wrong(dataclasses.replace(rules, unmatched="dropped with a warning"))
    assert wrong(dataclasses.replace(rules, unmatched_shard="KeyError"))
    assert disagreements(syntax_of("0.5.23"), *rules_of("0.5.9"), NAMES)


def test_a_loader_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = "        for name, loaded_weight in weights:\n"
    small_copy(tmp_path, {LOADER: (loop, f"        while True:\n            pass\n{loop}")})
    monkeypatch.setattr(oracle, "LIMIT_SECONDS", 1)
    with pytest.raises(OracleError, match="longer than 1 s"):
        run_loader(Syntax(open_tree(tmp_path)), ["lm_head.weight"], ["x"])


def test_a_loader_that_raises_says_so(tmp_path: Path) -> None:
    loop = "        for name, loaded_weight in weights:\n"
    small_copy(tmp_path, {LOADER: (loop, f"{loop}            raise KeyError(name)\n")})
    assert run_loader(Syntax(open_tree(tmp_path)), ["lm_head.weight"], ["x"]) == [("raised", "KeyError")]


def test_generated_names_are_the_same_every_time() -> None:
    assert generated(50, seed=3) == generated(50, seed=3) != generated(50, seed=4)
