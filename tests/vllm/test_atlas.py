"""The atlas of vLLM as it ships: every minor release, and where what it does with a drafter changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from eagle3lab.engines.atlas import sdists
from eagle3lab.engines.atlas.changes import describe, differences
from eagle3lab.engines.atlas.data import entries
from eagle3lab.engines.atlas.resolve import known_engines, resolve_engine, resolve_release
from eagle3lab.engines.atlas.sdists import newest_patches
from eagle3lab.engines.extract.vllm import VllmFacts
from eagle3lab.engines.extract.vllm.read import read_opened
from eagle3lab.engines.release import Release, nearest_known, releases, version_of
from eagle3lab.errors import InputError
from tests.vllm.sources import SAMPLE, facts, tree

RELEASES = releases("vllm")


def first(holds: Callable[[VllmFacts], object]) -> str:
    """The release from which on something holds; it must not stop holding."""
    answers = [bool(holds(facts(release))) for release in RELEASES]
    assert answers == sorted(answers), "it comes and goes"
    return RELEASES[answers.index(True)]


def parameter_names(release: VllmFacts) -> set[str]:
    return {parameter.name for parameter in release.parameters or ()}


def test_one_release_of_every_minor_version() -> None:
    assert (
        RELEASES[0] == "0.11.2" and RELEASES[-1] == "0.33.0" and len(RELEASES) == 23 and "0.32.0" in RELEASES
    )
    assert newest_patches(list(RELEASES)) == list(RELEASES)
    keys = [version_of(name) for name in RELEASES]
    assert all(a < b for a, b in pairwise(keys))  # type: ignore[operator]
    for entry in entries("vllm"):
        assert entry.wheel.startswith(f"vllm-{entry.release}") and len(bytes.fromhex(entry.sha256)) == 32
    # 0.15 published wheels only, of which the Python files were read; the digest is that of the whole.
    assert [entry.release for entry in entries("vllm") if not entry.wheel.endswith(".tar.gz")] == ["0.15.1"]
    minors = [release.rpartition(".")[0] for release in RELEASES]
    assert minors == [f"0.{minor}" for minor in range(11, 34)]
    assert known_engines("vllm") == tuple(f"vllm=={name}" for name in RELEASES)
    assert not any(name.startswith("vllm") for name in known_engines())


@pytest.mark.parametrize("release", RELEASES)
def test_everything_was_read(release: str) -> None:
    read = facts(release)
    assert (read.release, read.unknown) == (release, ())
    for rules in read.classes():
        conditions = {p.when for p in rules.parameters} | {r.when for r in rules.construction}
        conditions |= {rule.unless_on for rule in rules.names.unused}
        assert conditions - {None} <= rules.switches.keys()
        assert all(rules.names.owners) and "{name}" in rules.names.missing_message
    engine = resolve_engine(f"vllm=={release}")
    assert (engine.kind, engine.release, engine.notes) == ("vllm", release, ())
    assert engine.speculators is not None and engine.capture.shift == 0
    assert engine.capture.default_layers == ("2", "n//2", "n-3")


def test_when_names_and_parameters_changed() -> None:
    assert first(lambda f: f.names and f.names.inner_missing is None) == "0.25.1"
    assert first(lambda f: f.names and f.names.optional == (".bias",)) == "0.25.1"
    assert first(lambda f: f.names and any(s.contains == "mask_hidden" for s in f.names.special)) == "0.16.0"
    assert first(lambda f: "model.layers.{layer}.self_attn.qkv_proj.bias" in parameter_names(f)) == "0.16.0"
    assert first(lambda f: "model.input_norm.weight" in parameter_names(f)) == "0.18.1"
    assert first(lambda f: "model.fc_norm.{aux}.weight" in parameter_names(f)) == "0.22.1"
    assert first(lambda f: f.sizes["num_aux"].first) == "0.22.1"
    assert first(lambda f: "use_aux_hidden_state" in f.switches) == "0.12.0"
    assert first(lambda f: "smaller_vocabulary" in f.switches) == "0.30.0"


def test_when_classes_and_targets_changed() -> None:
    def named(name: str) -> Callable[[VllmFacts], object]:
        return lambda f: name in {drafter.name for drafter in f.drafters}

    def captures(name: str) -> Callable[[VllmFacts], object]:
        return lambda f: any(name in (target.name, *target.architectures) for target in f.targets)

    assert first(named("Eagle3DeepseekV2ForCausalLM")) == "0.18.1"
    assert first(named("Eagle3Qwen3ForCausalLM")) == "0.24.0"
    assert first(lambda f: any(r.drafter.name == "Eagle3Qwen3ForCausalLM" for r in f.others)) == "0.24.0"
    assert first(captures("LlamaForCausalLM")) == first(captures("MistralForCausalLM")) == "0.11.2"
    assert first(captures("DeepseekV3ForCausalLM")) == "0.18.1"
    assert first(lambda f: f.allowed and not f.allowed.model_types) == "0.22.1"
    assert facts("0.11.2").allowed.model_types == ("llama", "qwen", "minicpm", "gpt_oss")  # type: ignore[union-attr]
    assert "kimi_k25" in facts("0.18.1").allowed.model_types  # type: ignore[union-attr]


def test_what_configs_of_speculators_become() -> None:
    translations = {release: facts(release).translation for release in RELEASES}
    for release, translation in translations.items():
        assert translation is not None, release
        keys = {key.key: key for key in translation.keys}
        assert keys["norm_before_residual"].default is True
        assert translation.architecture("llama") == "Eagle3LlamaForCausalLM"

    def written(key: str) -> Callable[[VllmFacts], object]:
        return lambda f: f.translation and key in {item.key for item in f.translation.keys}

    assert first(written("norm_before_fc")) == "0.19.1"
    assert first(written("fc_norm")) == first(written("norm_output")) == "0.25.1"
    newest = first(
        lambda f: f.translation and f.translation.architecture("qwen3") == "Eagle3Qwen3ForCausalLM"
    )
    assert newest == "0.24.0" and facts(newest).translation.architecture("mistral") is None  # type: ignore[union-attr]


def test_where_layer_ids_are_read_and_acceptance_is_logged() -> None:
    nested = "eagle_config.eagle_aux_hidden_state_layer_ids"
    assert first(lambda f: nested in [reading.key for reading in f.wiring.ids]) == "0.22.1"  # type: ignore[union-attr]
    for release in RELEASES:
        read = facts(release)
        assert read.log is not None and read.acceptance is not None
        assert read.log.pieces[0] == "SpecDecoding metrics: Mean acceptance length: {}"
        assert read.log.pieces[-1] == "Avg Draft acceptance rate: {}%"
        assert (read.acceptance.rate_formula, read.acceptance.rate_key) == (
            "accepted/drafted",
            "(len-1)/(D-1)",
        )
        assert "vllm:spec_decode_num_accepted_tokens_per_pos" in read.metrics and len(read.metrics) == 4
        assert {part.parameter: part.unless_shipped for part in read.from_target} == {
            "model.embed_tokens.weight": "embed_tokens",
            "lm_head.weight": "lm_head",
        }


@pytest.mark.engine
@pytest.mark.parametrize("release", SAMPLE)
def test_the_atlas_says_what_the_source_distribution_says(release: str) -> None:
    assert read_opened(tree(release)) == facts(release)


def test_what_changed_between_two() -> None:
    before, after = facts("0.11.2"), facts("0.32.0")
    changed = {
        (change.topic, change.item): (change.before, change.after) for change in differences(before, after)
    }
    assert changed["walk through modules", "leads nowhere in the inner model"] == ("KeyError", "ValueError")
    assert changed["config of speculators", "layer of type qwen3"] == (None, "Eagle3Qwen3ForCausalLM")
    assert differences(after, after) == ()
    # Another engine has other topics, and what only one of them has is shown, too.
    other = differences(resolve_release("sglang==0.5.23").facts, after)
    assert {"walk through modules", "short tensors"} <= {change.topic for change in other}
    assert describe(after)["taken from the target"]["lm_head.weight"] == (
        "unless a name in the checkpoint contains lm_head"
    )


def test_a_patch_release_has_the_nearest_older_ones_facts() -> None:
    assert nearest_known(Release("vllm", "0.25.0")) == Release("vllm", "0.24.0")
    assert nearest_known(Release("vllm", "0.10.2")) is None
    engine = resolve_engine("vllm==0.15.0")
    assert engine.spec == "vllm==0.14.1"
    assert "no facts about vllm==0.15.0" in engine.notes[0] and "nearest older release" in engine.notes[0]
    for spec in ("vllm==0.10.2", "vllm==0.0.0.dev3"):
        with pytest.raises(InputError, match=r"vllm==0\.11\.2 to vllm==0\.33\.0"):
            resolve_engine(spec)


def test_the_newest_patch_of_each_minor_version() -> None:
    listed = [
        "0.9.2",
        "0.11.0",
        "0.11.2",
        "0.11.10",
        "0.12.0rc1",
        "0.12.0",
        "0.13.0.dev1",
        "0.20.0",
        "0.2.7",
        "x",
    ]
    assert newest_patches(listed) == ["0.11.10", "0.12.0", "0.20.0"]


def test_only_missing_source_distributions_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(*request: str) -> str:
        asked.append(request)
        if request[0] == "list":
            return '["0.10.2", "0.11.0", "0.11.2", "0.13.0", "0.13.1rc0"]'
        Path(request[2], f"vllm-{request[1]}-cp38-abi3-any.whl").write_bytes(b"x")
        return ""

    monkeypatch.setattr(sdists, "_ask", answer)
    assert sdists.listed() == ["0.11.2", "0.13.0"]
    (tmp_path / "vllm-0.11.2.tar.gz").touch()
    fetched = dict(sdists.fetch(["0.11.2", "0.13.0"], tmp_path))
    assert asked == [("list",), ("fetch", "0.13.0", str(tmp_path))]
    assert None not in fetched.values() and list(sdists.cached(tmp_path)) == ["0.11.2", "0.13.0"]


def test_what_pip_cannot_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("raise SystemExit('no network')")
    monkeypatch.setattr(sdists, "_WORKER", worker)
    monkeypatch.setattr(sys, "argv", ["sdists", "0.32.0", "--wheels", str(tmp_path)])
    assert sdists.main() == 1
    assert "pip cannot fetch vllm: no network" in capsys.readouterr().err
