"""One head asked by every command: what `capture`, `load-plan`, `diagnose` and `repair` say of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.diagnosis import Diagnosis
from eagle3lab.engines.atlas.resolve import resolve_engine, resolve_release
from eagle3lab.engines.capture import OF_IDS, CapturePlan, Launch, capture_plan
from eagle3lab.engines.loading import LoadPlan, simulate_load
from eagle3lab.errors import InputError
from eagle3lab.repair import RepairPlan, diagnose, plan_repair, write_repair
from eagle3lab.repair.model import ConfigEdit

IDS = {"capture.ids-ignored", "capture.ids-convention", "capture.ids-range"}
# Of the load: names and shapes, what has no parameter, what gets no tensor.
LOAD = ("names.", "head-kind.", "head.", "layer.", "vocab.", "files.", "capture.ids-count", "capture.width")
COMMAND = "`eagle3lab repair"


@dataclass(frozen=True)
class Answers:
    """What the commands say of one head for one engine."""

    engine: str
    drafter: Checkpoint
    target: Checkpoint | None
    diagnosis: Diagnosis
    repair: RepairPlan
    capture: CapturePlan | None
    load: LoadPlan | None

    @property
    def faults(self) -> set[str]:
        return {one.fault for one in self.diagnosis.findings}

    @property
    def errors(self) -> set[str]:
        return {one.fault for one in self.diagnosis.findings if one.severity == "error"}


def ask(drafter: Path, engine: str, target: Path | None) -> Answers:
    """Ask them all. A folder that none of them can read raises InputError."""
    opened, model = open_checkpoint(drafter), None if target is None else open_checkpoint(target)
    planned = plan_repair(opened, engine, model)
    facts = resolve_release(engine).facts
    capture = None
    if model is not None:
        capture = capture_plan(
            model.raw_config, opened.config, facts, Launch(cuda_graphs=False), engine=engine
        )
    try:
        load = simulate_load(opened, resolve_engine(engine))
    except InputError:
        load = None
    return Answers(
        engine, opened, model, diagnose(drafter, target=target, engine=engine), planned, capture, load
    )


def check(answers: Answers, out: Path) -> None:
    """Hold the answers against each other; `out` is a folder for the copy that does not exist yet."""
    ids_agree(answers)
    names_agree(answers)
    repair_agrees(answers)
    if answers.repair.status == "repairable":
        copy_is_mended(answers, out)


def ids_agree(answers: Answers) -> None:
    """`capture` has a verdict about layer ids if and only if `diagnose` has that finding; `repair` writes its ids."""
    capture, found = answers.capture, answers.faults & IDS
    if capture is None or not answers.drafter.config.use_aux_hidden_state or not _is_eagle3(answers):
        return
    if capture.verdict in OF_IDS and capture.fault in IDS:
        assert found == {capture.fault}, (capture.verdict, found)
    else:
        assert not found, (capture.verdict, found)
    edits = {
        edit.path: edit.after
        for change in answers.repair.changes
        for edit in change.edits
        if isinstance(edit, ConfigEdit)
    }
    if capture.verdict == "as trained" and "" not in edits:
        assert not any("aux_hidden_state_layer_ids" in path for path in edits)
    written = edits.get(capture.needed_at) if capture.needed else None
    if written is not None:
        assert tuple(written) == capture.needed
    if found and capture.needed is None:
        assert found <= {one.fault for one in answers.repair.refusals}
    fix = next((one.fix for one in answers.diagnosis.findings if one.fault in IDS), "")
    if capture.needed is not None and found:
        assert str(list(capture.needed)) in fix


def names_agree(answers: Answers) -> None:
    """A load that is not complete is a finding, and a diagnosis without a finding about the files is a whole load."""
    load, config = answers.load, answers.drafter.config
    if load is None or load.engine != answers.engine:
        return
    about_files = {fault for fault in answers.faults if fault.startswith(LOAD)}
    stopped = load.construction_error is not None or load.rejected is not None
    empty = [
        one.name
        for one in load.parameters
        if one.status in ("left as initialised", "partly loaded")
        and not one.replaced_by_target
        and not one.name.endswith("o_proj.bias")
        and not (one.name == "draft_id_to_target_id" and config.draft_vocab_size in (None, config.vocab_size))
    ]
    if (stopped or empty) and not _too_small(load):
        assert about_files, (load.construction_error, load.rejected, empty)
    dropped = {one.name for one in load.tensors_with("dropped")}
    named = {item.tensor for one in answers.diagnosis.findings for item in one.evidence if item.tensor}
    for one in answers.diagnosis.findings:
        if one.fault == "names.dropped" and one.severity == "error":
            assert dropped & named or stopped or answers.drafter.config.dialect == "speculators", dropped


def repair_agrees(answers: Answers) -> None:
    """`repair` changes what `diagnose` finds, refuses what it leaves, and is printed only where it writes a copy."""
    planned, found = answers.repair, answers.faults
    assert {change.fault for change in planned.changes} <= found | _revealed(answers), found
    assert {one.fault for one in planned.refusals if one.fault} <= found | {"layer.quantisation"}
    offered = [one for one in answers.diagnosis.findings if COMMAND in one.fix]
    for one in offered:
        assert one.fault in {change.fault for change in planned.changes}
    if planned.status == "unchanged":
        assert not offered
        assert not (answers.errors & IDS)
    if planned.status == "repairable":
        mended = {change.fault for change in planned.changes}
        assert {one.fault for one in offered} >= mended - _revealed(answers)


def copy_is_mended(answers: Answers, out: Path) -> None:
    """What `repair` writes, `diagnose` finds clear of what it claims to mend, and nothing new stands in its place."""
    written = write_repair(answers.repair, out)
    copied = ask(out, answers.engine, None if answers.target is None else answers.target.path)
    assert not {change.fault for change in answers.repair.changes} & copied.faults
    assert copied.errors <= answers.errors
    assert (copied.repair.status, copied.repair.changes) == ("unchanged", ())
    assert copied.load is None or copied.load == written.load
    ids_agree(copied)
    names_agree(copied)
    repair_agrees(copied)


def _revealed(answers: Answers) -> set[str]:
    """Faults that may have been hidden by the one that is mended first: a load that stops, a head that is not read."""
    hiding = {"names.rejected", "head.tied"} & answers.faults
    return {change.fault for change in answers.repair.changes} if hiding else set()


def _is_eagle3(answers: Answers) -> bool:
    from eagle3lab.diagnosis import gather

    return bool(gather(answers.drafter).get("Head").eagle3)


def _too_small(load: LoadPlan) -> bool:
    """Heads of the cases are scaled down to widths that a config class of transformers 5 refuses; a note says so."""
    error = load.construction_error
    return error is not None and "multiple of the number of attention heads" in error.message
