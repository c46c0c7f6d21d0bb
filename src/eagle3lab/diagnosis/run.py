"""From an investigation to a diagnosis: run the checks, rank what they found, say what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eagle3lab.diagnosis import ranking
from eagle3lab.diagnosis.checks import all_checks
from eagle3lab.diagnosis.checks.base import Check, SkipCheck
from eagle3lab.diagnosis.evidence.investigation import Investigation, Place
from eagle3lab.diagnosis.model import Diagnosis, Finding, Observed, Severity, Skipped, Verdict
from eagle3lab.errors import InputError

# Where all of these were done, everything that decides was looked at.
_DECISIVE = ("E3L-N01", "E3L-V01", "E3L-C04")
_DEAD = ("dead", "near-dead", "random-head")
_USEFUL = ("healthy", "partial", "below-expectation")
_SHAKY = 0.6
BROKE = "the check broke on this input"


def diagnose(
    drafter: Place | None = None,
    *,
    target: Place | None = None,
    engine: str | None = None,
    launch: str | None = None,
    log: Place | None = None,
    events: Place | None = None,
    text: Place | None = None,
    run: Place | None = None,
    confirm: Callable[[Diagnosis, Investigation], Diagnosis] | None = None,
) -> Diagnosis:
    """Say what is wrong with a drafter from whatever there is; everything is optional but one.

    Args:
        drafter: The drafter's folder.
        target: The target's folder; a config.json in it is enough.
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
        from eagle3lab.diagnosis.evidence.run_folder import inputs_of

        left = inputs_of(run)
        drafter, target, log = drafter or left.drafter, target or left.target, log or left.log
        engine, launch, events = engine or left.engine, launch or left.launch, events or left.events
    if all(part is None for part in (drafter, target, engine, launch, log, events)):
        raise InputError("nothing was given", advice="Give a drafter, a launch command or a log.")
    case = Investigation(drafter, target, engine, launch, log, events, text)
    found = examine(case)
    return found if confirm is None else confirm(found, case)


def examine(case: Investigation) -> Diagnosis:
    """Run every check that the case allows, and rank what they find."""
    skipped: list[Skipped] = []
    passed: list[str] = []
    case.found.clear()
    for check in all_checks():
        found, reason = _run(check, case)
        if reason is not None:
            skipped.append(Skipped(check.code, reason))
        elif not found:
            passed.append(check.code)
        case.found.extend(found)
    observed = _observed(case)
    crash = case.log.crash if case.log else None
    findings = ranking.ranked(case.found, observed, crash, served=case.log is not None and case.log.served)
    signature = observed.signature if observed else None
    verdict = _verdict(findings, signature, passed)
    return Diagnosis(
        verdict=verdict,
        findings=findings,
        skipped=tuple(skipped),
        passed=tuple(passed),
        repair_order=ranking.repair_order(findings),
        questions=tuple(_questions(case, verdict, signature)),
        notes=tuple(_notes(case)),
        inputs=_inputs(case),
        observed=observed,
    )


def _observed(case: Investigation) -> Observed | None:
    """Acceptance as the log shows it, else as the probe counted it."""
    shown = case.log.observed if case.log else None
    if case.events is None or (shown is not None and shown.accept_length is not None):
        return shown
    counted = case.events.observed
    return shown if counted is None else replace(counted, crash=shown.crash if shown else "")


def _run(check: Check, case: Investigation) -> tuple[list[Finding], str | None]:
    """What a check found, or why it could not be done.

    Inputs are files that nobody vouches for: one that breaks a check costs this check, not the diagnosis. The tests
    with hostile inputs see to it that this stays a last resort.
    """
    try:
        obstacle = check.obstacle(case)
        return ([], obstacle) if obstacle else ([check.finding(one) for one in check.run(case)], None)
    except SkipCheck as reason:
        return [], str(reason)
    except InputError as error:
        return [], str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return [], f"{BROKE} ({type(error).__name__}: {error})"


def _verdict(findings: tuple[Finding, ...], signature: str | None, passed: list[str]) -> Verdict:
    errors = [one for one in findings if one.severity is Severity.ERROR]
    if signature == "dead" or any(one.confidence >= _SHAKY for one in errors):
        return Verdict.BROKEN
    if errors or any(one.severity is Severity.WARNING for one in findings) or signature in _DEAD:
        return Verdict.SUSPECT
    if signature in _USEFUL or all(code in passed for code in _DECISIVE):
        return Verdict.HEALTHY
    return Verdict.UNKNOWN


def _questions(case: Investigation, verdict: Verdict, signature: str | None) -> list[str]:
    questions = []
    if case.proven_ids is None and case.token_map is not None and case.token_map.report.kind == "undecided":
        questions += [f"token map: {text}" for text in case.token_map.report.open_questions]
    if verdict is Verdict.HEALTHY or any(one.severity is Severity.ERROR for one in case.found):
        return questions
    if case.drafter_path is None:
        questions.append(
            "Which drafter is served? Give its folder: names, shapes and the token map decide most."
        )
    if case.engine is None or not case.engine.number:
        questions.append("Which engine release serves it? Give --engine sglang==X.Y.Z.")
    if case.target_path is None:
        questions.append(
            "Which target? Give --target with its config.json: layer ids and widths depend on it."
        )
    if case.launch is None and case.algorithm is None:
        questions.append("How is it launched? Give --launch: the algorithm and the parallel size decide.")
    if case.log is None and verdict is Verdict.UNKNOWN:
        questions.append("What does the log say? Give --log with some decode lines.")
    if signature in _DEAD and not case.found:
        questions.append(
            "Nothing given explains the acceptance: does the log belong to this drafter and release?"
        )
    return questions


def _notes(case: Investigation) -> list[str]:
    notes = list(case.launch.notes) if case.launch else []
    if case.release_note and case.engine is not None and case.engine.number:
        notes.append(case.release_note)
    if case.release is not None and case.facts_note:
        notes.append(case.facts_note)
    if case.load is not None and any(
        stop.rule == "hidden size multiple of heads" for stop in case.load.stops
    ):
        notes.append(
            "the config class of this release refuses a hidden_size that is no multiple of the heads"
        )
    if case.target_error is not None:
        notes.append(f"the target's folder: {case.target_error.problem}")
    launch, engine = case.launch, case.engine
    if launch and engine and launch.engine and launch.engine != engine.kind:
        notes.append(f"the command launches {launch.engine}, and the engine given is {engine}")
    stated = case.server_arguments
    for name, ours in (
        ("speculative_algorithm", launch.algorithm if launch else None),
        ("speculative_num_steps", launch.steps if launch else None),
        ("tp_size", launch.tp if launch else None),
    ):
        theirs = stated.get(name)
        if ours is not None and theirs is not None and str(ours).upper() != str(theirs).upper():
            notes.append(
                f"the log's server ran with {name}={theirs}, the command says {ours}: is it another run?"
            )
    if case.log is not None:
        notes += case.log.notes
    if case.events is not None:
        notes += case.events.notes
    return list(dict.fromkeys(notes))


def _inputs(case: Investigation) -> dict[str, str]:
    given = {
        "drafter": case.drafter_path,
        "target": case.target_path,
        "engine": case.engine,
        "log": case.log_path,
        "events": case.events.path if case.events else None,
        "text": case.text_name,
        "launch": case.launch.algorithm or "given" if case.launch else None,
    }
    return {name: str(value) for name, value in given.items() if value is not None}
