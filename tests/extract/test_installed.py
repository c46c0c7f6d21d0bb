"""The two installed releases, read: everything as the facts gathered by hand say, every fact in its line."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from eagle3lab.engines.extract import extract
from eagle3lab.engines.facts import sources
from tests.extract.by_hand import facts_by_hand
from tests.extract.trees import INSTALLED, LOADER, change, facts_of, linked_copy, root_of, small_copy


@pytest.mark.parametrize("release", INSTALLED)
def test_what_is_read_is_what_was_found_by_hand(release: str) -> None:
    """Every field, with file, line and text. The order of checks that exclude each other is the only freedom."""
    ours, theirs = facts_of(release).engine_facts(), facts_by_hand(release)
    for field in dataclasses.fields(theirs):
        # The other classes are held against the release's own code instead; see tests/engines/test_other_classes.py.
        if field.name not in ("construction", "others", "undescribed"):
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name
    assert set(ours.construction) == set(theirs.construction)
    common = [rule for rule in ours.construction if rule.when is None]
    assert common == [rule for rule in theirs.construction if rule.when is None]


@pytest.mark.parametrize("release", INSTALLED)
def test_every_fact_stands_in_the_line_it_names(release: str) -> None:
    root, found = root_of(release), set(sources(facts_of(release)))
    assert len(found) > 80
    for source in found:
        line = (root / source.file).read_text(encoding="utf-8").splitlines()[source.line - 1]
        assert line.strip() == source.text, f"{release}: {source}"


@pytest.mark.parametrize("release", INSTALLED)
def test_everything_is_read(release: str) -> None:
    facts = facts_of(release)
    assert facts.unknown == ()
    assert facts.release == release
    for field in dataclasses.fields(facts):
        assert getattr(facts, field.name) is not None, field.name


def test_drafters_are_found_by_what_they_do() -> None:
    kinds = {drafter.name: drafter.kind for drafter in facts_of("0.5.23").drafters}
    assert kinds["LlamaForCausalLMEagle3"] == kinds["Eagle3DeepseekV2ForCausalLM"] == "EAGLE-3"
    assert kinds["LlamaForCausalLMEagle"] == kinds["Qwen2ForCausalLMEagle"] == "EAGLE-1"
    assert kinds["MistralLarge3ForCausalLMEagle"] == kinds["MistralForCausalLMEagle"] == "EAGLE-1"
    assert kinds["DeepseekV3ForCausalLMNextN"] == kinds["Qwen3NextForCausalLMMTP"] == "other"
    assert not {"LlamaForCausalLM", "DeepseekV3ForCausalLM"} & kinds.keys()
    old = {drafter.name: drafter for drafter in facts_of("0.5.9").drafters}
    assert "Eagle3DeepseekV2ForCausalLM" not in old
    assert old["LlamaForCausalLMEagle3"].ancestors == ("LlamaForCausalLM",)
    assert (old["LlamaForCausalLMEagle3"].loader, old["MistralLarge3ForCausalLMEagle"].loader) == (
        "own",
        "inherited",
    )


def test_targets_and_what_becomes_of_their_ids() -> None:
    new = {name: target for target in facts_of("0.5.23").targets for name in target.architectures}
    assert new["LlamaForCausalLM"].rule == new["Qwen3ForCausalLM"].rule == "+1"
    assert new["DeepseekV3ForCausalLM"].rule == "+1 if layer_ids[0] == 1, else verbatim"
    assert new["GptOssForCausalLM"].rule == "verbatim if max(layer_ids) == n, else +1"
    assert new["KimiK25ForConditionalGeneration"].delegates_to == "language_model"
    assert new["MiniMaxM3SparseForConditionalGeneration"].default_layers == ("3", "n//2+1", "n-2")
    assert {t.default_layers for n, t in new.items() if n != "MiniMaxM3SparseForConditionalGeneration"} == {
        ("2", "n//2", "n-3"),
        None,
    }
    old = {name: target for target in facts_of("0.5.9").targets for name in target.architectures}
    assert old["DeepseekV3ForCausalLM"].rule == "+1"
    assert "KimiK25ForConditionalGeneration" not in old


def test_which_ids_reach_the_target() -> None:
    old, new = facts_of("0.5.9").wiring, facts_of("0.5.23").wiring
    assert old is not None and new is not None
    assert {r.key for r in (*old.ids, *new.ids)} == {"eagle_config.eagle_aux_hidden_state_layer_ids"}
    assert old.use_aux_hidden_state is not None
    assert old.use_aux_hidden_state.key == "eagle_config.use_aux_hidden_state"
    assert (old.graphs, new.graphs) == ("default layers", "config ids")
    assert str(old.graphs_source) == "model_executor/cuda_graph_runner.py:365"


def test_algorithms_log_and_metrics() -> None:
    old, new = facts_of("0.5.9"), facts_of("0.5.23")
    assert old.algorithms is not None and new.algorithms is not None and old.log is not None
    assert old.algorithms.names == ("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE")
    assert old.algorithms.aliases == new.algorithms.aliases == {"NEXTN": "EAGLE"}
    assert {"DFLASH", "DSPARK", "FROZEN_KV_MTP", "UNO"} < set(new.algorithms.names)
    assert old.log.pieces[0] == "Decode batch{iter_msg}, #running-req: {num_running_reqs}, {token_usage_msg}"
    assert old.log.pieces[1] == "accept len: {spec_accept_length:.2f}, accept rate: {spec_accept_rate:.2f}, "
    assert old.metrics == ("sglang:spec_accept_length", "sglang:spec_accept_rate")
    assert "sglang:spec_verify_calls_total" in new.metrics
    assert {"spec_accept_token_num", "spec_draft_token_num"} < set(old.meta_info)


@pytest.mark.parametrize("release", INSTALLED)
def test_a_tree_is_read_in_three_seconds(release: str) -> None:
    # Processor time: the machine may be busy with other things.
    began = time.process_time()
    extract(root_of(release))
    assert time.process_time() - began < 3


def test_nothing_of_the_engine_runs(tmp_path: Path) -> None:
    trap = "import pathlib, sys\npathlib.Path(sys.argv[1], 'ran').touch()\n"
    small_copy(tmp_path)
    for file in (tmp_path / "python").rglob("*.py"):
        file.write_text(file.read_text() + trap)
    code = (
        "import sys, pathlib; from eagle3lab.engines.extract import extract\n"
        "assert extract(pathlib.Path(sys.argv[1])).engine_facts().release == '0.5.9'\n"
        "heavy = {'sglang', 'torch', 'numpy', 'rich', 'pydantic', 'yaml', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert not (tmp_path / "ran").exists()


def test_a_checkout_a_wheel_and_links_read_the_same(tmp_path: Path) -> None:
    small = extract(small_copy(tmp_path / "checkout"))
    root = tmp_path / "checkout" / "python"
    wheel = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(root.rglob("*.py")):
            archive.write(file, file.relative_to(root))
        archive.writestr(
            "sglang-0.5.9.dist-info/METADATA", "Version: 0.5.9\nRequires-Dist: transformers==4.57.1\n"
        )
    packed = extract(wheel)
    assert packed.config_source is not None and packed.config_source.line == 2
    assert dataclasses.replace(packed, config_source=None) == dataclasses.replace(small, config_source=None)
    linked = extract(linked_copy(tmp_path / "site-packages", "0.5.9"))
    assert (linked.names, linked.targets, linked.drafters) == (
        facts_of("0.5.9").names,
        facts_of("0.5.9").targets,
        facts_of("0.5.9").drafters,
    )
    change(tmp_path / "site-packages" / "sglang" / "srt" / LOADER, '"d2t" in name', '"x2y" in name')
    assert extract(tmp_path / "site-packages").names is None
