"""What a repair is: changes with their evidence and proof, and what is refused with its reason."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint.config import ABSENT

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.engines.loading import LoadPlan
    from eagle3lab.repair.copy import WorkingCopy


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One place of config.json.

    Attributes:
        path: Dotted keys; "" is the whole file.
        before: The JSON value; `ABSENT` where there was none.
        after: The JSON value; `ABSENT` where there is none any more.
    """

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class RenameEdit:
    """A tensor's name in the file, before and after (untrusted)."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor's stored values.

    Attributes:
        dtype: In the spelling of safetensors.
        shape: The dimensions.
        data: Little-endian; None where they are too many to be held here and only lie in the repaired folder.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ValuesEdit:
    """A tensor whose values are replaced or that is added; `before` is None for the latter."""

    tensor: str
    before: TensorValue | None
    after: TensorValue


@dataclass(frozen=True, slots=True)
class IndexEdit:
    """A tensor that the index did not name, and the shard it names for it now."""

    tensor: str
    file: str


Edit = ConfigEdit | RenameEdit | ValuesEdit | IndexEdit


@dataclass(frozen=True, slots=True)
class Mend:
    """What a repair did to the working copy.

    Attributes:
        title: What is changed, one sentence.
        proof: Why the change is right.
        edits: The change itself, before and after.
    """

    title: str
    proof: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One repaired fault.

    Attributes:
        fault: Its slug.
        title: What is changed, one sentence.
        evidence: What was seen.
        proof: Why the change is right.
        edits: The change itself, before and after.
    """

    fault: str
    title: str
    evidence: tuple[str, ...]
    proof: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fault that a changed copy cannot repair.

    Attributes:
        fault: Its slug; None where the drafter cannot be judged at all.
        reason: Why not.
        evidence: What was seen.
        alternatives: What can be done instead.
        release: The first later release of the engine that has no such fault; empty without.
    """

    fault: str | None
    reason: str
    evidence: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    release: str = ""


@dataclass(frozen=True)
class RepairPlan:
    """What would be written.

    Attributes:
        engine: The release, or "speculators", that the copy is for.
        checkpoint: The drafter as it is.
        changes: In the order in which they are made; empty when there is nothing to repair.
        refusals: Why nothing is written; empty when the copy can be.
        notes: What a reader should know besides.
        before: The simulated load of the drafter as it is; None where it cannot be simulated.
        after: The same of the copy.
        copy: The copy, not yet written.
        mended: The change that makes a finding go, by its code and fault.
    """

    engine: str
    checkpoint: Checkpoint
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]
    before: LoadPlan | None
    after: LoadPlan | None
    copy: WorkingCopy = field(repr=False)
    mended: Mapping[tuple[str, str], Change] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> Path:
        """The drafter's folder, as it was given."""
        return self.checkpoint.path

    @property
    def status(self) -> str:
        """One of "refused", "unchanged" (nothing to repair) and "repairable"."""
        if self.refusals:
            return "refused"
        return "repairable" if self.changes else "unchanged"


def load_summary(plan: LoadPlan | None) -> dict[str, Any] | None:
    """What a load comes to, as JSON: names of what is not loaded, and numbers of what is."""
    if plan is None:
        return None
    error = plan.construction_error
    rejected = plan.rejected
    return {
        "engine": plan.engine,
        "drafter_class": plan.drafter_class,
        "construction_error": None if error is None else f"{error.type}: {error.message}",
        "rejected": None if rejected is None else {"name": rejected.name, "reason": rejected.reason},
        "dropped": [tensor.name for tensor in plan.tensors_with("dropped")],
        "parameters": len(plan.parameters),
        "loaded": len(plan.parameters_with("loaded")),
        "taken_from_target": [p.name for p in plan.parameters_with("taken from target")],
        "not_loaded": [
            p.name for p in plan.parameters if p.status in ("left as initialised", "partly loaded")
        ],
    }


def change_to_dict(change: Change) -> dict[str, Any]:
    """A change as JSON."""
    return {
        "fault": change.fault,
        "title": change.title,
        "evidence": list(change.evidence),
        "proof": change.proof,
        "edits": [_edit(edit) for edit in change.edits],
    }


def refusal_to_dict(refusal: Refusal) -> dict[str, Any]:
    """A refusal as JSON."""
    return {
        "fault": refusal.fault,
        "reason": refusal.reason,
        "evidence": list(refusal.evidence),
        "alternatives": list(refusal.alternatives),
        "release": refusal.release or None,
    }


def _edit(edit: Edit) -> dict[str, Any]:
    if isinstance(edit, ConfigEdit):
        sides = {"before": edit.before, "after": edit.after}
        return {"config": edit.path} | {key: value for key, value in sides.items() if value is not ABSENT}
    if isinstance(edit, RenameEdit):
        return {"rename": edit.before, "to": edit.after}
    if isinstance(edit, IndexEdit):
        return {"index": edit.tensor, "file": edit.file}
    assert isinstance(edit, ValuesEdit)
    before = None if edit.before is None else _value(edit.before)
    return {"tensor": edit.tensor, "before": before, "after": _value(edit.after)}


def _value(value: TensorValue) -> dict[str, Any]:
    data = None if value.data is None else packed(value.data)
    return {"dtype": value.dtype, "shape": list(value.shape), "values": data}


def packed(data: bytes) -> dict[str, Any]:
    """Bytes as JSON."""
    return {"length": len(data), "zlib": base64.b64encode(zlib.compress(data)).decode("ascii")}
