"""Faults of what is captured, of the layer, of the command, of the pairing."""

from __future__ import annotations

import re

from tests.diagnosis.injected.base import (
    Case,
    Expected,
    before,
    config,
    injection,
    mla,
    option,
    reduced,
    target,
    template,
)

# ---- capture --------------------------------------------------------------------------------------------------


@injection
def algorithm_eagle(case: Case) -> Expected:
    option(case, "--speculative-algorithm", "EAGLE")
    return ("capture.algorithm",)


@injection
def algorithm_nextn(case: Case) -> Expected:
    option(case, "--speculative-algorithm", "NEXTN")
    return ("capture.algorithm",)


@injection
def auxiliary_states_off(case: Case) -> Expected:
    if before(case, "0.5.8"):
        return None
    config(case).setdefault("eagle_config", {})["use_aux_hidden_state"] = False
    return ("capture.disabled",)


@injection
def one_state(case: Case) -> Expected:
    if mla(case) or template(case).get("with"):
        return None
    template(case)["aux"] = 1
    config(case)["eagle_config"] = {
        "eagle_aux_hidden_state_layer_ids": [target(case)["num_hidden_layers"] - 2]
    }
    return ("capture.width",)


def _ids(case: Case, ids: list[int], *, nested: bool) -> None:
    c = config(case)
    c.pop("eagle_aux_hidden_state_layer_ids", None)
    c.pop("eagle_config", None)
    if nested:
        c["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    else:
        c["eagle_aux_hidden_state_layer_ids"] = ids


def _usual_target(case: Case) -> bool:
    name = case["target"]["config"]["architectures"][0]
    return not name.startswith(("Kimi", "Deepseek", "GptOss"))


@injection
def ids_at_top_level(case: Case) -> Expected:
    n = target(case)["num_hidden_layers"]
    if template(case).get("with"):
        return None  # eagle_config holds more than the ids
    _ids(case, [4, n // 2 + 1, n - 5], nested=False)
    return ("capture.ids-ignored",)


@injection
def input_style_ids(case: Case) -> Expected:
    n = target(case)["num_hidden_layers"]
    if before(case, "0.4.9") or not _usual_target(case):
        return None
    _ids(case, [2, n // 2, n - 3], nested=True)
    return ("capture.ids-convention", "capture.graph-defaults")


@injection
def ids_of_a_deeper_target(case: Case) -> Expected:
    n = target(case)["num_hidden_layers"]
    if before(case, "0.4.9"):
        return None
    _ids(case, [1, n // 2 - 1, n + 3], nested=True)
    return ("capture.ids-range",)


@injection
def one_id_too_many(case: Case) -> Expected:
    n = target(case)["num_hidden_layers"]
    _ids(case, [1, n // 4, n // 2 - 1, n - 4], nested=True)
    return ("capture.ids-count",)


@injection
def four_states(case: Case) -> Expected:
    """Four states for a release that takes three, or with a config that names no layers."""
    if mla(case) or template(case).get("with"):
        return None
    template(case)["aux"] = 4
    config(case).pop("eagle_aux_hidden_state_layer_ids", None)
    config(case).pop("eagle_config", None)
    return ("capture.ids-count",)


@injection
def graphs_with_defaults(case: Case) -> Expected:
    n = target(case)["num_hidden_layers"]
    if before(case, "0.4.9") or not before(case, "0.5.11"):
        return None
    _ids(case, [1, n // 2 - 1, n - 3], nested=True)
    return ("capture.graph-defaults",)


@injection
def target_of_another_width(case: Case) -> Expected:
    if mla(case):
        return None
    target(case)["hidden_size"] += 16
    return ("capture.width",)


@injection
def target_without_hook(case: Case) -> Expected:
    if not before(case, "0.5.10"):
        return None
    case["target"]["config"]["architectures"] = ["KimiK25ForConditionalGeneration"]
    return ("capture.target-unsupported",)


# ---- layer ----------------------------------------------------------------------------------------------------


@injection
def norm_before_residual(case: Case) -> Expected:
    config(case)["norm_before_residual"] = True
    return ("layer.norm-before-residual",)


@injection
def norm_before_fc(case: Case) -> Expected:
    if mla(case) or not before(case, "0.5.17"):
        return None
    template(case)["with"] = ["input_norm"]
    config(case)["norm_before_fc"] = True
    return ("layer.norm-before-fc",)


@injection
def state_norms(case: Case) -> Expected:
    if mla(case) or not before(case, "0.5.12"):
        return None
    template(case)["with"] = ["fc_norm"]
    config(case)["fc_norm"] = True
    return ("layer.norm-before-fc",)


@injection
def norm_output(case: Case) -> Expected:
    if not before(case, "0.5.12"):
        return None
    config(case)["norm_output"] = True
    return ("layer.norm-output",)


@injection
def rope_in_the_new_field(case: Case) -> Expected:
    c = config(case)
    if not before(case, "0.5.10") or c.get("rope_theta") in (None, 10000.0):
        return None
    theta, scaling = c.pop("rope_theta"), c.pop("rope_scaling", None)
    c["rope_parameters"] = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
    return ("layer.rope",)


@injection
def projection_biases(case: Case) -> Expected:
    if mla(case):
        return None
    template(case)["with"] = [*template(case).get("with", []), "qkv_bias"]
    config(case)["attention_bias"] = True
    return ("layer.bias",)


@injection
def short_context(case: Case) -> Expected:
    config(case)["max_position_embeddings"] = 2048
    config(case).pop("rope_scaling", None)
    option(case, "--context-length", "32768")
    return ("layer.context",)


@injection
def half_precision(case: Case) -> Expected:
    template(case)["dtype"] = "F16"
    config(case)["torch_dtype"] = "float16"
    return ("layer.dtype",)


@injection
def inherited_quantisation(case: Case) -> Expected:
    option(case, "--quantization", "awq")
    return ("layer.quantisation",)


# ---- flags ----------------------------------------------------------------------------------------------------


@injection
def no_draft_path(case: Case) -> Expected:
    case["launch"] = re.sub(r" --speculative-draft-model-path \S+", "", case["launch"])
    return ("flags.draft-path",)


@injection
def other_method(case: Case) -> Expected:
    option(case, "--speculative-algorithm", "NGRAM")
    return ("flags.method",)


@injection
def stand_alone_method(case: Case) -> Expected:
    if "lora" in case["launch"]:  # with that the release refuses it for another reason
        return None
    option(case, "--speculative-algorithm", "STANDALONE")
    return ("flags.method",)


@injection
def algorithm_forgotten(case: Case) -> Expected:
    case["launch"] = re.sub(r" --speculative-algorithm \S+", "", case["launch"])
    return ("flags.method",)


@injection
def chain_with_a_tree_of_tokens(case: Case) -> Expected:
    option(case, "--speculative-eagle-topk", "1")
    option(case, "--speculative-num-draft-tokens", "48")
    return ("flags.draft-tokens",)


@injection
def tree_on_a_chain_backend(case: Case) -> Expected:
    option(case, "--speculative-eagle-topk", "4")
    option(case, "--speculative-num-draft-tokens", "8")
    option(case, "--attention-backend", "trtllm_mha")
    return ("flags.backend",)


@injection
def adapters(case: Case) -> Expected:
    if before(case, "0.5.5.post3") or not before(case, "0.5.18"):  # they do not ask, or take both
        return None
    option(case, "--lora-paths", "a=./adapter")
    return ("flags.incompatible",)


# ---- pairing --------------------------------------------------------------------------------------------------


@injection
def larger_vocabulary(case: Case) -> Expected:
    target(case)["vocab_size"] += 64
    return ("training.pairing",)


@injection
def token_map_by_option(case: Case) -> Expected:
    if mla(case) or config(case)["tie_word_embeddings"] or not reduced(case):
        return None
    option(case, "--speculative-token-map", "./hot_tokens.pt")
    return ("vocab.discarded",)
