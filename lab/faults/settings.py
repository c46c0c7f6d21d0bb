"""Faults of config.json and of the launch command: what is captured, how the layer computes, what is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

from eagle3lab.checkpoint import Checkpoint
from eagle3lab.engines.extract import ReleaseFacts
from eagle3lab.engines.release import Release
from lab.faults.model import DEAD, LATER, PARTIAL, STOPS, Applies, command, fault, variant, with_target
from lab.specimen.paths import drafter_dir, target_dir
from lab.specimen.variant import write_variant


def holds(rule: str, facts: ReleaseFacts) -> bool:
    """Whether a release rule of the diagnosis holds in this SGLang."""
    return Release("sglang", facts.release or "").holds(rule)


def _where(rule: str, otherwise: str) -> Applies:
    """Affected are the releases in which the rule holds; of the others, `otherwise` is said."""
    return lambda facts: None if holds(rule, facts) else otherwise


# ---- what is captured ----------------------------------------------------------------------------------------------

for _name, _ids, _change, _expected in (
    (
        "capture.ids-convention/inputs-for-outputs",
        [2, 4, 5],
        "The ids of the layers whose input the head was trained on (2, 4, 5) stand where ids of outputs are read.",
        "somewhat fewer drafts are accepted: neighbouring layers are alike",
    ),
    (
        "capture.ids-convention/twice-converted",
        [0, 2, 3],
        "Ids of outputs (1, 3, 4) were converted once more, to 0, 2, 3.",
        "somewhat fewer drafts are accepted: neighbouring layers are alike",
    ),
    (
        "capture.ids-convention/early-layers",
        [0, 1, 2],
        "The ids name the first three layers, 0, 1 and 2.",
        PARTIAL,
    ),
    (
        "capture.ids-range",
        [1, 3, 8],
        "The last id, 8, names a layer that the target of eight layers does not have.",
        STOPS,
    ),
    ("capture.ids-count", [1, 3], "Two ids are named for an fc that takes three states.", STOPS),
):
    _nested = {"eagle_aux_hidden_state_layer_ids": _ids, "use_aux_hidden_state": True}
    variant(_name, _change, _expected, config={"eagle_config": _nested})
variant(
    "capture.disabled",
    "eagle_config.use_aux_hidden_state is false: one state instead of three, as wide as the embedding, so fc is "
    "skipped.",
    DEAD,
    config={"eagle_config": {"use_aux_hidden_state": False}},
)


@fault(
    "capture.target-unsupported",
    "The target's config.json names XverseForCausalLM, a class of the same layers that hands over no states.",
    STOPS,
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out)
    with_target(out, lambda target, to: _with_class(target, to, "XverseForCausalLM"))


def _with_class(target: Checkpoint, to: Path, name: str) -> None:
    write_variant(target, to, config={"architectures": [name]})


command("capture.algorithm/EAGLE", "--speculative-algorithm is EAGLE.", DEAD, algorithm="EAGLE")
command("capture.algorithm/NEXTN", "--speculative-algorithm is NEXTN.", DEAD, algorithm="NEXTN")

# ---- the layer -----------------------------------------------------------------------------------------------------

_ROPE = _where(
    "reads rope_parameters",
    "this release reads rope_theta as an attribute, which transformers 5 does not set: the base is 10 000 "
    "here whatever config.json says",
)
variant(
    "layer.norm-output/stated",
    "config.json says norm_output, with which the head was not trained.",
    LATER,
    applies=_where("reads norm_output", "this release does not read norm_output"),
    config={"norm_output": True},
)
variant(
    "layer.rope/base-500000",
    "rope_theta is 500 000; the head was trained with 10 000.",
    PARTIAL,
    applies=_ROPE,
    config={"rope_theta": 5e5},
)
variant(
    "layer.rope/base-100",
    "rope_theta is 100; the head was trained with 10 000.",
    PARTIAL,
    applies=_ROPE,
    config={"rope_theta": 100.0},
)
variant(
    "layer.rope/linear-4",
    "rope_scaling divides positions by four; the head was trained without scaling.",
    PARTIAL,
    applies=_ROPE,
    config={"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
)
variant(
    "layer.bias",
    "config.json says attention_bias, and the checkpoint has no biases.",
    "the output projection's bias is left to chance",
    config={"attention_bias": True},
)
variant(
    "layer.bias/fc",
    "config.json says bias, and the checkpoint has no bias of fc.",
    "biases of fc and of the output projection are left to chance",
    config={"bias": True},
)
variant(
    "layer.context",
    "max_position_embeddings is 16, shorter than any answer.",
    "the engine stops, or drafts fail behind the sixteenth token",
    modelled=False,
    config={"max_position_embeddings": 16},
)

# ---- the kind of head ----------------------------------------------------------------------------------------------

for _name, _class in (
    ("head-kind.architecture", "LlamaForCausalLM"),
    ("head-kind.architecture/unknown", "Eagle3LlamaForCausalLM"),
):
    variant(_name, f"`architectures` names {_class}.", STOPS, config={"architectures": [_class]})


@fault("head-kind.not-eagle3", "The drafter is a language model: the target itself.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    shutil.copytree(target_dir(), out)


@fault("head-kind.config-dialect", "config.json and names are left as speculators saved them.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    out.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(drafter_dir() / name, out / name)


variant(
    "head-kind.config-value/draft-vocabulary",
    "draft_vocab_size is absent from config.json.",
    STOPS,
    without_config=["draft_vocab_size"],
)
variant(
    "head-kind.config-value/target-width",
    "target_hidden_size is null.",
    STOPS,
    config={"target_hidden_size": None},
)
variant(
    "head-kind.config-value/eagle-config",
    "eagle_config is null.",
    STOPS,
    applies=_where("fails on a null eagle_config", "this release takes a null eagle_config"),
    modelled=False,
    config={"eagle_config": None},
)
variant(
    "head-kind.layer-count",
    "num_hidden_layers is 2 for one decoder layer in the weights.",
    "the engine stops, or a second layer is left to chance",
    config={"num_hidden_layers": 2},
)

# ---- the command ---------------------------------------------------------------------------------------------------

command(
    "flags.draft-tokens/chain-of-8",
    "Eight draft tokens are asked of a chain of three steps.",
    "no effect: the engine makes four of them",
    draft_tokens=8,
)
command(
    "flags.draft-tokens/pruned-tree",
    "A tree of four branches and three steps is cut to four draft tokens.",
    "later positions are drafted seldom",
    topk=4,
    draft_tokens=4,
)
command(
    "flags.draft-tokens/too-few",
    "A tree of four branches and three steps is cut to two draft tokens, fewer than its depth.",
    STOPS,
    modelled=False,
    topk=4,
    draft_tokens=2,
)
command(
    "flags.method",
    "--speculative-algorithm is STANDALONE, which takes the drafter for a language model.",
    STOPS,
    modelled=False,
    algorithm="STANDALONE",
)
command(
    "flags.draft-path",
    "The command has no --speculative-draft-model-path.",
    STOPS,
    modelled=False,
    drafter=None,
)
command(
    "flags.incompatible",
    "The command asks for LoRA as well: --enable-lora, with rank and modules for adapters to come.",
    STOPS,
    applies=_where("refuses LoRA with EAGLE3", "this release serves LoRA and EAGLE3 together"),
    modelled=False,
    extra=("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"),
)
