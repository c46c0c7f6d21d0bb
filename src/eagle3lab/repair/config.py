"""Repairs of config.json: the dialect, the class, the layer ids, and the values that the weights themselves prove.

Each takes the working copy, changes it and says what it changed, or leaves it and returns None.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.config import ABSENT, flat_config
from eagle3lab.engines.capture import TOP_LEVEL
from eagle3lab.repair.model import ConfigEdit, Mend

if TYPE_CHECKING:
    from eagle3lab.repair.copy import WorkingCopy

_LAYER_NUMBER = re.compile(r"(?:^|\.)(?:layers|midlayer)(?:\.(\d+))?\.")


def dialect(copy: WorkingCopy) -> Mend | None:
    """From speculators' nested config to the flat one; layer ids stay where vLLM reads them, at the top level."""
    config, engine = copy.config, copy.engine
    if config.dialect != "speculators" or engine.kind != "sglang":
        return None
    architecture = engine.drafter.architectures[0]
    flat, ids = flat_config(config, architecture), config.aux_hidden_state_layer_ids
    if ids:
        flat[TOP_LEVEL] = list(ids)
    if ids and copy.target is None and min(ids) >= engine.capture.shift:
        # Whether they are the defaults of the target is not known: stated, they are captured of any Llama target.
        flat["eagle_config"] = {TOP_LEVEL: [one - engine.capture.shift for one in ids]}
    return Mend(
        "config.json is written in the flat dialect",
        f"every value of the flat file is the nested one's; {architecture} is the class for a Llama layer",
        (copy.set_whole(flat),),
    )


def architecture(copy: WorkingCopy) -> Mend | None:
    """`architectures` to the class that serves EAGLE-3 drafters, if it names none the release knows."""
    config, drafter = copy.config, copy.engine.drafter
    edits: list[ConfigEdit] = []
    if not set(config.architectures) & {*drafter.architectures, *drafter.other_architectures}:
        edits.append(copy.set("architectures", list(drafter.architectures[:1])))
    if config.model_type is None:
        edits.append(copy.set("model_type", "llama"))
    if not edits:
        return None
    return Mend(
        f"config.json names the class {drafter.name}",
        "simulated as that class, the head loads completely (no copy is written otherwise)",
        tuple(edits),
    )


def layer_ids(copy: WorkingCopy) -> Mend | None:
    """The ids from which the release captures what the head was trained on, where it reads them."""
    plan = copy.capture()
    if plan.needed is None or plan.trained is None or plan.fault is None:
        return None
    stated = list(plan.ids or ())
    edits = [copy.set(plan.needed_at, list(plan.needed))]
    if copy.capture().trained != plan.trained:  # the new ids alone leave open which states they mean
        edits.append(copy.set(TOP_LEVEL, list(plan.trained)))
    return Mend(
        f"layer ids {stated} become {list(plan.needed)} in {plan.needed_at}",
        f"{plan.evidence}; from {list(plan.needed)} the release captures the inputs of layers {list(plan.trained)}",
        tuple(edits),
    )


def capture_switch(copy: WorkingCopy) -> Mend | None:
    """use_aux_hidden_state to true, where fc takes several states and the release reads the switch."""
    config, fc = copy.config, copy.ending("fc.weight")
    if config.use_aux_hidden_state or fc is None or len(fc.shape) != 2:
        return None
    states, left = divmod(fc.shape[1], config.target_hidden_size)
    if left or states < 2:
        return None
    return Mend(
        "use_aux_hidden_state becomes true",
        "a head that is trained on the last state alone has no fc of several states",
        (copy.set(config.sources["use_aux_hidden_state"], True),),
    )


def null_target_size(copy: WorkingCopy) -> Mend | None:
    """target_hidden_size: null away, where the release multiplies it."""
    if copy.raw.get("target_hidden_size", 0) is not None:
        return None
    return Mend(
        "target_hidden_size: null is removed",
        "absent, it means hidden_size, which is what null means to those who write it",
        (copy.set("target_hidden_size", ABSENT),),
    )


def layer_count(copy: WorkingCopy) -> Mend | None:
    """num_hidden_layers to the number of decoder layers that have tensors."""
    found = [_LAYER_NUMBER.search(name) for name in copy.checkpoint.tensors]
    numbers = {int(match[1] or 0) for match in found if match}
    stated = copy.config.num_hidden_layers
    if numbers != set(range(len(numbers))) or not 0 < len(numbers) < stated:
        return None
    return Mend(
        f"num_hidden_layers becomes {len(numbers)}",
        "the layers beyond have no tensor at all: the number was copied from the target",
        (copy.set("num_hidden_layers", len(numbers)),),
    )


def head_dim(copy: WorkingCopy) -> Mend | None:
    """head_dim, where it is not stated and all four projections have the same one."""
    config = copy.config
    shapes = [_projection(copy, f"self_attn.{name}_proj.weight") for name in "qkvo"]
    if not config.sources["head_dim"].startswith("derived") or any(s is None or len(s) != 2 for s in shapes):
        return None
    q, k, v, o = (shape for shape in shapes if shape is not None)
    sizes = {
        q[0] / config.num_attention_heads,
        o[1] / config.num_attention_heads,
        k[0] / config.num_key_value_heads,
        v[0] / config.num_key_value_heads,
    }
    size = sizes.pop()
    if sizes or size != int(size) or size == config.head_dim:
        return None
    return Mend(
        f"head_dim becomes {int(size)}",
        f"all four are {int(size)} a head, with the {config.num_attention_heads} heads and "
        f"{config.num_key_value_heads} key-value heads of the config",
        (copy.set("head_dim", int(size)),),
    )


def _projection(copy: WorkingCopy, tail: str) -> tuple[int, ...] | None:
    return next(
        (one.shape for one in copy.checkpoint.contents.offered if one.name.endswith(f".{tail}")), None
    )


def draft_vocabulary(copy: WorkingCopy) -> Mend | None:
    """draft_vocab_size to the rows of lm_head, where d2t or the vocabulary has as many; null without a head."""
    config = copy.config
    head, token_map = copy.ending("lm_head.weight"), copy.ending("d2t")
    rows = head.shape[0] if head is not None and len(head.shape) == 2 else None
    entries = token_map.shape[0] if token_map is not None and len(token_map.shape) == 1 else None
    if not config.stated("draft_vocab_size"):
        proven = rows if rows is not None and rows == (entries or config.vocab_size) else None
        if proven is None and (rows, entries) != (None, None):
            return None
        proof = (
            f"lm_head.weight has {proven} rows, as many as "
            + ("d2t has entries" if entries else "the vocabulary has tokens")
            if proven is not None
            else "the checkpoint has no lm_head of its own: null lets the engine take the target's"
        )
    elif rows is not None and rows == entries != config.draft_vocab_size and rows <= config.vocab_size:
        proven = rows
        proof = f"lm_head.weight has {rows} rows and d2t has {rows} entries"
    else:
        return None
    edit = copy.set("draft_vocab_size", proven)
    shown = "null" if proven is None else proven
    return Mend(f"draft_vocab_size becomes {shown}", proof, (edit,))


def input_norms(copy: WorkingCopy) -> Mend | None:
    """The switch for norms before fc, where the weights are there and the release has it."""
    for switch, tail in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        rule = copy.engine.switches.get(switch)
        if rule is None or getattr(copy.config, switch) or copy.ending(tail) is None:
            continue
        paths = rule.present or rule.any
        stated = next((path for path in paths if copy.config.stated(path)), None)
        path = stated or next(path for path in paths if "." not in path)
        return Mend(
            f"{path} becomes true",
            f"a trainer saves {tail} only for a head that normalises before fc; {copy.engine.spec} has the "
            f"switch ({rule.source})",
            (copy.set(path, True),),
        )
    return None


def tie(copy: WorkingCopy) -> Mend | None:
    """tie_word_embeddings to false, where a reduced head of its own is there."""
    config, head = copy.config, copy.ending("lm_head.weight")
    drafts = config.draft_vocab_size
    if not config.tie_word_embeddings or drafts is None or drafts >= config.vocab_size or head is None:
        return None
    if head.shape != (drafts, config.hidden_size):
        return None
    return Mend(
        "tie_word_embeddings becomes false",
        f"lm_head.weight is there with {drafts} rows; embeddings of {config.vocab_size} rows cannot be that head",
        (copy.set("tie_word_embeddings", False),),
    )


def rope(copy: WorkingCopy) -> Mend | None:
    """rope_theta and rope_scaling beside transformers 5's `rope_parameters`, for releases that need them."""
    config = copy.config
    if config.sources["rope_theta"] != "rope_parameters.rope_theta":
        return None
    return Mend(
        f"rope_theta {config.rope_theta:g} is stated where {copy.engine.spec} reads it",
        "the same values, at the top level",
        (
            copy.set("rope_theta", config.rope_theta),
            copy.set("rope_scaling", dict(config.rope_scaling) if config.rope_scaling else None),
        ),
    )


def norm_before_residual(copy: WorkingCopy) -> Mend | None:
    """norm_before_residual as false, where the library that wrote the config is silent and vLLM takes true."""
    config = copy.config
    if config.dialect != "speculators" or config.stated("norm_before_residual") or copy.engine.kind != "vllm":
        return None
    return Mend(
        "norm_before_residual is stated as false",
        "the library that wrote the config trains with false unless it states true",
        (copy.set("norm_before_residual", False),),
    )
