"""Faults of the checkpoint: files, kind of head, names, head, token map."""

from __future__ import annotations

from typing import Any

from tests.diagnosis.injected.base import (
    INJECTIONS,
    Case,
    Expected,
    Injection,
    before,
    config,
    injection,
    mla,
    option,
    reduced,
    target,
    template,
)

# ---- files ----------------------------------------------------------------------------------------------------


@injection
def truncated(case: Case) -> Expected:
    case["drafter"]["corrupt"] = "truncate"
    return ("files.unreadable",)


@injection
def bad_header(case: Case) -> Expected:
    case["drafter"]["corrupt"] = "bad-header"
    return ("files.unreadable",)


@injection
def lfs_pointer(case: Case) -> Expected:
    case["drafter"]["corrupt"] = "lfs-pointer"
    return ("files.unreadable",)


@injection
def empty_file(case: Case) -> Expected:
    case["drafter"]["corrupt"] = "empty"
    return ("files.unreadable",)


@injection
def no_weights(case: Case) -> Expected:
    case["drafter"]["files"] = "none"
    return ("files.missing",)


@injection
def no_config(case: Case) -> Expected:
    case["drafter"]["config"] = None
    return ("files.missing",)


def _shards(case: Case) -> dict[str, Any]:
    layer = template(case)["prefix"].replace("{i}", "*") + "*"
    return {
        "model-00001-of-00002.safetensors": [
            "fc*",
            "norm*",
            "lm_head*",
            "embed*",
            "d2t",
            "t2d",
            "input_norm*",
        ],
        "model-00002-of-00002.safetensors": [layer],
    }


@injection
def shard_absent(case: Case) -> Expected:
    case["drafter"]["files"] = {
        "mode": "sharded",
        "shards": _shards(case),
        "unindexed": [],
        "absent": ["model-00002-of-00002.safetensors"],
    }
    return ("files.missing", "names.missing")


@injection
def shard_unindexed(case: Case) -> Expected:
    case["drafter"]["files"] = {
        "mode": "sharded",
        "shards": _shards(case),
        "unindexed": ["model-00002-of-00002.safetensors"],
        "absent": [],
    }
    return ("files.unindexed-shard",)


@injection
def stale_file(case: Case) -> Expected:
    stale = {"template": {"embed": True}, "keep": ["embed_tokens.weight", "lm_head.weight"]}
    case["drafter"]["files"] = {"mode": "safetensors+bin", "stale": stale}
    return ("files.stale-safetensors", "names.missing")


@injection
def untrained_file_in_front(case: Case) -> Expected:
    case["drafter"]["files"] = {
        "mode": "safetensors+bin",
        "stale": {"template": {"state": "init"}, "keep": ["*"]},
    }
    return ("files.stale-safetensors",)


# ---- head kind ------------------------------------------------------------------------------------------------


@injection
def base_architecture(case: Case) -> Expected:
    config(case)["architectures"] = ["Qwen3ForCausalLM"]
    return ("head-kind.architecture",)


@injection
def foreign_architecture(case: Case) -> Expected:
    config(case)["architectures"] = ["Eagle3LlamaForCausalLM"]
    return ("head-kind.architecture",)


@injection
def nested_dialect(case: Case) -> Expected:
    flat = config(case)
    top = {
        key: flat.pop(key)
        for key in ("draft_vocab_size", "tie_word_embeddings", "torch_dtype")
        if key in flat
    }
    flat.pop("architectures")
    case["drafter"]["config"] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": flat,
        **top,
    }
    return ("head-kind.config-dialect",)


@injection
def draft_vocabulary_unstated(case: Case) -> Expected:
    if mla(case):
        return None
    del config(case)["draft_vocab_size"]
    return ("head-kind.config-value", "head.lm-head-rows")


@injection
def target_width_null(case: Case) -> Expected:
    if mla(case):
        return None
    config(case)["target_hidden_size"] = None
    return ("head-kind.config-value",)


@injection
def layers_of_the_target(case: Case) -> Expected:
    config(case)["num_hidden_layers"] = target(case)["num_hidden_layers"]
    return ("head-kind.layer-count",)


@injection
def older_method(case: Case) -> Expected:
    t = template(case)
    if mla(case):
        return None
    keep = {
        key: t[key] for key in ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "dtype")
    }
    case["drafter"]["template"] = {"kind": "eagle1", **keep}
    case["drafter"].pop("edits", None)
    config(case)["architectures"] = ["LlamaForCausalLMEagle"]
    return ("head-kind.not-eagle3",)


# ---- names ----------------------------------------------------------------------------------------------------


@injection
def old_release_other_layer_name(case: Case) -> Expected:
    if mla(case) or not before(case, "0.5.12") or before(case, "0.4.9"):
        return None
    template(case)["prefix"] = "layers.0."
    return ("names.dropped",)


@injection
def raw_trainer_prefix(case: Case) -> Expected:
    if mla(case):
        return None
    case["drafter"]["edits"] = {"rename": {"*": "module.*"}}
    return ("names.dropped",)


@injection
def fc_lost(case: Case) -> Expected:
    if mla(case):
        return None
    case["drafter"]["edits"] = {"drop": ["fc.weight"]}
    return ("names.missing",)


@injection
def down_projection_lost(case: Case) -> Expected:
    if mla(case):
        return None
    case["drafter"]["edits"] = {"drop": ["*down_proj.weight"]}
    return ("names.missing",)


@injection
def gate_lost(case: Case) -> Expected:
    if mla(case):
        return None
    case["drafter"]["edits"] = {"drop": ["*gate_proj.weight"]}
    return ("names.missing",)


@injection
def qk_norm(case: Case) -> Expected:
    if mla(case):
        return None
    template(case)["with"] = [*template(case).get("with", []), "qk_norm"]
    return ("names.unsupported-tensor",)


@injection
def parallel_draft_mask(case: Case) -> Expected:
    if mla(case):
        return None
    template(case)["with"] = [*template(case).get("with", []), "mask_hidden"]
    return ("names.unsupported-tensor",)


@injection
def cut_feed_forward(case: Case) -> Expected:
    """Loaders cut what is too long without a word; what is too short they fill with zeros, which harms nothing."""
    if mla(case):
        return None
    config(case)["intermediate_size"] -= 8
    return ("names.shape",)


@injection
def other_head_dim(case: Case) -> Expected:
    if mla(case):
        return None
    config(case)["head_dim"] *= 2
    return ("names.shape",)


@injection
def prefix_of_an_mla_head(case: Case) -> Expected:
    if not mla(case):
        return None
    case["drafter"]["edits"] = {
        "rename": {"layers.0.*": "model.layers.0.*", "midlayer.*": "model.midlayer.*"}
    }
    return ("names.dropped",)


@injection
def half_of_a_fused_pair_lost(case: Case) -> Expected:
    if not mla(case):
        return None
    case["drafter"]["edits"] = {"drop": ["*kv_a_proj_with_mqa.weight"]}
    return ("names.missing",)


@injection
def odd_parallel_size_of_an_mla_head(case: Case) -> Expected:
    if not mla(case):
        return None
    option(case, "--tp", "7")
    return ("names.tensor-parallel",)


@injection
def head_dim_lost(case: Case) -> Expected:
    c = config(case)
    if mla(case) or c["head_dim"] == c["hidden_size"] // c["num_attention_heads"]:
        return None
    del c["head_dim"]
    return ("names.shape",)


@injection
def odd_parallel_size(case: Case) -> Expected:
    if mla(case):
        return None
    option(case, "--tp", "7")
    return ("names.tensor-parallel",) if config(case)["num_attention_heads"] % 7 else None


# ---- head and token map ---------------------------------------------------------------------------------------


@injection
def head_lost(case: Case) -> Expected:
    if config(case)["tie_word_embeddings"]:
        return None
    template(case)["lm_head"] = False
    return ("head.lm-head-missing",)


@injection
def head_not_pruned(case: Case) -> Expected:
    if not reduced(case):
        return None
    template(case)["lm_head_rows"] = config(case)["vocab_size"]
    return ("head.lm-head-rows",)


@injection
def tied(case: Case) -> Expected:
    if not reduced(case):
        return None
    config(case)["tie_word_embeddings"] = True
    return ("head.tied",)


@injection
def indexed_by_offset(case: Case) -> Expected:
    if not reduced(case) or template(case)["d2t"] != "offset":
        return None
    template(case)["lm_head"] = "indexed-by-offset"
    return ("head.row-order",)


@injection
def rows_rolled(case: Case) -> Expected:
    if not reduced(case):
        return None
    template(case).update({"embed": "target", "lm_head": "target-rows-rolled"})
    return ("head.row-order",)


@injection
def narrow_without_embeddings(case: Case) -> Expected:
    if mla(case):
        return None
    width = 2 * config(case)["hidden_size"]
    template(case).update({"target_hidden": width, "embed": False})
    config(case)["target_hidden_size"] = width
    target(case)["hidden_size"] = width
    return ("head.embedding",)


def _map(kind: str, *expected: str) -> Injection:
    def inject(case: Case) -> Expected:
        if not reduced(case):
            return None
        unsorted = template(case)["d2t"] == "unsorted"
        template(case)["d2t"] = f"{kind}-unsorted" if kind == "absolute" and unsorted else kind
        return expected

    return inject


INJECTIONS["absolute_ids"] = _map("absolute", "vocab.absolute")
INJECTIONS["double_offset"] = _map("double", "vocab.double-offset")
INJECTIONS["zero_map"] = _map("zeros", "vocab.zero")
INJECTIONS["larger_tokenizer"] = _map("range", "vocab.range")
INJECTIONS["repeating_map"] = _map("repeat", "vocab.range")
INJECTIONS["no_map"] = _map("missing", "vocab.missing")


@injection
def cast_map(case: Case) -> Expected:
    if not reduced(case):
        return None
    template(case)["d2t_dtype"] = "BF16"
    return ("vocab.dtype",)


@injection
def map_of_another_run(case: Case) -> Expected:
    if not reduced(case):
        return None
    template(case)["t2d"] = "other"
    return ("vocab.t2d",)


@injection
def short_map(case: Case) -> Expected:
    if not reduced(case):
        return None
    template(case)["d2t_len"] = config(case)["draft_vocab_size"] - 7
    return ("head.lm-head-rows",)
