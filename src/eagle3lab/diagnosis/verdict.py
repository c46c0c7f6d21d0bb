"""What the findings come to, and what stays open: the verdict, its sentence, the questions and the notes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import Missing
from eagle3lab.diagnosis.inputs import (
    Algorithm,
    DrafterFolder,
    DraftVocabulary,
    Earlier,
    Engine,
    Given,
    Resolved,
    ServerArguments,
    TargetFolder,
)
from eagle3lab.diagnosis.model import Finding, Impact, Observed, Severity, Skipped, Verdict

if TYPE_CHECKING:
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.diagnosis.witnessed import Witnessed
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.engines.launch.reading import Launch

DEAD = ("dead", "near-dead", "random-head")
_USEFUL = ("healthy", "partial", "below-expectation")
# What a log can show that a fault has to explain.
_BAD = (*DEAD, "recurrence-cliff", "dead-positions", "weak-training", "collapse", "drift", "not-speculating")
_SHAKY = 0.6
_CLEAR = 0.8
_FAMILIES = {
    "F": "the files", "K": "the kind of head", "N": "the names", "V": "the token map", "H": "the output head",
    "C": "the captured layers", "L": "the layer's settings", "G": "the command",
}  # fmt: skip
_NEXT = {
    "recurrence-cliff": "Compare positions 1 and 2 with one draft step and with several, on prompts like those of "
    "the training.",
    "dead-positions": "Compare with fewer draft steps, on prompts like those of the training.",
    "drift": "Restart the server and compare the first minutes with the last.",
    "collapse": "Look at the target's answers without speculation.",
}
_COMPARE = (
    "Serve the same requests through /v1/chat/completions with the training's chat template, and a head that is known "
    "to work on this server: one of the two changes."
)


def verdict_of(findings: tuple[Finding, ...], observed: Observed | None, passed: list[str]) -> Verdict:
    """What findings and observation come to.

    Args:
        findings: Ranked.
        observed: What a log, a run or a probe shows; None without one.
        passed: Codes of the checks that found nothing.
    """
    errors = [one for one in findings if one.severity is Severity.ERROR]
    if any(one.confidence >= _SHAKY for one in errors):
        return Verdict.BROKEN
    if errors or any(one.severity is Severity.WARNING for one in findings):
        return Verdict.SUSPECT
    if observed is not None and observed.signature in _BAD and observed.confidence >= _CLEAR:
        return Verdict.SUSPECT
    if observed is not None and observed.signature in _USEFUL:
        return Verdict.HEALTHY
    looked = {code[4] for code in passed} & set("KNVCLG")
    return Verdict.NO_FAULT_FOUND if looked or findings else Verdict.UNKNOWN


def summary(
    verdict: Verdict, findings: tuple[Finding, ...], observed: Observed | None, left_open: tuple[str, ...]
) -> str:
    """The verdict in a sentence or two."""
    proven = [one for one in findings if one.severity is Severity.ERROR and one.confidence >= _SHAKY]
    if verdict is Verdict.BROKEN:
        stops = any(one.impact is Impact.STOPS for one in proven)
        return f"A fault is proven that {'stops the server' if stops else 'destroys acceptance'}."
    if verdict is Verdict.SUSPECT:
        if any(one.severity is not Severity.NOTE for one in findings):
            return "Something is wrong or doubtful; nothing is proven that stops the server or destroys acceptance."
        assert observed is not None
        return f"The log shows it: {observed.reason}. Nothing that was given explains it. Next: {next_step(observed)}"
    if verdict is Verdict.HEALTHY:
        assert observed is not None
        return f"Drafts are accepted ({observed.reason}), and nothing that was looked at is wrong."
    listed = f" Not looked at: {'; '.join(left_open)}." if left_open else ""
    if verdict is Verdict.NO_FAULT_FOUND:
        return f"No fault in what was looked at.{listed}"
    return f"Too little was given to say.{listed}"


def next_step(observed: Observed) -> str:
    """The experiment that tells most, where nothing explains what is observed."""
    return _NEXT.get(observed.signature, _COMPARE)


def open_questions(
    skipped: list[Skipped],
    passed: list[str],
    observed: Observed | None,
    launch: Launch | None,
    drafter: DrafterFolder | None,
    target: TargetFolder | None,
) -> tuple[str, ...]:
    """What the files, the command and the log that were given leave open."""
    left = []
    if observed is None or observed.accept_length is None:
        left.append("what is accepted (no log with decode lines, run or events)")
    if target is not None and target.error is not None:
        left.append(f"the target, whose folder {target.error.problem}")
    named = {"target": (launch.model, target), "drafter": (launch.drafter, drafter)} if launch else {}
    left += [
        f"the {what} that the command names, {path}, which cannot be opened here"
        for what, (path, opened) in named.items()
        if path and opened is None
    ]
    ran = {code[4] for code in passed}
    reasons: dict[str, list[str]] = {}
    for letter, family in _FAMILIES.items():
        lacking = [one.reason for one in skipped if one.code[4] == letter]
        if lacking and letter not in ran:
            reasons.setdefault(max(lacking, key=lacking.count), []).append(family)
    return (*left, *(f"{', '.join(families)} ({reason})" for reason, families in reasons.items()))


def questions(
    verdict: Verdict,
    given: Given,
    earlier: Earlier,
    vocabulary: DraftVocabulary | None,
    engine: Engine | None,
    launch: Launch | None,
    algorithm: Algorithm | None,
) -> list[str]:
    """What the user could give or do next."""
    asked = []
    if vocabulary and vocabulary.proven is None and vocabulary.map.report.kind == "undecided":
        asked += [f"token map: {text}" for text in vocabulary.map.report.open_questions]
    if verdict is Verdict.HEALTHY or any(one.severity is Severity.ERROR for one in earlier):
        return asked
    if given.drafter is None and not (launch and launch.drafter):
        asked.append("Which drafter is served? Give its folder: names, shapes and the token map decide most.")
    if engine is None or not engine.number:
        asked.append("Which engine release serves it? Give --engine sglang==X.Y.Z or vllm==X.Y.Z.")
    if given.target is None and not (launch and launch.model):
        asked.append("Which target? Give --target with its config.json: layer ids and widths depend on it.")
    if launch is None and algorithm is None:
        asked.append("How is it launched? Give --launch: the algorithm and the parallel size decide.")
    if given.log is None and verdict is Verdict.UNKNOWN:
        asked.append("What does the log say? Give --log with some decode lines.")
    return asked


def notes(
    resolved: Resolved,
    arguments: ServerArguments,
    facts: EngineFacts | Missing,
    command: Launch | Missing,
    engine: Engine | None,
    launch: Launch | None,
    load: Load | None,
    target: TargetFolder | None,
    log: Log | None,
    witnessed: Witnessed | None,
) -> list[str]:
    """What a reader should know about the inputs: contradictions, facts of a neighbouring release."""
    said = list(launch.notes) if launch else []
    if isinstance(command, Missing) and command.error is not None:
        said.append(f"the launch command was not read: {command.error.problem}")
    if resolved.note and engine is not None and engine.number:
        said.append(resolved.note)
    if resolved.facts is not None and isinstance(facts, Missing):
        said.append(facts.reason)
    if load is not None and any(stop.rule == "hidden size multiple of heads" for stop in load.stops):
        said.append("the config class of this release refuses a hidden_size that is no multiple of the heads")
    if target is not None and target.error is not None:
        said.append(f"the target's folder: {target.error.problem}")
    if launch and engine and launch.engine and launch.engine != engine.kind:
        said.append(f"the command launches {launch.engine}, and the engine given is {engine}")
    unweighed = launch.unweighed() if launch else ()
    if unweighed:
        said.append(f"set in the command, and not weighed here: {', '.join(unweighed)}")
    for name, ours in (
        ("speculative_algorithm", launch.algorithm if launch else None),
        ("speculative_num_steps", launch.steps if launch else None),
        ("tp_size", launch.tp if launch else None),
    ):
        theirs = arguments.get(name)
        if ours is not None and theirs is not None and str(ours).upper() != str(theirs).upper():
            said.append(
                f"the log's server ran with {name}={theirs}, the command says {ours}: is it another run?"
            )
    said += log.notes if log else ()
    said += witnessed.notes if witnessed else ()
    return list(dict.fromkeys(said))


def named(
    given: Given, engine: Engine | None, launch: Launch | None, witnessed: Witnessed | None
) -> dict[str, str]:
    """The inputs by name, as the report lists them."""
    values: dict[str, object] = {
        "drafter": _place(given.drafter),
        "target": _place(given.target),
        "engine": engine,
        "log": given.log,
        "events": witnessed.path if witnessed else None,
        "text": given.text,
        "launch": launch.algorithm or "given" if launch else None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _place(given: object) -> object:
    return given if given is None or isinstance(given, Path) else getattr(given, "path", given)
