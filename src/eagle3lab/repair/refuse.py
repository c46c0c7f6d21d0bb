"""What a changed copy cannot repair: read off the simulated load of the copy, and off its config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eagle3lab.engines.release import or_later
from eagle3lab.repair.model import Refusal
from eagle3lab.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.engines.loading import LoadPlan, TensorPlan
    from eagle3lab.repair.working_copy import WorkingCopy

# Tensors that carry nothing of the trained drafter: the target's own weights kept beside it, tables that are computed.
_WITHOUT_EFFECT = re.compile(r"(?:^|\.)(?:verifier_\w+|target_model)\.|rotary_emb\.inv_freq$")
_SCALE = re.compile(r"(?:_scale(?:_inv|_2)?|\.scales|\.qzeros|\.qweight|\.g_idx)$")
_NORM_BEFORE_FC = re.compile(r"(?:^|\.)(?:input_norm|fc_norm\.\d+|aux_norm_\w+)\.")

# A switch that no fact states, and one that came into the drafter class with the same release (0.5.12).
_SAME_RELEASE = {"norm_output": "fc_norm"}
_FLAGS = {
    "norm_before_residual": (
        "layer.norm-before-residual",
        "adds the un-normed hidden state as residual, where the head was trained with the normed one",
        "Serve it with vLLM, which honours norm_before_residual.",
        "Train again with norm_before_residual false.",
    ),
    "norm_before_fc": (
        "layer.norm-before-fc",
        "feeds fc without the norm before it",
        f"Serve it with a release that has norm_before_fc ({or_later('reads norm_before_fc')}).",
        "Train again with norm_before_fc false.",
    ),
    "fc_norm": (
        "layer.norm-before-fc",
        "feeds fc without the norm of each state before it",
        f"Serve it with a release that has fc_norm ({or_later('reads fc_norm')}).",
        "Train again with fc_norm false.",
    ),
    "norm_output": (
        "layer.norm-output",
        "hands on the hidden state from before the final norm",
        f"Serve it with a release that has norm_output ({or_later('reads norm_output')}).",
        "Train again with norm_output false.",
    ),
}
_AGAIN = "Export the drafter again from its training run."


def refusals(copy: WorkingCopy, plan: LoadPlan) -> tuple[Refusal, ...]:
    """Everything that keeps the copy from being loaded completely and computing what was trained.

    Args:
        copy: The copy with every change made.
        plan: Its simulated load.
    """
    found = [*_of_flags(copy), *_of_width(copy), *_of_quantisation(copy), *_of_load(copy, plan)]
    unique: dict[str | None, Refusal] = {}
    for refusal in found:
        first = unique.setdefault(refusal.fault, refusal)
        if first is not refusal:
            unique[refusal.fault] = Refusal(
                first.fault,
                first.reason,
                (*first.evidence, refusal.reason, *refusal.evidence),
                first.alternatives,
            )
    return tuple(unique.values())


def reads(engine: EngineFacts, key: str) -> bool:
    """Whether a switch of the drafter class reads this config key."""
    paths = (path for s in engine.switches.values() for path in (*s.any, *s.none, *s.present))
    return any(path.rpartition(".")[2] == key for path in paths)


def _of_flags(copy: WorkingCopy) -> Iterator[Refusal]:
    for flag, (fault, effect, *alternatives) in _FLAGS.items():
        if getattr(copy.config, flag) and not reads(copy.engine, _SAME_RELEASE.get(flag, flag)):
            place = copy.config.sources[flag]
            yield Refusal(
                fault,
                f"{copy.engine.spec} ignores {flag}: it {effect}",
                (f"{place} is true", f"no switch of {copy.engine.drafter.name} reads {flag}"),
                tuple(alternatives),
            )


def _of_width(copy: WorkingCopy) -> Iterator[Refusal]:
    """SGLang applies fc only where the incoming width is not the embeddings' (`models/llama_eagle3.py`, forward)."""
    fc = copy.find("fc.weight")
    if copy.engine.kind == "sglang" and fc is not None and fc.shape == (copy.config.hidden_size,) * 2:
        yield Refusal(
            "capture.width",
            f"{copy.engine.spec} skips fc where the state is as wide as the embeddings",
            (f"fc.weight is {list(fc.shape)}, one state of the head's own width",),
            ("Train again with several auxiliary states (the default is three).", "Serve it with vLLM."),
        )


def _of_quantisation(copy: WorkingCopy) -> Iterator[Refusal]:
    if copy.raw.get("quantization_config"):
        yield Refusal(
            "layer.quantisation",
            "The drafter is quantised, which changes its parameters and their loaders; neither is simulated",
            ("config.json has a quantization_config",),
            ("Repair the unquantised head and quantise it again.",),
        )


def _of_load(copy: WorkingCopy, plan: LoadPlan) -> Iterator[Refusal]:
    error = plan.construction_error
    if error is not None:
        layers = copy.config.num_hidden_layers
        counted = layers > 1 and any(rule.rule == "one layer" for rule in copy.engine.construction)
        yield Refusal(
            "head-kind.layer-count" if counted else "head-kind.config-value",
            f"{copy.engine.spec} cannot build {copy.engine.drafter.name}: {error.type}: {error.message}",
            (f"num_hidden_layers is {layers}, and the weights hold as many",) if counted else (),
            (f"Serve it with a release that takes several layers ({or_later('builds several layers')}).",)
            if counted
            else (),
        )
        return
    if plan.rejected is not None:
        yield _rejected(copy, plan.rejected)
        return
    dropped = [tensor for tensor in plan.tensors_with("dropped") if not _harmless(copy, tensor.name)]
    yield from _dropped(copy, dropped)
    yield from _not_loaded(copy, plan)


def _rejected(copy: WorkingCopy, tensor: TensorPlan) -> Refusal:
    fc = copy.find(tensor.name)
    width = fc.shape[-1] if fc is not None and fc.shape else 0
    single = tensor.parameter == "model.fc.weight" and width == 2 * copy.config.hidden_size
    return Refusal(
        "head-kind.not-eagle3" if single else "names.shape",
        "fc joins one hidden state and one embedding: this is an EAGLE-1 or EAGLE-2 head"
        if single
        else f"{copy.engine.spec} stops at a tensor whose shape or dtype does not fit",
        (f"{printable(tensor.name)}: {tensor.reason}",),
        ("Serve it with --speculative-algorithm EAGLE.",) if single else (_AGAIN,),
    )


def _harmless(copy: WorkingCopy, name: str) -> bool:
    config = copy.config
    whole = config.draft_vocab_size in (None, config.vocab_size)
    shared = name.endswith("lm_head.weight") and config.tie_word_embeddings and whole
    # Readers of the speculators format stop at names they do not know.
    return shared or (copy.engine.kind == "sglang" and _WITHOUT_EFFECT.search(name) is not None)


def _dropped(copy: WorkingCopy, dropped: list[TensorPlan]) -> Iterator[Refusal]:
    groups: dict[str, list[str]] = {}
    for tensor in dropped:
        groups.setdefault(_fault_of(tensor.name), []).append(printable(tensor.name))
    advice = {
        "layer.quantisation": "Repair the unquantised head and quantise it again.",
        "layer.bias": "Train again with attention_bias false.",
        "layer.norm-before-fc": "Serve it with a release that has the norm before fc "
        f"({or_later('reads norm_before_fc')}).",
        "names.unsupported-tensor": "Train again with a plain Llama layer (no q_norm or k_norm, no extra tensors), "
        "or serve it with an engine that has these parameters.",
    }
    for fault, names in groups.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield Refusal(
            fault,
            f"{copy.engine.spec} has no parameter for {len(names)} trained tensor(s)",
            (f"dropped without a message: {', '.join(names[:4])}{more}",),
            (advice[fault],),
        )


def _fault_of(name: str) -> str:
    if _SCALE.search(name):
        return "layer.quantisation"
    if name.endswith(".bias"):
        return "layer.bias"
    return "layer.norm-before-fc" if _NORM_BEFORE_FC.search(name) else "names.unsupported-tensor"


def _not_loaded(copy: WorkingCopy, plan: LoadPlan) -> Iterator[Refusal]:
    config = copy.config
    for parameter in plan.parameters:
        if parameter.status not in ("left as initialised", "partly loaded"):
            continue
        replaced = next((r for r in copy.engine.from_target if r.parameter == parameter.name), None)
        if replaced is not None and replaced.when_null is None:
            if len({getattr(config, size) for size in replaced.unless_differs}) == 1:
                continue  # the target's own takes its place
            yield Refusal(
                "head.embedding",
                "The head has a width of its own, so the target's embeddings cannot stand in, and it has none",
                (f"{parameter.name}: {parameter.reason}",),
                (_AGAIN,),
            )
        elif parameter.name.endswith("o_proj.bias"):
            continue  # zero where no tensor reaches it, which is no bias
        elif parameter.name == "lm_head.weight":
            yield Refusal("head.lm-head-missing", "lm_head gets no tensor", (parameter.reason,), (_AGAIN,))
        elif shadowed := [f for f in copy.checkpoint.files.ignored if f.reason.startswith("shadowed")]:
            names = ", ".join(printable(file.name) for file in shadowed)
            yield Refusal(
                "files.stale-safetensors",
                "Engines read the safetensors files, which do not hold the drafter",
                (
                    f"{parameter.name}: {parameter.reason}",
                    f"not read, because safetensors are there: {names}",
                ),
                (f"Remove the safetensors files from a copy of the folder, if {names} holds the drafter.",),
            )
        else:
            yield Refusal(
                "layer.bias" if parameter.name.endswith(".bias") else "names.missing",
                f"No tensor of the checkpoint is meant for {parameter.name}",
                (f"{parameter.status}: {parameter.reason}", *_on_disk(copy)),
                (_AGAIN,),
            )


def _on_disk(copy: WorkingCopy) -> tuple[str, ...]:
    ignored = copy.checkpoint.files.ignored
    return tuple(f"{printable(file.name)} is not read: {file.reason}" for file in ignored)
