"""From what was given to a diagnosis: run the checks, rank what they found, say what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.diagnosis import ranking
from eagle3lab.diagnosis.checks import all_checks
from eagle3lab.diagnosis.framework import Check, Inputs, Missing, SkipCheck
from eagle3lab.diagnosis.inputs import Given
from eagle3lab.diagnosis.model import Diagnosis, Finding, Observed, Skipped
from eagle3lab.diagnosis.verdict import named, notes, open_questions, questions, summary, verdict_of
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.diagnosis.crash import Crash
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.diagnosis.witnessed import Witnessed

Place = str | PathLike[str]
# What was given and cannot be read at all ends the diagnosis.
_AT_ONCE = ("Launch", "Resolved", "Log", "Witnessed", "Text")
# What does not change with the drafter.
_OF_OTHERS = (
    "Launch", "Resolved", "Engine", "Release", "ReleaseFacts", "EngineFacts", "VllmFacts", "TargetFolder", "Target",
)  # fmt: skip
BROKE = "the check broke on this input"


def diagnose(
    drafter: Place | Checkpoint | None = None,
    *,
    target: Place | Checkpoint | None = None,
    engine: str | None = None,
    launch: str | None = None,
    log: Place | None = None,
    events: Place | None = None,
    text: Place | None = None,
    run: Place | None = None,
    confirm: Callable[[Diagnosis, Inputs], Diagnosis] | None = None,
) -> Diagnosis:
    """Say what is wrong with a drafter from whatever there is; everything is optional but one.

    Args:
        drafter: The drafter's folder, or what it holds already opened.
        target: The target's folder, or the same; a config.json in it is enough.
        engine: `sglang==0.5.9`, `vllm==0.20.2`, `installed`, or a source tree.
        launch: The launch command, or a file that holds it.
        log: The server's log, plain or compressed.
        events: The folder of a probe's events.
        text: A text file (UTF-8) like that which is served.
        run: A run folder of `eagle3lab measure`: what is not given otherwise is taken from it.
        confirm: Tries the fixes of a diagnosis and says what came of it; `eagle3lab.repair.diagnose` has it.

    Raises:
        InputError: Nothing was given, a path leads nowhere, or engine or command cannot be understood at all.
    """
    if run is not None:
        left = _of_run(run)
        drafter, target, log = drafter or left.drafter, target or left.target, log or left.log
        engine, launch, events = engine or left.engine, launch or left.launch, events or left.events
    if all(part is None for part in (drafter, target, engine, launch, log, events)):
        raise InputError("nothing was given", advice="Give a drafter, a launch command or a log.")
    inputs = gather(drafter, target, engine, launch, log, events, text)
    found = examine(inputs)
    return found if confirm is None else confirm(found, inputs)


def gather(
    drafter: Place | Checkpoint | None = None,
    target: Place | Checkpoint | None = None,
    engine: str | None = None,
    launch: str | None = None,
    log: Place | None = None,
    events: Place | None = None,
    text: Place | None = None,
) -> Inputs:
    """The inputs of a diagnosis, as `diagnose` takes them; drafter and target may be open already.

    Raises:
        InputError: A path leads nowhere, or engine, command, log, events or text cannot be read at all.
    """
    given = Given(
        drafter=_folder(drafter),
        target=_folder(target),
        engine=engine,
        launch=launch,
        log=None if log is None else fspath(log),
        events=None if events is None else _existing(events),
        text=None if text is None else fspath(text),
    )
    inputs = Inputs({"Given": given})
    beside = any(
        part is not None for part in (drafter, log, events)
    )  # then a command that cannot be read is a note
    for name in _AT_ONCE:
        found = inputs.get(name)
        unread = isinstance(found, Missing) and found.error is not None
        if unread and not (name == "Launch" and beside):
            raise found.error
    return inputs


def with_drafter(inputs: Inputs, drafter: Checkpoint) -> Inputs:
    """The inputs with another drafter, and without log and events, which are of the one that was served."""
    kept = {name: inputs.values[name] for name in _OF_OTHERS if name in inputs.values}
    given = replace(inputs.get("Given"), drafter=drafter, log=None, events=None)
    return Inputs({**kept, "Given": given})


def _of_run(path: Place) -> Given:
    """What a run folder has for a diagnosis; drafter and target only where they still lie where they were.

    Raises:
        InputError: It is none.
    """
    from eagle3lab.runs.folder import RunFolder

    run = RunFolder.open(Path(path))
    plan, release, events = run.plan(), run.release, run.events_dir

    def there(value: object) -> Path | None:
        return Path(value) if isinstance(value, str) and value and Path(value).is_dir() else None

    return Given(
        drafter=there(plan.get("drafter")),
        target=there(plan.get("model")),
        engine=f"sglang=={release}" if release else None,
        launch=str(run.command) if run.command.is_file() else None,
        log=str(run.log) if run.log.is_file() else None,
        events=events if events.is_dir() and any(events.iterdir()) else None,
    )


def _folder(place: Place | Checkpoint | None) -> Path | Checkpoint | None:
    return _existing(place) if isinstance(place, str | PathLike) else place


def _existing(place: Place) -> Path:
    """The path of a folder that must at least be there.

    Raises:
        InputError: It is not.
    """
    path = Path(place)
    try:
        if path.is_dir():
            return path
        there = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be opened: {error}", path=path) from None
    raise InputError(
        "is a file, not a folder" if there else "does not exist", path=path, advice="Give the model's folder."
    )


def examine(inputs: Inputs) -> Diagnosis:
    """Run every check that the inputs allow, and rank what they find."""
    found: list[Finding] = []
    inputs.values["Earlier"] = found
    cleared: set[str] = set()  # faults that a check looked for and did not find
    inputs.values["Cleared"] = cleared
    skipped: list[Skipped] = []
    passed: list[str] = []
    for check in all_checks():
        some, reason = _run(check, inputs, found)
        if reason is not None:
            skipped.append(Skipped(check.code, reason))
        elif not some:
            passed.append(check.code)
            cleared.add(check.fault)
        found += some
        cleared -= {one.fault for one in some}
    observed = inputs.call(_observed)
    log: Log | Missing = inputs.get("Log")
    served = not isinstance(log, Missing) and log.served
    died: Crash | Missing = inputs.get("Crash")
    crash = None if isinstance(died, Missing) else died.without(cleared)
    findings = ranking.ranked(found, observed, crash, served=served)
    verdict = verdict_of(findings, observed, passed)
    inputs.values["Verdict"] = verdict
    launch, drafter, target = map(inputs.value, ("Launch", "DrafterFolder", "TargetFolder"))
    left_open = open_questions(skipped, passed, observed, launch, drafter, target)
    return Diagnosis(
        verdict=verdict,
        findings=findings,
        skipped=tuple(skipped),
        passed=tuple(passed),
        repair_order=ranking.repair_order(findings),
        questions=tuple(inputs.call(questions)),
        notes=tuple(inputs.call(notes)),
        inputs=inputs.call(named),
        summary=summary(verdict, findings, observed, left_open),
        open=left_open,
        observed=observed,
    )


def _run(check: Check, inputs: Inputs, earlier: list[Finding]) -> tuple[list[Finding], str | None]:
    """What a check found, or why it could not be done.

    Inputs are files that nobody vouches for: one that breaks a check costs this check, not the diagnosis. The tests
    with hostile inputs see to it that this stays a last resort.
    """
    try:
        arguments = inputs.arguments(check.run)
        if isinstance(arguments, Missing):
            return [], arguments.reason
        before = sorted({finding.code for finding in earlier if finding.fault in check.after})
        if before:
            return [], f"waits for the repair of {', '.join(before)}"
        return check.findings(arguments), None
    except SkipCheck as reason:
        return [], str(reason)
    except InputError as error:
        return [], str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return [], f"{BROKE} ({type(error).__name__}: {error})"


def _observed(log: Log | None, witnessed: Witnessed | None) -> Observed | None:
    """Acceptance as the log shows it, else as the probe counted it."""
    shown = log.observed if log else None
    if witnessed is None or (shown is not None and shown.accept_length is not None):
        return shown
    counted = witnessed.observed
    return shown if counted is None else replace(counted, crash=shown.crash if shown else "")
