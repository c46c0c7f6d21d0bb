"""Variants against the releases' own `load_weights` and constructors, name by name and config by config."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.engines.atlas.data import digests, release_facts
from eagle3lab.engines.atlas.variants import classes, facts_of, family, places
from eagle3lab.engines.extract.syntax import ClassRef, Syntax
from eagle3lab.engines.extract.tree import open_sglang
from eagle3lab.engines.facts import DrafterRules, NameRules
from eagle3lab.engines.proof import cut_out
from eagle3lab.engines.proof.constructors import differences
from eagle3lab.engines.proof.cut_out import CannotRunError, constructors
from eagle3lab.engines.proof.loaders import Loader, Setting, disagreements, parameter_names, predicted
from eagle3lab.engines.proof.names import Offer, families, generated, offers
from eagle3lab.engines.proof.variant import Surroundings, engine_with, rules_of
from tests.extract.trees import INSTALLED, LOADER, small_copy, syntax_of

NAMES = [*families(), *generated(1500)]
MAIN = "LlamaForCausalLMEagle3"


def rules_in(release: str, drafter: str = MAIN) -> DrafterRules:
    return next(rules for rules in release_facts(release).classes() if rules.drafter.name == drafter)


def class_in(syntax: Syntax, rules: DrafterRules) -> ClassRef:
    module = syntax.module(rules.drafter.module.removeprefix("sglang.srt.").replace(".", "/") + ".py")
    assert module is not None
    return module.classes[rules.drafter.name]


def loader_in(release: str, drafter: str = MAIN) -> Loader:
    syntax = syntax_of(release)
    return Loader(syntax, class_in(syntax, rules_in(release, drafter)))


def around(release: str) -> Surroundings:
    facts = release_facts(release)
    assert facts.vocabulary is not None
    return Surroundings("sglang", facts.vocabulary, bool(facts.config_checked))


@pytest.mark.engine
@pytest.mark.parametrize("release", INSTALLED)
def test_every_class_agrees_on_names_and_configs(release: str) -> None:
    """Each on a sample of the names; `make atlas-check` takes all, and every release."""
    known = [rules.drafter.name for rules in release_facts(release).classes()]
    expected = {MAIN, "LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"}
    if release == "0.5.23":
        expected |= {"Eagle3DeepseekV2ForCausalLM", "MistralForCausalLMEagle"}
    assert set(known) == expected
    for name in known:
        rules = rules_in(release, name)
        sample = NAMES if name == MAIN else [*families()[::5], *generated(100)]
        asked = offers(sample, [pair.parts for pair in rules.names.joined])
        assert disagreements(loader_in(release, name), [rules], asked) == [[]], name
        syntax = syntax_of(release)
        code = constructors(syntax, class_in(syntax, rules))
        assert differences(code, [engine_with(rules, around(release))]) == [[]], name


@pytest.mark.engine
@pytest.mark.parametrize("release", INSTALLED)
def test_constructors_tell_variants_apart(release: str) -> None:
    """Of all builds of a class only the release's own says what its constructors do."""
    syntax = syntax_of(release)
    for rules in release_facts(release).classes():
        known = family("sglang", rules.drafter.name)
        loader = next(iter(known.loaders))
        code = constructors(syntax, class_in(syntax, rules))
        builds = [rules_of(rules.drafter, rules.kind, loader, one, around(release)) for one in known.builds]
        wrong = differences(code, [engine_with(one, around(release)) for one in builds])
        right = [build for build, texts in zip(known.builds, wrong, strict=True) if not texts]
        assert right == [digests("sglang")[code.digest]], rules.drafter.name


@pytest.mark.engine
def test_a_wrong_build_is_found_out() -> None:
    """Every parameter, size, switch and check counts."""
    syntax, rules = syntax_of("0.5.23"), rules_in("0.5.23")
    code, surroundings = constructors(syntax, class_in(syntax, rules)), around("0.5.23")
    changed: list[DrafterRules] = []
    early = ("model_type stated", "hidden size multiple of heads")
    for table in ("parameters", "construction", "from_target"):
        entries = getattr(rules, table)
        for entry in entries:
            if getattr(entry, "rule", "") not in early and not getattr(entry, "checked_config", False):
                changes: dict[str, Any] = {table: tuple(one for one in entries if one is not entry)}
                changed.append(dataclasses.replace(rules, **changes))
    for name, size in rules.sizes.items():
        other = dataclasses.replace(size, present=None, first=(), model_types={}, default=4, fallback=None)
        changed.append(dataclasses.replace(rules, sizes={**rules.sizes, name: other}))
    for name, switch in rules.switches.items():
        if name != "tied":
            never = dataclasses.replace(switch, any=("no such key",), none=(), present=())
            changed.append(dataclasses.replace(rules, switches={**rules.switches, name: never}))
    assert len(changed) > 25
    found = differences(
        code, [engine_with(rules, surroundings), *(engine_with(one, surroundings) for one in changed)]
    )
    assert found[0] == []
    # Vocabularies are padded to a multiple of the ranks here, so that their two checks cannot fail.
    unseen = [n for n, wrong in enumerate(found[1:]) if not wrong]
    assert len(unseen) <= 2, [changed[n] for n in unseen]


def test_variants_are_whole() -> None:
    """Every variant is decoded, says what it is, and has a place for every fact."""
    for engine in ("sglang", "vllm"):
        for name in classes(engine):
            known = family(engine, name)
            for variant in (*known.loaders.values(), *known.builds.values()):
                assert len(variant["about"]) > 20
            for loader in known.loaders:
                for build in known.builds:
                    assert len(list(places(*facts_of(engine, name, loader, build, True)))) > 15
    tables = [table for name in classes("sglang") for table in _tables(name)]
    # One that no release has is marked as such.
    assert {*digests("sglang").values()} == {one for table in tables for one in table if "+" not in one}


def _tables(name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    known = family("sglang", name)
    return known.loaders, known.builds


@pytest.mark.engine
def test_pairs_and_their_halves() -> None:
    """What the class with low-rank attention does with its first projections, by its own code."""
    other = rules_in("0.5.23", "Eagle3DeepseekV2ForCausalLM")
    known = parameter_names("sglang", other.parameters, Setting())
    start = "layers.0.self_attn."
    q, kv = start + "q_a_proj.weight", start + "kv_a_proj_with_mqa.weight"
    fused = "model.midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight"
    asked: list[Offer] = [
        q, kv, (q, kv), (kv, q), (q, q, kv), (q, kv, q), (q, kv.replace("layers.0", "midlayer")),
        "q_a_proj.kv_a_proj_with_mqa",
        start + "fused_qkv_a_proj_with_mqa.weight", start + "q_a_proj.bias",
    ]  # fmt: skip
    fates = loader_in("0.5.23", other.drafter.name).run(known, asked)
    joined, lost = ("loaded", fused, None), ("nothing",)
    assert fates == [lost, lost, joined, joined, joined, joined, joined, ("raised", "KeyError"), lost, lost]
    assert fates == [predicted(offer, other.names, set(known)) for offer in asked]
    # Without the rule, or with its parts turned round, the simulator would say something else.
    (rule,) = other.names.joined
    without = dataclasses.replace(other.names, joined=())
    assert [predicted(offer, without, set(known)) for offer in asked] != fates
    assert rule.parts == ("q_a_proj", "kv_a_proj_with_mqa")


@pytest.mark.engine
def test_the_names_reach_every_outcome() -> None:
    rules = rules_in("0.5.23").names
    known = parameter_names("sglang", rules_in("0.5.23").parameters, Setting())
    fates = loader_in("0.5.23").run(known, NAMES)
    reached = {fate[1] for fate in fates if fate[0] == "loaded"}
    assert reached == set(known)
    assert {fate[2] for fate in fates if fate[0] == "loaded"} == {None, "q", "k", "v", 0, 1}
    counts = Counter(fate[0] for fate in fates)
    assert counts.keys() == {"loaded", "nothing", "token map"} and min(counts.values()) > 5
    assert fates == [predicted(name, rules, set(known)) for name in NAMES]


@pytest.mark.engine
def test_wrong_rules_are_found_out() -> None:
    rules = rules_in("0.5.23").names
    known = parameter_names("sglang", rules_in("0.5.23").parameters, Setting())
    fates = loader_in("0.5.23").run(known, NAMES)

    def wrong(changed: NameRules) -> int:
        return sum(predicted(n, changed, set(known)) != fate for n, fate in zip(NAMES, fates, strict=True))

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
    assert disagreements(loader_in("0.5.23"), [rules_in("0.5.9")], NAMES) != [[]]


def patched_loader(folder: Path, line: str) -> Loader:
    loop = "        for name, loaded_weight in weights:\n"
    syntax = Syntax(open_sglang(small_copy(folder, {LOADER: (loop, line.format(loop=loop))})))
    return Loader(syntax, class_in(syntax, rules_in("0.5.9")))


def test_a_loader_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = patched_loader(tmp_path, "        while True:\n            pass\n{loop}")
    monkeypatch.setattr(cut_out, "LIMIT_SECONDS", 1)
    with pytest.raises(CannotRunError, match="longer than 1 s"):
        endless.run(["lm_head.weight"], ["x"])


def test_a_loader_that_raises_says_so(tmp_path: Path) -> None:
    raising = patched_loader(tmp_path, "{loop}            raise KeyError(name)\n")
    assert raising.run(["lm_head.weight"], ["x"]) == [("raised", "KeyError")]


def test_code_that_runs_has_no_files_and_no_processes(tmp_path: Path) -> None:
    """Nothing that it imports is there, and nothing that opens a file."""
    trap = tmp_path / "trap"
    line = "{{loop}}            import os, subprocess\n            os.system('touch {0}')\n            {1}\n"
    for last in ("subprocess.run(['touch', 'x'])", f"open('{trap}', 'w')", f'eval(\'open("{trap}", "w")\')'):
        loader = patched_loader(tmp_path / str(len(last)), line.format(trap, last))
        loader.run(["lm_head.weight"], ["x"])
        assert not trap.exists()


def test_generated_names_are_the_same_every_time() -> None:
    assert generated(50, seed=3) == generated(50, seed=3) != generated(50, seed=4)
