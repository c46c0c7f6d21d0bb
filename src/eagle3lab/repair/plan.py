"""From a drafter and a release to what has to change, each change proven by what is on disk and by simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.release import newest_release
from eagle3lab.errors import InputError
from eagle3lab.repair.bias import repair_bias
from eagle3lab.repair.configs import (
    repair_architecture,
    repair_capture_switch,
    repair_dialect,
    repair_rope,
    repair_tie,
    repair_values,
)
from eagle3lab.repair.head import repair_head
from eagle3lab.repair.index import repair_index
from eagle3lab.repair.layer_ids import repair_layer_ids, target_shape
from eagle3lab.repair.model import Change, Refusal, RepairPlan
from eagle3lab.repair.names import repair_names
from eagle3lab.repair.refuse import refusals
from eagle3lab.repair.speculators import (
    RELEASES,
    convert_config,
    refuse_identity_map,
    speculators_facts,
)
from eagle3lab.repair.token_map import repair_token_map
from eagle3lab.repair.working_copy import WorkingCopy

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.engines.facts import EngineFacts


def repair_engine(spec: str) -> EngineFacts:
    """The facts of what a copy can be made for: `sglang==X.Y.Z`, `installed`, `vllm` or `speculators`.

    Raises:
        InputError: There are none.
    """
    facts = speculators_facts(spec)
    if facts is not None:
        return facts
    kind = spec.partition("==")[0].strip().lower()
    if kind in RELEASES:
        raise InputError(
            f"no facts about {spec}",
            advice=f"Write {kind} or {kind}=={RELEASES[kind]}, the release that was tried",
        )
    return resolve_engine(spec)


def plan_repair(checkpoint: Checkpoint, engine: EngineFacts, target: Checkpoint | None = None) -> RepairPlan:
    """What a copy of `checkpoint` needs so that `engine` loads it completely and computes what was trained.

    Nothing is written. A change is planned only where the files prove it; the whole copy is then loaded in
    simulation, and whatever keeps that from being complete is refused.

    Args:
        checkpoint: The drafter.
        engine: The release, from `repair_engine`.
        target: The target's folder: its config settles layer ids, its weights a missing head or a doubtful map.

    Raises:
        InputError: A file cannot be read, or the folder holds no weights.
    """
    plan = _plan(checkpoint, engine, target)
    if not plan.refusals or engine.kind in RELEASES:
        return plan
    return _with_other_release(plan, engine, target)


def _plan(checkpoint: Checkpoint, engine: EngineFacts, target: Checkpoint | None) -> RepairPlan:
    if not checkpoint.files.read:
        raise InputError(
            "holds no weights", path=checkpoint.path, advice="Give the folder the trainer exported."
        )
    original = checkpoint.config
    serving = engine.serving(original.architectures)
    if serving.drafter_kind == "EAGLE-3":
        engine = serving
    copy = WorkingCopy(checkpoint, engine)
    other = set(original.architectures) & {*engine.drafter.other_architectures, *engine.undescribed}
    if other - set(engine.drafter.architectures):
        reason = f"{engine.spec} serves {min(other)} with a class that eagle3lab does not describe"
        refusal = Refusal(
            None, reason, ("what that class loads cannot be simulated, so nothing can be proven",)
        )
        return RepairPlan(engine.spec, checkpoint, (), (refusal,), (), None, None, copy)
    before = copy.simulate()
    steps = _Steps(copy)
    shape = None if target is None else target_shape(target.raw_config)
    nested = engine.kind in RELEASES
    if nested:
        steps.take(*convert_config(copy, original, target, shape))
    else:
        steps.take(repair_dialect(copy))
        steps.take(repair_architecture(copy))
    for change in repair_values(copy):
        steps.take(change)
    steps.take(repair_tie(copy))
    if not nested:
        steps.take(repair_rope(copy))
        steps.take(repair_capture_switch(copy))
    steps.take(repair_index(copy))
    steps.take(repair_names(copy, strict=nested))
    if nested:
        steps.take(None, refuse_identity_map(copy))
    else:
        steps.take(*repair_layer_ids(copy, original, shape))
    steps.take(*repair_token_map(copy, target))
    steps.take(*repair_head(copy, target))
    steps.take(repair_bias(copy))
    after = copy.simulate()
    known = {refusal.fault for refusal in steps.refusals}
    steps.refusals += [refusal for refusal in refusals(copy, after) if refusal.fault not in known]
    return RepairPlan(
        engine.spec,
        checkpoint,
        tuple(steps.changes),
        tuple(steps.refusals),
        tuple(steps.notes),
        before,
        after,
        copy,
    )


class _Steps:
    """What the steps have come to so far."""

    def __init__(self, copy: WorkingCopy) -> None:
        self.copy = copy
        self.changes: list[Change] = []
        self.refusals: list[Refusal] = []
        self.notes: list[str] = list(copy.engine.notes)

    def take(self, change: Change | None, refusal: Refusal | None = None, note: str = "") -> None:
        """Note down the outcome of one step."""
        self.changes += [change] if change is not None else []
        self.refusals += [refusal] if refusal is not None else []
        self.notes += [note] if note else []


def _with_other_release(plan: RepairPlan, engine: EngineFacts, target: Checkpoint | None) -> RepairPlan:
    """The same, with the newest release named where it takes what this one does not."""
    newest = resolve_engine(str(newest_release()))
    if newest.spec == engine.spec:
        return plan
    try:
        other = _plan(plan.checkpoint, newest, target)
    except InputError:
        return plan
    left = {refusal.fault for refusal in other.refusals}
    advice = f"Repair it for {newest.spec}, to which this is no obstacle."
    return replace(
        plan,
        refusals=tuple(
            refusal
            if refusal.fault in left
            else replace(refusal, alternatives=(advice, *refusal.alternatives))
            for refusal in plan.refusals
        ),
    )
