"""The atlas as it ships: every release, the boundaries, and how quickly it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from eagle3lab.engines.atlas.changes import changes_by_release, describe, differences
from eagle3lab.engines.atlas.codec import decode, encode
from eagle3lab.engines.atlas.data import entries, file_of, release_facts
from eagle3lab.engines.extract import ReleaseFacts
from eagle3lab.engines.proof.loaders import Setting, parameter_names, predicted
from eagle3lab.engines.release import Release, nearest_known, releases, version_of
from tests.extract.trees import INSTALLED, facts_of


def since(topic: str, item: str, text: str | None = None) -> list[str]:
    """The releases at which an item appeared, or came to be described by `text`."""
    return [
        release
        for release, changes in changes_by_release().items()
        for change in changes
        if change.topic == topic
        and change.item == item
        and change.after == (change.after if text is None else text)
        and change.after is not None
    ]


def test_every_release_from_0_4_6_on_in_order() -> None:
    names = releases()
    assert names[0] == "0.4.6" and names[-1] == "0.5.23" and len(names) == 62
    assert {"0.4.9", "0.5.3.post3", "0.5.10", "0.5.12.post1", "0.5.15.post1"} < set(names)
    keys = [version_of(name) for name in names]
    assert None not in keys and all(a < b for a, b in pairwise(keys))  # type: ignore[operator]
    for entry in entries():
        assert entry.wheel.startswith(f"sglang-{entry.release}-") and len(bytes.fromhex(entry.sha256)) == 32
    assert len({entry.sha256 for entry in entries()}) == 62


@pytest.mark.parametrize("release", INSTALLED)
def test_the_atlas_says_what_the_installed_release_says(release: str) -> None:
    assert release_facts(release) == facts_of(release)


def test_everything_was_read_in_every_release() -> None:
    for release in releases():
        facts = release_facts(release)
        assert facts.release == release
        assert facts.unknown == (), release
        assert facts.engine_facts().spec == f"sglang=={release}"


def test_names_change_at_0_4_9_and_0_5_12_and_0_5_17() -> None:
    changed = [r for r, c in changes_by_release().items() if any(x.topic == "tensor names" for x in c)]
    assert changed == ["0.4.9", "0.5.12"]
    assert since("parameters", "model.input_norm.weight") == ["0.5.17"]
    assert since("parameters", "model.fc_norm.{aux}.weight") == ["0.5.12"]
    assert since("tensor names", "midlayer in a name") == ["0.5.12"]
    assert since("drafter classes", "Eagle3DeepseekV2ForCausalLM") == ["0.5.12"]


@pytest.mark.parametrize(
    ("architecture", "release"),
    [
        ("Qwen3ForCausalLM", "0.4.9"),
        ("GptOssForCausalLM", "0.5.1"),
        ("Qwen2ForCausalLM", "0.5.2"),
        ("ApertusForCausalLM", "0.5.3"),
        ("DeepseekV3ForCausalLM", "0.5.4.post2"),
        ("Glm4MoeForCausalLM", "0.5.5"),
        ("MiniMaxM2ForCausalLM", "0.5.5.post1"),
        ("LongcatFlashForCausalLM", "0.5.6"),
        ("Qwen3NextForCausalLM", "0.5.9"),
        ("KimiK25ForConditionalGeneration", "0.5.10"),
        ("Qwen3VLForConditionalGeneration", "0.5.11"),
        ("Gemma4ForConditionalGeneration", "0.5.12"),
        ("MiniMaxM3SparseForConditionalGeneration", "0.5.18"),
        ("Qwen3_5ForCausalLM", "0.5.22"),
    ],
)
def test_when_a_target_can_first_be_drafted_for(architecture: str, release: str) -> None:
    assert since("targets", architecture)[0] == release


def test_where_layer_ids_come_to_mean_something_else() -> None:
    rules = "ids +1 if layer_ids[0] == 1, else verbatim, default 2, n//2, n-3"
    assert since("targets", "DeepseekV3ForCausalLM", rules) == ["0.5.13"]
    rules = "ids verbatim if max(layer_ids) == n, else +1, default 2, n//2, n-3"
    assert since("targets", "GptOssForCausalLM", rules) == ["0.5.17"]
    assert since("layer ids", "read from") == ["0.4.9"]
    assert since("layer ids", "switched off by") == ["0.5.8"]
    assert since("layer ids", "in CUDA graphs", "config ids") == ["0.5.11"]


def test_the_three_accept_rates() -> None:
    changed = {
        release: change.after
        for release, changes in changes_by_release().items()
        for change in changes
        if change.topic == "accept rate"
    }
    assert changed == {
        "0.5.3.post2": "(accepted+bonus)/(forwards*(steps+1))",
        "0.5.5.post3": "(accepted+bonus)/(forwards*draft_tokens)",
        "0.5.11": "accepted/(forwards*(draft_tokens-1))",
    }


@pytest.mark.parametrize(
    ("algorithm", "release"),
    [
        ("STANDALONE", "0.5.2"),
        ("NGRAM", "0.5.3"),
        ("DFLASH", "0.5.11"),
        ("FROZEN_KV_MTP", "0.5.12"),
        ("DSPARK", "0.5.16"),
        ("UNO", "0.5.20"),
    ],
)
def test_when_an_algorithm_came(algorithm: str, release: str) -> None:
    assert since("algorithms", algorithm) == [release]


@pytest.mark.parametrize(
    ("engine", "bytes_below", "seconds_below"),
    [("sglang==0.5.9", 100_000, 0.06), ("vllm==0.32.0", 60_000, 0.1)],
)
def test_the_file_is_small_and_answers_quickly(engine: str, bytes_below: int, seconds_below: float) -> None:
    kind, _, release = engine.partition("==")
    assert file_of(kind).stat().st_size < bytes_below
    code = (
        "import time, sys\n"
        "from eagle3lab.engines.atlas.data import release_facts\n"
        f"began = time.process_time(); release_facts({release!r}, {kind!r}); print(time.process_time() - began)\n"
        "assert not {'numpy', 'torch', 'rich', 'typer', 'yaml'} & set(sys.modules)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert min(float(run.stdout) for run in runs) < seconds_below


# What the loaders of these releases did when they were run on stand-in parameters; "loaded" is left out.
MATRIX = {
    ("0.4.6", "0.4.8.post1"): {
        "layers.0.mlp.up_proj.weight": ("raised", "KeyError"),
        "layers.0.hidden_norm.weight": ("warned",),
        "model.midlayer.self_attn.q_proj.weight": ("raised", "KeyError"),
        "midlayer.0.self_attn.q_proj.weight": ("raised", "KeyError"),
        "module.midlayer.mlp.gate_proj.weight": ("raised", "KeyError"),
        "midlayer.self_attn.q_norm.weight": ("warned",),
        "midlayer.self_attn.q_proj.bias": ("nothing",),
        "t2d": ("nothing",),
        "d2t": ("token map",),
    },
    ("0.4.9", "0.5.11"): {
        "layers.0.mlp.up_proj.weight": ("nothing",),
        "model.layers.0.hidden_norm.weight": ("nothing",),
        "midlayer.0.self_attn.q_proj.weight": ("nothing",),
        "module.midlayer.mlp.gate_proj.weight": ("nothing",),
        "module.d2t": ("token map",),
        "midlayer.self_attn.q_norm.weight": ("nothing",),
        "midlayer.self_attn.q_proj.bias": ("nothing",),
        "fc_norm.0.weight": ("nothing",),
        "verifier_norm.weight": ("nothing",),
    },
    ("0.5.12", "0.5.23"): {
        "midlayer.0.self_attn.q_proj.weight": ("nothing",),
        "module.midlayer.mlp.gate_proj.weight": ("nothing",),
        "draft_model.layers.0.mlp.up_proj.weight": ("nothing",),
        "midlayer.self_attn.k_norm.weight": ("nothing",),
        "midlayer.self_attn.q_proj.bias": ("nothing",),
        "verifier_norm.weight": ("nothing",),
    },
}
LOADED = {
    ("0.4.6", "0.4.8.post1"): ("midlayer.self_attn.q_proj.weight", "fc.weight", "lm_head.weight", "norm.weight"),
    ("0.4.9", "0.5.11"): ("midlayer.mlp.up_proj.weight", "model.midlayer.hidden_norm.weight", "lm_head.weight"),
    ("0.5.12", "0.5.23"): (
        "midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", "model.layers.0.hidden_norm.weight",
        "model.midlayer.self_attn.k_proj.weight", "aux_norm_mid.weight", "fc_norm.1.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("span", MATRIX)
def test_what_became_of_each_name_family(span: tuple[str, str]) -> None:
    names = releases()
    for release in names[names.index(span[0]) : names.index(span[1]) + 1]:
        facts = release_facts(release)
        assert facts.names is not None and facts.parameters is not None
        known = set(parameter_names("sglang", facts.parameters, Setting()))
        for name, fate in MATRIX[span].items():
            assert predicted(name, facts.names, known) == fate, (release, name)
        for name in LOADED[span]:
            assert predicted(name, facts.names, known)[0] == "loaded", (release, name)


def test_describe_and_differences_agree() -> None:
    one, other = release_facts("0.5.9"), release_facts("0.5.12")
    assert differences(one, one) == ()
    changes = differences(one, other)
    back = differences(other, one)
    assert {(c.topic, c.item, c.before, c.after) for c in changes} == {
        (c.topic, c.item, c.after, c.before) for c in back
    }
    words = describe(other)
    for change in changes:
        assert words[change.topic].get(change.item) == change.after
    told = {str(change) for change in changes}
    assert "+ midlayer in a name: becomes layers.0" in told
    assert "− model.midlayer.hidden_norm.weight" in told


def test_facts_survive_the_way_through_json() -> None:
    facts = release_facts("0.5.23")
    assert decode(ReleaseFacts, json.loads(json.dumps(encode(facts)))) == facts
    damaged = encode(facts)
    damaged[0] = 5
    with pytest.raises(ValueError, match="5"):
        decode(ReleaseFacts, damaged)
    with pytest.raises(ValueError, match="not the fields of ReleaseFacts"):
        decode(ReleaseFacts, encode(facts)[:5])


@pytest.mark.parametrize(
    ("release", "known"),
    [
        ("0.5.9", "0.5.9"),
        ("0.5.9.post1", "0.5.9"),
        ("0.5.0", "0.4.10.post2"),
        ("0.5.10rc0", "0.5.9"),
        ("0.5.3.post10", "0.5.3.post3"),
        ("0.6", "0.5.23"),
        ("0.5.9+cu130", "0.5.9"),
        ("0.4.5", None),
        ("main", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_the_nearest_older_release(release: str, known: str | None) -> None:
    found = nearest_known(Release("sglang", release))
    assert (found.number if found else None) == known


def test_an_unknown_release_is_no_facts() -> None:
    with pytest.raises(KeyError):
        release_facts("0.5.0")


def test_what_changed_in_the_other_drafter_classes() -> None:
    mla, qwen2 = "in Eagle3DeepseekV2ForCausalLM", "in Qwen2ForCausalLMEagle"
    assert since(mla, "model.fc_norm.{aux}.weight") == ["0.5.13"]
    assert since(qwen2, "without a parameter") == ["0.4.6.post5"]
    assert since("drafter classes", "MistralForCausalLMEagle") == ["0.5.11"]
    # From 0.5.15 on the MLA head's first layer is split over ranks.
    kinds = {
        release: next(one.kind for one in rules.parameters if one.name == "model.fc.weight")
        for release in ("0.5.14", "0.5.15")
        for rules in release_facts(release).others
        if rules.drafter.name == "Eagle3DeepseekV2ForCausalLM"
    }
    assert kinds == {"0.5.14": "replicated", "0.5.15": "column parallel"}
