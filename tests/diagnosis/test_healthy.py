"""Healthy heads of every trainer come out healthy on every release that can serve them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import Verdict
from tests.diagnosis.corpus import load, run
from tests.diagnosis.injected import template, without_log

Case = dict[str, Any]
MIDLAYER = (
    "0.4.9",
    "0.4.10.post2",
    "0.5.1",
    "0.5.3",
    "0.5.6",
    "0.5.9",
    "0.5.11",
    "0.5.14",
    "0.5.18",
    "0.5.23",
)
LAYERS = ("0.5.12", "0.5.15", "0.5.17", "0.5.20", "0.5.23")


def base() -> Case:
    return without_log(load("ok-specforge-llama-0.5.9"))


def config(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = case["drafter"]["config"]
    return found


def safeailab(case: Case) -> tuple[str, ...]:
    """A `.bin` in fp16 for 2048 positions without eagle_config or a RoPE base, its class name repackaged."""
    config(case).pop("eagle_config")
    config(case).pop("rope_theta")
    config(case).update(torch_dtype="float16", max_position_embeddings=2048, rope_scaling=None)
    template(case).update(dtype="F16")
    case["drafter"]["files"] = "bin"
    case["launch"] += " --dtype float16 --context-length 2048"
    return MIDLAYER


def specforge(case: Case) -> tuple[str, ...]:
    return MIDLAYER


def specforge_with_embeddings(case: Case) -> tuple[str, ...]:
    template(case)["embed"] = True
    return MIDLAYER


def speculators_rewritten(case: Case) -> tuple[str, ...]:
    """Names as speculators writes them, head frozen as target rows, config flattened."""
    template(case).update(prefix="layers.0.", embed="target", lm_head="target-rows")
    config(case)["norm_before_residual"] = False
    return LAYERS


def speculators_with_state_norms(case: Case) -> tuple[str, ...]:
    template(case).update(prefix="layers.0.", embed=True)
    template(case)["with"] = ["fc_norm"]
    config(case).update(fc_norm=True, norm_output=True)
    return LAYERS


def modelopt(case: Case) -> tuple[str, ...]:
    """d2t in frequency order, no t2d, switches of its own in eagle_config."""
    template(case).update(d2t="unsorted", t2d="missing")
    config(case)["eagle_config"].update(
        use_input_layernorm_in_first_layer=True, use_last_layernorm=True, use_mtp_layernorm=False
    )
    return MIDLAYER


def modelopt_new_names(case: Case) -> tuple[str, ...]:
    modelopt(case)
    template(case)["prefix"] = "layers.0."
    return LAYERS


def modelopt_norm_before_fc(case: Case) -> tuple[str, ...]:
    modelopt(case)
    template(case)["with"] = ["input_norm"]
    config(case)["eagle_config"]["norm_before_fc"] = True
    return ("0.5.17", "0.5.20", "0.5.23")


def angelslim_class_repaired(case: Case) -> tuple[str, ...]:
    template(case)["lm_head"] = True
    return MIDLAYER


def torchspec_whole_vocabulary(case: Case) -> tuple[str, ...]:
    """No map, a head of every token, embeddings in the file."""
    vocab = config(case)["vocab_size"]
    config(case)["draft_vocab_size"] = vocab
    template(case).update(draft_vocab=vocab, d2t="missing", t2d="missing", embed=True)
    return MIDLAYER


def automodel_on_a_release_that_knows_it(case: Case) -> tuple[str, ...]:
    template(case).update(prefix="layers.0.", embed=True)
    names = ("fc.weight", "norm.weight", "embed_tokens.weight")
    case["drafter"]["edits"] = {
        "rename": {"layers.0.*": "model.layers.0.*", **{name: f"model.{name}" for name in names}}
    }
    return LAYERS


def two_layers(case: Case) -> tuple[str, ...]:
    template(case).update(prefix="layers.{i}.", layers=2)
    config(case)["num_hidden_layers"] = 2
    return LAYERS


def head_of_the_target(case: Case) -> tuple[str, ...]:
    """draft_vocab_size null: the target's head and no map."""
    config(case)["draft_vocab_size"] = None
    vocab = config(case)["vocab_size"]
    template(case).update(draft_vocab=vocab, lm_head=False, d2t="missing", t2d="missing")
    return ("0.5.2", "0.5.9", "0.5.15", "0.5.23")


def a_tree(case: Case) -> tuple[str, ...]:
    case["launch"] = (
        case["launch"].replace("eagle-topk 1", "eagle-topk 4").replace("draft-tokens 4", "draft-tokens 16")
    )
    return MIDLAYER


TRAINERS: tuple[Callable[[Case], tuple[str, ...]], ...] = (
    safeailab, specforge, specforge_with_embeddings, speculators_rewritten, speculators_with_state_norms, modelopt,
    modelopt_new_names, modelopt_norm_before_fc, angelslim_class_repaired, torchspec_whole_vocabulary,
    automodel_on_a_release_that_knows_it, two_layers, head_of_the_target, a_tree,
)  # fmt: skip


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.__name__)
def test_healthy(trainer: Callable[[Case], tuple[str, ...]], tmp_path: Path) -> None:
    case = base()
    wrong = []
    for release in trainer(case):
        diagnosis = run(case | {"engine": f"sglang=={release}"}, tmp_path / release)
        loud = [(one.fault, one.title) for one in diagnosis.findings if one.severity != "note"]
        if loud or diagnosis.verdict is not Verdict.NO_FAULT_FOUND:
            wrong.append(f"{release}: {diagnosis.verdict} {loud}")
    assert not wrong, "\n".join(wrong)
