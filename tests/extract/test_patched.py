"""Patched checkouts: what was changed is read, and what cannot be read is said to be unknown, never guessed."""

from __future__ import annotations

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
def test_a_rename_is_read(tmp_path: Path, line: str) -> None:
    facts = patched(tmp_path, LOADER, LOOP, f"{LOOP}            {line}\n")
    assert facts.names is not None
    (rename,) = facts.names.renames
    assert (rename.old, rename.new) == ("layers.0", "midlayer")
    assert 'replace("layers.0", "midlayer")' in rename.source.text


def test_a_prefix_a_skipped_name_and_an_unknown_name_that_warns_are_read(tmp_path: Path) -> None:
    facts = patched(tmp_path / "a", LOADER, 'else f"model.{name}"\n', 'else f"draft.{name}"\n')
    assert facts.names is None  # shards are still looked up under model.: two ways in one loader
    both = extract(
        small_copy(
            tmp_path / "b",
            {
                LOADER: (
                    "                    weight_loader(param, loaded_weight)\n",
                    "                    weight_loader(param, loaded_weight)\n"
                    '                else:\n                    logger.warning("unknown %s", name)\n',
                )
            },
        )
    )
    assert both.names is None
    skipped = patched(tmp_path / "c", LOADER, '"t2d" in name', '"t2d" in name or "verifier_norm" in name')
    assert skipped.names is not None
    assert [s.contains for s in skipped.names.special] == ["d2t", "t2d", "verifier_norm"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("loaded_weight + torch.arange(loaded_weight.shape[0])", "loaded_weight", "special tensor"),
        (
            LOOP,
            f"{LOOP}            if name.count('.') > 3:\n                continue\n",
            "condition of the loop",
        ),
        (LOOP, f"{LOOP}            name = self.rename(name)\n", "rename is not understood"),
        (LOOP, f"{LOOP}            self.seen(name)\n", "statement of the loop"),
        (
            "        for name, loaded_weight in weights:\n",
            "        for loaded_weight in weights:\n",
            "names and weights",
        ),
        ("name = name.replace(weight_name, param_name)", "name = param_name", "loop over shards"),
        (
            '"t2d" in name:\n                continue',
            '"t2d" in name:\n                name = name.replace("a", "b")',
            "another condition",
        ),
    ],
)
def test_a_loader_that_is_not_understood_is_unknown(tmp_path: Path, old: str, new: str, reason: str) -> None:
    facts = patched(tmp_path, LOADER, old, new)
    assert facts.names is None
    (unknown,) = facts.unknown
    assert unknown.fact == "names" and reason in unknown.reason
    assert unknown.place.startswith(f"{LOADER}:")
    with pytest.raises(InputError, match=r"names: .*llama_eagle3\.py:\d+"):
        facts.engine_facts()


def test_a_special_name_after_the_shards_is_no_known_order(tmp_path: Path) -> None:
    late = "    def get_hot_token_id"
    facts = patched(
        tmp_path,
        LOADER,
        late,
        f'            if "d2t" in name:\n                continue\n\n{late}',
    )
    assert facts.names is None and "order" in facts.unknown[0].reason


def test_parameters_follow_the_constructor(tmp_path: Path) -> None:
    facts = patched(tmp_path / "a", LOADER, "self.hidden_size_in * 3", "self.hidden_size_in * 4")
    assert facts.sizes["num_aux"].default == 4
    biased = patched(
        tmp_path / "b",
        LOADER,
        "            bias=False,\n",
        "            bias=getattr(config, 'qkv_bias', False),\n",
    )
    assert biased.parameters is not None
    assert [p.when for p in biased.parameters if p.name.endswith("qkv_proj.bias")] == ["qkv_bias"]
    renamed = patched(tmp_path / "c", LOADER, "self.midlayer = ", "self.decoder = ")
    assert renamed.parameters is not None
    assert {p.name.split(".")[1] for p in renamed.parameters} >= {"decoder", "fc", "norm"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.hidden_size_in * 3", "self.width(config)"),
        (
            "self.midlayer = LlamaDecoderLayer(config, 0, quant_config, prefix)",
            "self.midlayer = SomeLinear(config)",
        ),
        (
            "        self.norm = RMSNorm(",
            "        if config.rope_theta > 10000:\n            self.norm = RMSNorm(",
        ),
        (
            "        self.norm = RMSNorm(",
            "        for i in range(2):\n            self.add_module(str(i), fc)\n        self.norm = RMSNorm(",
        ),
    ],
)
def test_a_parameter_that_cannot_be_followed_is_unknown(tmp_path: Path, old: str, new: str) -> None:
    facts = patched(tmp_path, LOADER, old, new)
    assert facts.parameters is None
    assert [unknown.fact for unknown in facts.unknown] == ["parameters"]
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
