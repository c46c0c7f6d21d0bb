"""Faults of config.json and of the launch command: what is captured, how the layer computes, what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint import Checkpoint
from eagle3lab.engines.extract import ReleaseFacts
from eagle3lab.engines.release import Release
from lab.faults.model import DEAD, LATER, PARTIAL, STOPS, Applies, always, fault
from lab.specimen.variant import write_variant


def holds(rule: str, facts: ReleaseFacts) -> bool:
    """Whether a release rule of the diagnosis holds in this SGLang."""
    return Release("sglang", facts.release or "").holds(rule)


def _where(rule: str, otherwise: str) -> Applies:
    """Affected are the releases in which the rule holds; of the others, `otherwise` is said."""
    return lambda facts: None if holds(rule, facts) else otherwise


# ---- what is captured ----------------------------------------------------------------------------------------------


def _ids(name: str, ids: list[int], change: str, expected: str) -> None:
    @fault(name, change, expected)
    def _(head: Checkpoint, out: Path) -> None:
        nested = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
        write_variant(head, out, config={"eagle_config": nested})


_ids(
    "capture.ids-convention/inputs-for-outputs",
    [2, 4, 5],
    "The ids of the layers whose input the head was trained on (2, 4, 5) stand where ids of outputs are read.",
    "somewhat fewer drafts are accepted: neighbouring layers are alike",
)
_ids(
    "capture.ids-convention/twice-converted",
    [0, 2, 3],
    "Ids of outputs (1, 3, 4) were converted once more, to 0, 2, 3.",
    "somewhat fewer drafts are accepted: neighbouring layers are alike",
)
_ids(
    "capture.ids-convention/early-layers",
    [0, 1, 2],
    "The ids name the first three layers, 0, 1 and 2.",
    PARTIAL,
)
_ids(
    "capture.ids-range",
    [1, 3, 8],
    "The last id, 8, names a layer that the target of eight layers does not have.",
    STOPS,
)
_ids("capture.ids-count", [1, 3], "Two ids are named for an fc that takes three states.", STOPS)


@fault(
    "capture.disabled",
    "eagle_config.use_aux_hidden_state is false: one state instead of three, as wide as the embedding, so fc is "
    "skipped.",
    DEAD,
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"eagle_config": {"use_aux_hidden_state": False}})


@fault(
    "capture.target-unsupported",
    "The target's config.json names XverseForCausalLM, a class of the same layers that hands over no states.",
    STOPS,
)
def _(head: Checkpoint, out: Path) -> None:
    import json
    import shutil

    from lab.specimen.paths import target_dir

    write_variant(head, out)
    folder = out.parent / "target"
    shutil.copytree(target_dir(), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["XverseForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _launch(
    name: str, change: str, expected: str, *, applies: Applies = always, modelled: bool = True, **fields: Any
) -> None:
    @fault(name, change, expected, applies=applies, modelled=modelled)
    def _(head: Checkpoint, out: Path) -> Mapping[str, Any]:
        return fields


_launch("capture.algorithm/EAGLE", "--speculative-algorithm is EAGLE.", DEAD, algorithm="EAGLE")
_launch("capture.algorithm/NEXTN", "--speculative-algorithm is NEXTN.", DEAD, algorithm="NEXTN")

# ---- the layer -----------------------------------------------------------------------------------------------------


@fault(
    "layer.norm-output/stated",
    "config.json says norm_output, with which the head was not trained.",
    LATER,
    applies=_where("reads norm_output", "this release does not read norm_output"),
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"norm_output": True})


def _rope(name: str, change: str, expected: str, **settings: Any) -> None:
    @fault(
        f"layer.rope/{name}",
        change,
        expected,
        applies=_where(
            "reads rope_parameters",
            "this release reads rope_theta as an attribute, which transformers 5 does not set: the base is 10 000 "
            "here whatever config.json says",
        ),
    )
    def _(head: Checkpoint, out: Path) -> None:
        write_variant(head, out, config=settings)


_rope("base-500000", "rope_theta is 500 000; the head was trained with 10 000.", PARTIAL, rope_theta=5e5)
_rope("base-100", "rope_theta is 100; the head was trained with 10 000.", PARTIAL, rope_theta=100.0)
_rope(
    "linear-4",
    "rope_scaling divides positions by four; the head was trained without scaling.",
    PARTIAL,
    rope_scaling={"rope_type": "linear", "factor": 4.0},
)


@fault(
    "layer.bias",
    "config.json says attention_bias, and the checkpoint has no biases.",
    "the output projection's bias is left to chance",
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"attention_bias": True})


@fault(
    "layer.bias/fc",
    "config.json says bias, and the checkpoint has no bias of fc.",
    "biases of fc and of the output projection are left to chance",
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"bias": True})


@fault(
    "layer.context",
    "max_position_embeddings is 16, shorter than any answer.",
    "the engine stops, or drafts fail behind the sixteenth token",
    modelled=False,
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"max_position_embeddings": 16})


# ---- the kind of head ----------------------------------------------------------------------------------------------


@fault("head-kind.architecture", "`architectures` names LlamaForCausalLM.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"architectures": ["LlamaForCausalLM"]})


@fault("head-kind.architecture/unknown", "`architectures` names Eagle3LlamaForCausalLM.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"architectures": ["Eagle3LlamaForCausalLM"]})


@fault(
    "head-kind.not-eagle3",
    "The drafter is a language model: the target itself.",
    STOPS,
)
def _(head: Checkpoint, out: Path) -> None:
    import shutil

    from lab.specimen.paths import target_dir

    shutil.copytree(target_dir(), out)


@fault("head-kind.config-dialect", "config.json and names are left as speculators saved them.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    import shutil

    from lab.specimen.paths import drafter_dir

    out.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(drafter_dir() / name, out / name)


@fault("head-kind.config-value/draft-vocabulary", "draft_vocab_size is absent from config.json.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, without_config=["draft_vocab_size"])


@fault("head-kind.config-value/target-width", "target_hidden_size is null.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"target_hidden_size": None})


@fault(
    "head-kind.config-value/eagle-config",
    "eagle_config is null.",
    STOPS,
    applies=_where("fails on a null eagle_config", "this release takes a null eagle_config"),
    modelled=False,
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"eagle_config": None})


@fault(
    "head-kind.layer-count",
    "num_hidden_layers is 2 for one decoder layer in the weights.",
    "the engine stops, or a second layer is left to chance",
)
def _(head: Checkpoint, out: Path) -> None:
    write_variant(head, out, config={"num_hidden_layers": 2})


# ---- the command ---------------------------------------------------------------------------------------------------

_launch(
    "flags.draft-tokens/chain-of-8",
    "Eight draft tokens are asked of a chain of three steps.",
    "no effect: the engine makes four of them",
    draft_tokens=8,
)
_launch(
    "flags.draft-tokens/pruned-tree",
    "A tree of four branches and three steps is cut to four draft tokens.",
    "later positions are drafted seldom",
    topk=4,
    draft_tokens=4,
)
_launch(
    "flags.draft-tokens/too-few",
    "A tree of four branches and three steps is cut to two draft tokens, fewer than its depth.",
    STOPS,
    modelled=False,
    topk=4,
    draft_tokens=2,
)
_launch(
    "flags.method",
    "--speculative-algorithm is STANDALONE, which takes the drafter for a language model.",
    STOPS,
    modelled=False,
    algorithm="STANDALONE",
)
_launch(
    "flags.draft-path",
    "The command has no --speculative-draft-model-path.",
    STOPS,
    modelled=False,
    drafter=None,
)
_launch(
    "flags.incompatible",
    "The command asks for LoRA as well: --enable-lora, with rank and modules for adapters to come.",
    STOPS,
    applies=_where("refuses LoRA with EAGLE3", "this release serves LoRA and EAGLE3 together"),
    modelled=False,
    extra=("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"),
)
