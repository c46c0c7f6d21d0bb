"""The other direction: a copy in the format of the speculators library, which vLLM serves as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.checkpoint.config import speculators_config
from eagle3lab.repair.model import Change, Refusal
from eagle3lab.repair.tensors import rename

if TYPE_CHECKING:
    from eagle3lab.repair.copy import WorkingCopy

#: How the format is named where an engine is asked for.
SPECULATORS = "speculators"


def convert(copy: WorkingCopy) -> tuple[list[Change], list[Refusal]]:
    """Write the nested config and the format's own names, whatever vLLM would take besides."""
    config = None if copy.config.dialect == SPECULATORS else _nested(copy)
    if isinstance(config, Refusal):
        return [], [config]
    changes = [] if config is None else [config]
    if (names := rename(copy, strict=True)) is not None:
        seen = (f"{len(names.edits)} tensors do not have the names the format gives them",)
        changes.append(Change("names.dropped", names.title, seen, names.proof, names.edits))
    return changes, []


def _nested(copy: WorkingCopy) -> Change | Refusal:
    """The nested config, layer ids as inputs of layers at its top level."""
    original, target = copy.config, copy.target
    named = target.raw_config.get("architectures") if target is not None else None
    verifier = original.verifier or (None if target is None else str(target.path.resolve()))
    if verifier is None or not isinstance(named, list):
        reason = "The format names the target (verifier) and its class, and neither is known"
        advice = ("Give the target's folder with --target.",)
        return Refusal("head-kind.config-dialect", reason, (), advice)
    plan = copy.capture()
    ids = "the library's defaults" if plan.trained is None else f"{list(plan.trained)}, inputs of layers"
    stated = (f"{plan.place} is {list(plan.ids)}: {plan.evidence}",) if plan.ids else ()
    return Change(
        "head-kind.config-dialect",
        "config.json is written in the speculators dialect",
        (f"config.json is in the {original.dialect} dialect", *stated),
        f"every value is the flat file's; layer ids are {ids}",
        (copy.set_whole(speculators_config(original, plan.trained, verifier, named)),),
    )
