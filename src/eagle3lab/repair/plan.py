"""What a copy needs: for each finding of a diagnosis the repair that makes it go, proven by diagnosing the copy again.

A repair is tried on the working copy, which is then loaded in simulation and diagnosed like any drafter. It is kept
where its finding is gone, and taken back where in the end a fault appears that was not there. What is left of the
findings is refused, with the release that has no such fault where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from eagle3lab import diagnosis
from eagle3lab.diagnosis import Diagnosis, Finding, Inputs, Severity, examine, gather, with_drafter
from eagle3lab.diagnosis.framework import Missing
from eagle3lab.engines.release import SIMULATED, Release, newest_release, releases
from eagle3lab.errors import InputError
from eagle3lab.repair import config, tensors
from eagle3lab.repair.copy import WorkingCopy
from eagle3lab.repair.model import Change, Mend, Refusal, RepairPlan
from eagle3lab.repair.speculators import SPECULATORS, convert
from eagle3lab.repair.token_map import token_map

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.diagnosis.inputs import TargetFolder
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.loading import LoadPlan

Repair = Callable[[WorkingCopy], Mend | None]

_MAP: tuple[Repair, ...] = (token_map,)
_IDS: tuple[Repair, ...] = (config.layer_ids,)
_NAMES: tuple[Repair, ...] = (tensors.index_shards, tensors.rename)
#: What can mend a finding, by its fault, tried in this order.
REPAIRS: dict[str, tuple[Repair, ...]] = {
    "files.unindexed-shard": (tensors.index_shards,),
    "head-kind.config-dialect": (config.dialect,),
    "head-kind.architecture": (config.architecture,),
    "head-kind.config-value": (config.null_target_size, config.draft_vocabulary, config.architecture),
    "head-kind.layer-count": (config.layer_count,),
    "names.dropped": _NAMES,
    "names.rejected": _NAMES,
    "names.missing": _NAMES,
    "names.shape": (config.head_dim, config.draft_vocabulary),
    "vocab.absolute": _MAP,
    "vocab.double-offset": _MAP,
    "vocab.missing": _MAP,
    "vocab.zero": _MAP,
    "vocab.range": _MAP,
    "vocab.dtype": _MAP,
    "vocab.t2d": _MAP,
    "head.lm-head-missing": (tensors.missing_head,),
    "head.lm-head-rows": (config.draft_vocabulary,),
    "head.tied": (config.tie,),
    "capture.disabled": (config.capture_switch,),
    "capture.ids-ignored": _IDS,
    "capture.ids-convention": _IDS,
    "capture.ids-range": _IDS,
    "capture.engine-defect": _IDS,
    "layer.norm-before-fc": (config.input_norms,),
    "layer.norm-before-residual": (config.norm_before_residual,),
    "layer.rope": (config.rope,),
    "layer.bias": (tensors.fc_bias,),
}
# What the target's weights can settle.
_BY_TARGET = frozenset({"head.lm-head-missing", "vocab.missing", "vocab.range", "vocab.t2d", "vocab.zero"})
# What a diagnosis advises by the names alone; where no repair of them was confirmed, that advice leads nowhere.
_BY_NAME = ("names.", "head-kind.architecture")
# Of the command, the target's class or the machine: no copy of the drafter changes them, and none is worse for them.
_NOT_OF_FILES = ("flags.", "runtime.", "metric.", "training.")
_ELSEWHERE = frozenset(
    {
        "capture.algorithm",
        "capture.graph-defaults",
        "capture.target-unsupported",
        "layer.context",
        "layer.dtype",
        "names.tensor-parallel",
    }
)


def plan_repair(drafter: Checkpoint, engine: str, target: Checkpoint | None = None) -> RepairPlan:
    """What a copy of `drafter` needs so that `engine` loads it completely and computes what was trained.

    Nothing is written.

    Args:
        drafter: The drafter.
        engine: Who is to load the copy: `sglang==0.5.9`, `vllm==0.32.0`, the newest of either without a release,
            `installed`, a source tree; or `speculators` for a copy in that library's format, judged by the newest vLLM.
        target: The target's folder: its config settles layer ids, its weights a missing head or a doubtful map.

    Raises:
        InputError: A file cannot be read, the folder holds no weights, or nothing is known of the engine.
    """
    if not drafter.files.read:
        raise InputError(
            "holds no weights", path=drafter.path, advice="Give the folder the trainer exported."
        )
    _ = drafter.config
    asked = engine.strip().lower()
    kind = "vllm" if asked == SPECULATORS else asked
    spec = str(newest_release(kind)) if kind in SIMULATED else engine
    case = gather(drafter, target, spec)
    release = _release(case)
    if release is None:
        raise InputError(case.get("Resolved").note or f"nothing is known of {engine}")
    return _Planner(case, release, convert=asked == SPECULATORS).plan()


def plan_for(case: Inputs) -> RepairPlan | None:
    """What would mend the drafter of a case under its engine and command; None where too little of it is known."""
    tensors, release = case.value("Tensors"), _release(case)
    if tensors is None or case.value("Config") is None or release is None:
        return None
    try:
        return _Planner(case, release).plan()
    except InputError:
        return None


def _release(case: Inputs) -> ReleaseFacts | None:
    facts: ReleaseFacts | None = case.value("ReleaseFacts") or case.value("VllmFacts")
    return facts


@dataclass(frozen=True, slots=True)
class _Step:
    """A change that was kept: for which finding, and the faults before and after."""

    change: Change
    finding: Finding
    before: frozenset[str]
    after: frozenset[str]


class _Planner:
    """One plan in the making."""

    def __init__(self, case: Inputs, release: ReleaseFacts, *, convert: bool = False) -> None:
        self.case, self.convert = case, convert
        self.target: TargetFolder | None = case.value("TargetFolder")
        opened = self.target.checkpoint if self.target else None
        drafter: Checkpoint = case.get("DrafterFolder").checkpoint
        self.copy = WorkingCopy(drafter, release, str(case.get("Engine")), opened)
        self.before = _simulated(self.copy)

    def plan(self) -> RepairPlan:
        copy = self.copy
        engine = copy.engine
        converted: list[Change] = []
        refused: list[Refusal] = []
        notes = list(engine.notes)
        if self.convert:
            converted, refused = convert(copy)
        other = set(copy.config.architectures) & {*engine.drafter.other_architectures, *engine.undescribed}
        if other - set(engine.drafter.architectures):
            reason = f"{engine.spec} serves {min(other)} with a class that eagle3lab does not describe"
            why = ("what that class loads cannot be simulated, so nothing can be proven",)
            refused.append(Refusal(None, reason, why))
        steps, left = ([], ()) if refused else self._mend()
        refused += [self._refusal(one) for one in left if self._blocks(one)]
        if not refused and (unproven := self._not_simulated()) is not None:
            refused.append(unproven)
        notes += [f"{one.title}: {one.fix}" for one in left if not self._blocks(one)]
        if self.case.value("Target") is None:
            notes += copy.capture().unknown
        return RepairPlan(
            SPECULATORS if self.convert else engine.spec,
            copy.source,
            (*converted, *(step.change for step in steps)),
            tuple(refused),
            tuple(dict.fromkeys(notes)),
            self.before,
            _simulated(copy),
            copy,
            {(step.finding.code, step.finding.fault): step.change for step in steps},
        )

    def _diagnosis(self) -> tuple[Diagnosis, bool]:
        """The diagnosis of the copy as it stands, and whether its load could be simulated at all."""
        case = with_drafter(self.case, self.copy.checkpoint)
        return examine(case), not isinstance(case.get("Load"), Missing)

    def _mend(self) -> tuple[list[_Step], tuple[Finding, ...]]:
        """The changes that are kept, and the findings that are left."""
        start, (first, _) = self.copy.state(), self._diagnosis()
        given = _faults(first)
        banned: set[str] = set()
        while True:
            self.copy.restore(start)
            steps, last = self._attempt(first, banned)
            new = sorted(_errors(last) - given)
            # A change whose end is a fault that was not there is no repair, if only because it hid one before.
            blamed = next(
                (step for fault in new for step in steps if fault in step.after and fault not in step.before),
                None,
            )
            if blamed is None:
                return steps, last.findings
            banned.add(blamed.finding.fault)

    def _attempt(self, found: Diagnosis, banned: set[str]) -> tuple[list[_Step], Diagnosis]:
        steps: list[_Step] = []
        while (step := next(self._tried(found, banned), None)) is not None:
            steps.append(step[0])
            found = step[1]
        return steps, found

    def _tried(self, found: Diagnosis, banned: set[str]) -> Iterator[tuple[_Step, Diagnosis]]:
        """Repairs of the findings, in the order in which they are to be repaired, that make their finding go."""
        order = {code: place for place, code in enumerate(found.repair_order)}
        for finding in sorted(found.findings, key=lambda one: order.get(one.code, len(order))):
            if finding.fault in banned or finding.severity is Severity.NOTE:
                continue
            for repair in REPAIRS.get(finding.fault, ()):
                state = self.copy.state()
                mend = repair(self.copy)
                if mend is None:
                    continue
                after, simulated = self._diagnosis()
                if simulated and finding.fault not in _faults(after):
                    seen = _evidence(finding)
                    change = Change(finding.fault, mend.title, seen, mend.proof, mend.edits)
                    yield _Step(change, finding, _faults(found), _faults(after)), after
                self.copy.restore(state)

    def _not_simulated(self) -> Refusal | None:
        """Where the load of the copy cannot be simulated, nothing about it is proven."""
        load = with_drafter(self.case, self.copy.checkpoint).get("Load")
        if not isinstance(load, Missing):
            return None
        quantised = bool(self.copy.raw.get("quantization_config"))
        advice = ("Repair the unquantised head and quantise it again.",) if quantised else ()
        return Refusal("layer.quantisation" if quantised else None, load.reason, (), advice)

    @staticmethod
    def _blocks(finding: Finding) -> bool:
        """Whether a copy with this finding is not worth writing."""
        if finding.fault.startswith(_NOT_OF_FILES) or finding.fault in _ELSEWHERE:
            return False
        mendable = finding.fault in REPAIRS and finding.severity is Severity.WARNING
        return finding.severity is Severity.ERROR or mendable

    def _refusal(self, finding: Finding) -> Refusal:
        release = self.first_without(finding) or ""
        advice = [f"Repair it for {release}, to which this is no obstacle."] if release else []
        if self.copy.target is None and finding.fault in _BY_TARGET:
            advice.append(
                "Give the target's folder with --target: its head can prove or supply what is missing."
            )
        if not finding.fault.startswith(_BY_NAME):
            advice.append(finding.fix)
        elif not release:
            advice.append("Export the drafter again for this engine, or use another engine.")
        return Refusal(finding.fault, finding.title, _evidence(finding), tuple(advice), release)

    def first_without(self, finding: Finding) -> str | None:
        """The first later release of the engine in which the drafter as it is has no such fault; None without."""
        engine: Release | None = self.case.value("Engine")
        known = releases(engine.kind) if engine is not None else ()
        if engine is None or engine.number not in known:
            return None
        later = known[known.index(engine.number) + 1 :]

        def free(release: str) -> bool:
            target = None if self.target is None else self.target.checkpoint or self.target.path
            other = gather(self.copy.source, target, f"{engine.kind}=={release}")
            return finding.fault not in _faults(examine(other))

        low, high = 0, len(later) - 1
        if high < 0 or not free(later[high]):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if free(later[middle]) else (middle + 1, high)
        return f"{engine.kind}=={later[high]}"


def _simulated(copy: WorkingCopy) -> LoadPlan | None:
    try:
        return copy.simulate()
    except InputError:
        return None


def _evidence(finding: Finding) -> tuple[str, ...]:
    return tuple(f"{one.tensor}: {one.text}" if one.tensor else one.text for one in finding.evidence)


def _faults(found: Diagnosis) -> frozenset[str]:
    return frozenset(one.fault for one in found.findings)


def _errors(found: Diagnosis) -> frozenset[str]:
    return frozenset(one.fault for one in found.findings if one.severity is Severity.ERROR)


# ---- what a diagnosis says of it ---------------------------------------------------------------------------------


def offers(found: Diagnosis, case: Inputs) -> Diagnosis:
    """The diagnosis with fixes that were tried: what `eagle3lab repair` would do, or the release to move to.

    Args:
        found: A diagnosis of the case.
        case: What was given.
    """
    if not any(one.fault in REPAIRS for one in found.findings):
        return found
    plan = plan_for(case)
    if plan is None:
        return found
    refused = {one.fault: one for one in plan.refusals}
    return replace(found, findings=tuple(_offered(one, plan, refused) for one in found.findings))


#: `eagle3lab.diagnosis.diagnose` with fixes that were tried.
diagnose = partial(diagnosis.diagnose, confirm=offers)


def _offered(finding: Finding, plan: RepairPlan, refused: dict[str | None, Refusal]) -> Finding:
    change = plan.mended.get((finding.code, finding.fault))
    if change is not None:
        others = ", ".join(sorted(fault or "what cannot be simulated" for fault in refused))
        command = f"`eagle3lab repair DRAFTER --for {plan.engine} --out COPY` does this"
        said = f"{command} as long as nothing else stands in the way: {others}" if others else command
        return replace(finding, fix=f"{finding.fix} {said} ({change.title}).")
    refusal = refused.get(finding.fault)
    if refusal is None or not finding.fault.startswith(_BY_NAME):
        return finding
    advice = (
        f"Serve it with {refusal.release} or later, to which this is no obstacle."
        if refusal.release
        else refusal.alternatives[-1]
    )
    return replace(finding, fix=f"No change of the files makes {plan.engine} load it. {advice}")
