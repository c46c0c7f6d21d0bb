"""What of a procedure counts: the steps that decide about speculation, and those that they rest on."""

from __future__ import annotations

import re

from eagle3lab.engines.arguments.rules import Step

# Besides the arguments about speculation, those that its rules read and that are decided on the way.
_COUNT = {
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "page_size",
    "device",
    "max_running_requests",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "enable_multi_layer_eagle",
    "attn_dp_size",
    "enable_dp_attention",
    "ep_join_mode",
    "enable_lora",
    "lora_paths",
    "kv_cache_dtype",
    "moe_a2a_backend",
    "moe_runner_backend",
    "quantization",
    "tp_size",
    "dp_size",
    "pp_size",
}


def relevant(name: str) -> bool:
    """Of `args.FIELD`, or of an entry for it in a mapping that is declared later."""
    match = re.fullmatch(r"args\.(\w+)|\w+\['(\w+)'\]", name)
    field = (match[1] or match[2]) if match else ""
    return field in _COUNT or field.startswith("speculative_")


def counts(step: Step) -> bool:
    """Whether a step gives a value to a field that counts."""
    return any(relevant(name) for name in step.subject.split(", "))


def decides(step: Step) -> bool:
    """Whether a step counts by itself, whatever reads what it does."""
    return step.kind not in ("if", "else", "set", "forget", "return") or counts(step)


def tells(steps: list[Step]) -> bool:
    """Whether a function's result is about a field that counts."""
    text = " ".join(step.expression for step in steps)
    entries = [f"entry['{key}']" for key in re.findall(r"'(\w+)':", text)]
    about = any(map(relevant, [*re.findall(r"args\.\w+", text), *entries]))
    return about and any(step.kind == "return" for step in steps)


def needed(steps: list[Step]) -> list[Step]:
    """The steps that decide, what they read, and the conditions that all of these stand under."""
    needed = {number for number, step in enumerate(steps) if decides(step) or step.kind == "return"}
    while True:
        read = {name for number in needed for name in re.findall(r"\b[A-Za-z_]\w*", steps[number].expression)}
        more = {_above(steps, number) for number in needed} - {-1}
        for number, step in enumerate(steps):
            if step.kind in ("set", "forget"):
                names = {name.partition("[")[0] for name in step.subject.split(", ") if "." not in name}
                entries = "[" in step.subject and not counts(step)
                if names & read and not entries:
                    more.add(number)
        if more <= needed:
            return [step for number, step in enumerate(steps) if number in needed]
        needed |= more


def _above(steps: list[Step], number: int) -> int:
    """The condition that a step stands under, of an "else" its "if"; -1 for none."""
    step = steps[number]
    depth = step.depth if step.kind == "else" else step.depth - 1
    kinds = ("if",) if step.kind == "else" else ("if", "else")
    return next(
        (at for at in range(number - 1, -1, -1) if steps[at].depth == depth and steps[at].kind in kinds), -1
    )
