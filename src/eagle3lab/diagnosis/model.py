"""What a diagnosis consists of: findings with their evidence, checks that were passed or skipped, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from eagle3lab.text import printable

SCHEMA_VERSION = 1
_SENTENCE = 1200
_OF_THE_CHECK: Any = None


class Severity(StrEnum):
    """How grave a finding is, apart from how sure it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Verdict(StrEnum):
    """What the inputs come to.

    broken: a fault is proven that stops the server or destroys acceptance. suspect: something is wrong or doubtful.
    healthy: acceptance was observed, and nothing is wrong. no-fault-found: nothing is wrong in what was looked at, and
    no acceptance was observed. unknown: too little was given to say.
    """

    BROKEN = "broken"
    SUSPECT = "suspect"
    HEALTHY = "healthy"
    NO_FAULT_FOUND = "no-fault-found"
    UNKNOWN = "unknown"


class Impact(StrEnum):
    """What a fault does to a server: what decides whether it explains an observation.

    stops: the server does not start, or dies. zero: it serves and accepts what chance accepts. partial: fewer drafts
    are accepted than the head is worth. later: the first draft is good, later ones are not. none: the numbers are
    misread or rewritten; acceptance is what it is.
    """

    STOPS = "stops"
    ZERO = "zero"
    PARTIAL = "partial"
    LATER = "later"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen.

    Attributes:
        text: A sentence; control characters and escapes are written out.
        file: The file it stands in, as the user named it or relative to the drafter's folder.
        tensor: The tensor's name as stored (untrusted).
        line: 1-based line of `file`.
    """

    text: str
    file: str | None = None
    tensor: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text, _SENTENCE))

    def as_json(self) -> dict[str, Any]:
        """Without what is not known."""
        places = {"file": self.file, "tensor": self.tensor, "line": self.line}
        return {"text": self.text, **{key: value for key, value in places.items() if value is not None}}


def seen(text: str, file: str | None = None, tensor: str | None = None, line: int | None = None) -> Evidence:
    """A piece of evidence."""
    return Evidence(text, file, tensor, line)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, proven or suspected. What is left out after `fix` is taken from the check that yields it.

    Attributes:
        title: One line.
        evidence: What was seen, the deciding things first.
        fix: The one change that repairs it.
        confidence: How sure it is, 0 to 1.
        severity: How grave it is.
        impact: What it does to a server: what decides whether it explains an observation.
        effect: What it does to acceptance, in a sentence.
        fault: The slug of the taxonomy.
        code: The check that found it.
        ranking: Why it stands where it stands; empty where nothing was observed.
        hidden_by: Codes of findings that must be repaired before this one can be seen.
    """

    title: str
    evidence: tuple[Evidence, ...]
    fix: str
    confidence: float = 1.0
    severity: Severity = _OF_THE_CHECK
    impact: Impact = _OF_THE_CHECK
    effect: str = ""
    fault: str = ""
    code: str = ""
    ranking: str = ""
    hidden_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("title", "effect", "fix", "ranking"):
            object.__setattr__(self, name, printable(getattr(self, name), _SENTENCE))

    def as_json(self) -> dict[str, Any]:
        """As in the published schema."""
        return {
            "fault": self.fault,
            "code": self.code,
            "severity": str(self.severity),
            "confidence": round(self.confidence, 3),
            "title": self.title,
            "evidence": [item.as_json() for item in self.evidence],
            "effect": self.effect,
            "fix": self.fix,
            "impact": str(self.impact),
            "ranking": self.ranking,
            "hidden_by": list(self.hidden_by),
        }


@dataclass(frozen=True, slots=True)
class Skipped:
    """A check that could not be done, and why."""

    code: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason, _SENTENCE))


@dataclass(frozen=True, slots=True)
class Observed:
    """What the log shows of acceptance.

    Attributes:
        signature: A name of `eagle3lab.acceptance.signature.MEANINGS`.
        confidence: 0 to 1.
        reason: The figures it rests on.
        accept_length: Tokens per verify step, bonus included; None when nothing was measured.
        accept_rate: Drafts accepted over drafts proposed; None when not known.
        per_position: Share of verify steps that accepted each position; empty when not printed.
        history: Accept lengths over time, at most 200, for a plot.
        crash: The exception of the first traceback; empty when the server did not die.
    """

    signature: str
    confidence: float
    reason: str
    accept_length: float | None = None
    accept_rate: float | None = None
    per_position: tuple[float, ...] = ()
    history: tuple[float, ...] = ()
    crash: str = ""

    def as_json(self) -> dict[str, Any]:
        """As in the published schema; numbers that are not finite become null."""
        return {
            "signature": self.signature,
            "confidence": round(self.confidence, 3),
            "reason": self.reason,
            "accept_length": _finite(self.accept_length),
            "accept_rate": _finite(self.accept_rate),
            "per_position": [_finite(value) for value in self.per_position],
            "crash": self.crash or None,
        }


def _finite(value: float | None) -> float | None:
    return None if value is None or value != value or abs(value) == float("inf") else round(value, 4)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer.

    Attributes:
        verdict: What it comes to.
        findings: Most likely cause first.
        skipped: Checks that could not be done.
        passed: Codes of checks that found nothing.
        repair_order: Codes of the findings in the order in which to repair them.
        questions: What would decide what is open.
        notes: What a reader should know about the inputs: contradictions, facts of a neighbouring release.
        inputs: What was given, by name.
        observed: What the log shows; None without one.
        summary: The verdict in a sentence or two.
        open: What was not looked at, and why.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    passed: tuple[str, ...]
    repair_order: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    observed: Observed | None = None
    summary: str = ""
    open: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """1 for broken or suspect, else 0."""
        return int(self.verdict in (Verdict.BROKEN, Verdict.SUSPECT))

    def as_json(self) -> dict[str, Any]:
        """The report of `report.schema.json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": str(self.verdict),
            "summary": printable(self.summary, _SENTENCE),
            "open": [printable(text, _SENTENCE) for text in self.open],
            "findings": [finding.as_json() for finding in self.findings],
            "skipped": [{"code": item.code, "reason": item.reason} for item in self.skipped],
            "passed": list(self.passed),
            "repair_order": list(self.repair_order),
            "questions": [printable(text, _SENTENCE) for text in self.questions],
            "notes": [printable(text, _SENTENCE) for text in self.notes],
            "inputs": {key: printable(value) for key, value in self.inputs.items()},
            "observed": None if self.observed is None else self.observed.as_json(),
        }

    def _repr_html_(self) -> str:
        from eagle3lab.diagnosis.reports import fragment

        return fragment(self)
