"""Patched checkouts: code that does what a known variant does is proved to, and no other is taken for one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.errors import InputError
from tests.extract.trees import LOADER, facts_of, small_copy

LLAMA = "models/llama.py"
LOOP = "        for name, loaded_weight in weights:\n"


def patched(folder: Path, file: str, old: str, new: str) -> ReleaseFacts:
    return extract(small_copy(folder, {file: (old, new)}))


def test_the_small_copy_reads_like_the_whole_release(tmp_path: Path) -> None:
    small, whole = extract(small_copy(tmp_path)), facts_of("0.5.9")
    assert small.unknown == ()
    for field in (
        "names",
        "parameters",
        "sizes",
        "switches",
        "vocabulary",
        "from_target",
        "capture",
        "acceptance",
    ):
        assert getattr(small, field) == getattr(whole, field), field


@pytest.mark.parametrize(
    "line",
    [
        'name = name.replace("layers.0", "midlayer")',
        'if "layers.0" in name:\n                name = name.replace("layers.0", "midlayer")',
    ],
)
def test_a_patch_that_is_a_known_variant_is_proved(tmp_path: Path, line: str) -> None:
    facts = patched(tmp_path, LOADER, LOOP, f"{LOOP}            {line}\n")
    assert facts.names is not None
    (rename,) = facts.names.renames
    assert (rename.old, rename.new) == ("layers.0", "midlayer")
    assert 'replace("layers.0", "midlayer")' in rename.source.text
    (note,) = facts.run_notes()
    assert "of LlamaForCausalLMEagle3 are not those of a release" in note


def test_code_written_otherwise_that_does_the_same_is_proved(tmp_path: Path) -> None:
    """A message, another name for a local, another order of what does not matter."""
    facts = extract(
        small_copy(
            tmp_path,
            {LOADER: ("            if \"t2d\" in name:\n                continue\n",
                      "            print(name)\n            skipped = \"t2d\" in name\n"
                      "            if skipped:\n                continue\n")},
        )
    )  # fmt: skip
    assert facts.unknown == () and facts.names is not None
    stock = facts_of("0.5.9").names
    assert stock is not None
    assert [s.contains for s in facts.names.special] == [s.contains for s in stock.special]
    # The line of a fact that is not there any more is that of the method.
    assert "def load_weights" in facts.names.special[1].source.text


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('else f"model.{name}"\n', 'else f"draft.{name}"\n', "of .* it predicts loaded"),
        (
            "                    weight_loader(param, loaded_weight)\n",
            "                    weight_loader(param, loaded_weight)\n"
            '                else:\n                    logger.warning("unknown %s", name)\n',
            "and the loader: warned",
        ),
        ('"d2t" in name', '"d2t" in name or "verifier_norm" in name', "and the loader: token map"),
        (
            LOOP,
            f"{LOOP}            if name.count('.') > 3:\n                continue\n",
            "and the loader: nothing",
        ),
        (
            LOOP,
            f'{LOOP}            name = name.replace("decoder", "midlayer")\n',
            "of decoder.*: loaded",
        ),
        (LOOP, f"{LOOP}            name = self.rename(name)\n", "and the loader: raised"),
        (LOOP, "        for loaded_weight in weights:\n", "and the loader: raised"),
        ("name = name.replace(weight_name, param_name)", "name = param_name", "and the loader: "),
    ],
)
def test_a_loader_that_does_what_no_variant_does_is_unproven(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    facts = patched(tmp_path, LOADER, old, new)
    assert facts.names is None
    (unknown,) = facts.unknown
    assert unknown.fact == "names"
    assert re.search(reason, unknown.reason), unknown.reason
    assert "load_weights" in unknown.reason and unknown.place.startswith(f"{LOADER}:")
    with pytest.raises(InputError, match=r"names: .*llama_eagle3\.py:\d+"):
        facts.engine_facts()


def test_a_token_map_that_is_taken_as_it_is_is_seen(tmp_path: Path) -> None:
    facts = patched(tmp_path, LOADER, "loaded_weight + torch.arange(loaded_weight.shape[0])", "loaded_weight")
    assert facts.names is None and "loaded hot_token_id as it is" in facts.unknown[0].reason


def test_a_special_name_after_the_shards_is_seen(tmp_path: Path) -> None:
    late = "    def get_hot_token_id"
    code = '            if "fc" in name:\n                raise ValueError(name)\n\n'
    facts = patched(tmp_path, LOADER, late, code + late)
    assert facts.names is None and "raised ValueError" in facts.unknown[0].reason


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("self.hidden_size_in * 3", "self.hidden_size_in * 4", "model.fc.weight"),
        (
            "            bias=False,\n",
            "            bias=getattr(config, 'qkv_bias', False),\n",
            "qkv_bias True",
        ),
        ("self.midlayer = ", "self.decoder = ", "model.decoder"),
        ("self.hidden_size_in * 3", "self.width(config)", "AttributeError"),
        (
            "self.midlayer = LlamaDecoderLayer(config, 0, quant_config, prefix)",
            "self.midlayer = SomeLinear(config)",
            "midlayer",
        ),
        (
            "        self.norm = RMSNorm(",
            "        if config.rope_theta > 10000:\n            self.norm = RMSNorm(",
            "model.norm.weight",
        ),
        (
            "        self.norm = RMSNorm(",
            "        if getattr(config, 'odd', None) is None:\n            raise ValueError('odd')\n"
            "        self.norm = RMSNorm(",
            "ValueError odd",
        ),
    ],
)
def test_constructors_that_do_what_no_variant_does_are_unproven(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    facts = patched(tmp_path, LOADER, old, new)
    assert facts.parameters is None
    assert [unknown.fact for unknown in facts.unknown] == ["parameters"]
    assert "constructors" in facts.unknown[0].reason and reason in facts.unknown[0].reason, facts.unknown[
        0
    ].reason
    with pytest.raises(InputError, match="parameters: "):
        facts.engine_facts()


def test_capture_is_read(tmp_path: Path) -> None:
    shifted = patched(
        tmp_path / "a", LLAMA, "[val + 1 for val in layer_ids]", "[val + 2 for val in layer_ids]"
    )
    assert shifted.capture is not None and shifted.capture.shift == 2
    verbatim = patched(tmp_path / "b", LLAMA, "[val + 1 for val in layer_ids]", "list(layer_ids)")
    assert verbatim.capture is not None and verbatim.capture.shift == 0
    other = patched(
        tmp_path / "c", LLAMA, "[2, num_layers // 2, num_layers - 3]", "[1, num_layers // 3, num_layers - 1]"
    )
    assert other.capture is not None and other.capture.default_layers == ("1", "n//3", "n-1")
    strange = patched(tmp_path / "d", LLAMA, "[val + 1 for val in layer_ids]", "choose(layer_ids)")
    assert strange.capture is None
    assert {unknown.fact for unknown in strange.unknown} == {"capture", "targets.LlamaForCausalLM"}


def test_the_accept_rate_is_read(tmp_path: Path) -> None:
    metrics = "managers/scheduler_metrics_mixin.py"
    forwards = "total_draft_tokens = self.spec_num_forward_ct * num_draft_tokens"
    changed = patched(
        tmp_path, metrics, forwards, "total_draft_tokens = self.spec_num_forward_ct + num_draft_tokens"
    )
    assert changed.acceptance is None
    assert [unknown.fact for unknown in changed.unknown] == ["acceptance"]
