"""The order of findings: how well each explains what was observed, and which of them hides which.

What is observed is held against what each fault does: what it looked like wherever it was measured, and, as if that
were two measurements more, what it should look like by its impact. A finding that can produce what was observed moves
up, one that cannot moves down, and its text says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from eagle3lab.diagnosis.crash import Crash
from eagle3lab.diagnosis.model import Evidence, Finding, Impact, Observed, Severity

_BASE = {Impact.STOPS: 1.0, Impact.ZERO: 0.95, Impact.PARTIAL: 0.6, Impact.LATER: 0.55, Impact.NONE: 0.4}
_GRAVITY = {Severity.ERROR: 1.0, Severity.WARNING: 0.75, Severity.NOTE: 0.2}
_UP, _DOWN = 1.4, 0.5
# What is expected of a fault's impact counts as much as this many measurements of the fault.
_EXPECTED = 2
_LIKELY = 0.6
_PROVEN = 0.9

# Signature → the impacts that produce it, and those that cannot.
_FITS: dict[str, tuple[frozenset[Impact], frozenset[Impact]]] = {
    "dead": (frozenset({Impact.ZERO}), frozenset({Impact.STOPS, Impact.LATER, Impact.NONE})),
    "near-dead": (frozenset({Impact.ZERO}), frozenset({Impact.STOPS, Impact.LATER, Impact.NONE})),
    "random-head": (frozenset({Impact.ZERO}), frozenset({Impact.STOPS, Impact.LATER})),
    "partial": (frozenset({Impact.PARTIAL, Impact.LATER}), frozenset({Impact.STOPS, Impact.ZERO})),
    "weak-training": (frozenset({Impact.PARTIAL}), frozenset({Impact.STOPS, Impact.ZERO})),
    "below-expectation": (frozenset({Impact.PARTIAL, Impact.LATER}), frozenset({Impact.STOPS, Impact.ZERO})),
    "recurrence-cliff": (frozenset({Impact.LATER}), frozenset({Impact.STOPS, Impact.ZERO})),
    "healthy": (frozenset(), frozenset({Impact.STOPS, Impact.ZERO, Impact.PARTIAL})),
}
# Signatures that a finding of their own explains.
_OWN = {
    "switched-off": ("runtime.switched-off",),
    "drift": ("runtime.drift", "runtime.cache"),
    "collapse": ("runtime.degenerate",),
    "not-speculating": ("runtime.not-speculating", "flags.method"),
    "no-data": ("metric.no-data",),
    "weak-training": ("training.weak",),
}
_STAGES = (
    "files", "head-kind", "names", "flags", "capture.algorithm", "capture.target-unsupported",
    "capture.target-incomplete", "head", "vocab",
    "capture", "layer", "runtime", "training", "metric",
)  # fmt: skip
# What hides what, besides that whatever stops the server hides everything that happens later.
_HIDES = {
    "files.": ("names.", "head.", "vocab.", "capture.", "layer.", "training."),
    "names.": ("head.", "vocab.", "capture.", "layer.", "training."),
    "capture.algorithm": (
        "vocab.",
        "head.lm-head-missing",
        "head.tied",
        "head.row-order",
        "capture.",
        "layer.",
    ),
    "head.": ("training.", "capture.ids", "layer."),
    "vocab.": ("training.", "capture.ids", "layer."),
}


def ranked(
    found: list[Finding], observed: Observed | None, crash: Crash | None, *, served: bool
) -> tuple[Finding, ...]:
    """Findings, most likely cause first, each with the reason for its place.

    Args:
        found: In the order of the checks.
        observed: What the log shows; None without a log.
        crash: What the server died of; None while it lived.
        served: Whether the log shows that it decoded.
    """
    findings = _with_crash(found, crash)
    if observed is not None:
        findings = [_doubted(one, observed, served=served, crash=crash) for one in findings]
    scored = [(_score(one, observed, crash), one) for one in findings]
    scored.sort(key=lambda pair: (-pair[0][0], stage(pair[1].fault), pair[1].code))
    ordered = [replace(one, ranking=one.ranking or reason) for (_, reason), one in scored]
    return tuple(replace(one, hidden_by=_hidden_by(one, ordered)) for one in ordered)


def stage(fault: str) -> int:
    """How early a fault acts on the way from the files to the accepted token."""
    if fault in _STAGES:
        return _STAGES.index(fault)
    return _STAGES.index(fault.partition(".")[0])


def repair_order(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Codes of errors and warnings in the order in which to repair them: what hides others comes first."""
    real = [
        one for one in findings if one.severity is not Severity.NOTE and not one.fault.startswith("metric.")
    ]
    ordered = sorted(real, key=lambda one: (one.impact is not Impact.STOPS, stage(one.fault)))
    return tuple(dict.fromkeys(one.code for one in ordered))


def _with_crash(found: list[Finding], crash: Crash | None) -> list[Finding]:
    """The findings, with the traceback as evidence for the one that explains it best."""
    if crash is None:
        return found
    named = [one for fault in crash.explains for one in found if one.fault == fault and one.code != "E3L-R02"]
    if not named:
        return found
    said = (
        Evidence(f"the log: {crash.rank or 'the server'} died of {crash.error}", line=crash.line),
        *map(Evidence, crash.seen),
    )
    return [replace(one, evidence=(*one.evidence, *said)) if one is named[0] else one for one in found]


def _doubted(finding: Finding, observed: Observed, *, served: bool, crash: Crash | None) -> Finding:
    """A finding that the log contradicts is less grave: the log may be of another run, or the build patched."""
    if finding.severity is not Severity.ERROR or finding.code == "E3L-R02":
        return finding
    useful = observed.signature == "healthy"
    if finding.impact is Impact.STOPS and served and (crash is None or crash.served):
        said = "the log shows that the server started: another run, or a changed build"
        return replace(finding, severity=Severity.NOTE if useful else Severity.WARNING, ranking=said)
    if finding.impact is Impact.ZERO and useful:
        said = "the log shows useful acceptance, which this fault would prevent: is the log of this drafter?"
        return replace(finding, severity=Severity.WARNING, ranking=said)
    return finding


def _score(finding: Finding, observed: Observed | None, crash: Crash | None) -> tuple[float, str]:
    # What is proven to stop the server is met in the order of start-up, however sure each of them is.
    proven = finding.impact is Impact.STOPS and finding.confidence >= _PROVEN
    confidence = 1.0 if proven else finding.confidence
    score = _BASE[finding.impact] * _GRAVITY[finding.severity] * (0.5 + confidence / 2)
    if observed is None:
        return score, ""
    if crash is not None:
        return _score_crash(score, finding, crash)
    name = observed.signature
    if finding.fault in _OWN.get(name, ()):
        return score * _UP * _UP, f"it is what the log shows: {observed.reason}"
    up, down = _FITS.get(name, (frozenset(), frozenset()))
    expected = 1.0 if finding.impact in up else 0.0 if finding.impact in down else 0.5
    cells = measured(finding.fault, name)
    share = (cells.alike + _EXPECTED * expected) / (cells.cells + _EXPECTED)
    said = []
    if share > _LIKELY:
        said.append(f"promoted: it produces what was observed ({observed.reason})")
    elif share < 1 - _LIKELY:
        said.append(f"demoted: alone it would not produce what was observed ({observed.reason})")
    if cells.cells:
        said.append(f"{cells.alike} of {cells.cells} measurements of it look like this")
    return score * (_DOWN + (_UP - _DOWN) * share), "; ".join(said)


def _score_crash(score: float, finding: Finding, crash: Crash) -> tuple[float, str]:
    itself = finding.code == "E3L-R02"
    if finding.fault in crash.explains:
        said = "it is what the log shows" if itself else "promoted: it explains what the server died of"
        return score * _UP * (_UP - 0.02 * crash.explains.index(finding.fault)), said
    if itself:
        return score * (_UP if crash.explains else 1.0), "it is what the log shows"
    if finding.impact is Impact.STOPS and not crash.alone:
        return score, ""
    return score * _DOWN, "demoted: it is not what the first traceback shows"


def _hidden_by(finding: Finding, findings: list[Finding]) -> tuple[str, ...]:
    codes = []
    for other in findings:
        if other is finding or other.code == finding.code or other.severity is Severity.NOTE:
            continue
        stops = other.impact is Impact.STOPS and other.severity is Severity.ERROR
        if stops and finding.impact is not Impact.STOPS and stage(other.fault) <= stage(finding.fault):
            codes.append(other.code)
            continue
        hidden = next((value for key, value in _HIDES.items() if other.fault.startswith(key)), ())
        if other.impact in (Impact.ZERO, Impact.STOPS) and finding.fault.startswith(hidden or ("\0",)):
            codes.append(other.code)
    return tuple(dict.fromkeys(codes))


# ---- what each fault looked like when it was measured --------------------------------------------------------------

# Signatures that differ by a few hundredths of accept length or by what the reader knows of the training.
_ALIKE = (
    frozenset({"dead", "near-dead", "random-head"}),
    frozenset({"partial", "weak-training", "below-expectation"}),
)

# Written by `make matrix`: for each slug, the number of measurements, one for each variant of it in a release, and how
# many of them show each signature of `eagle3lab.acceptance.signature`.
SIGNATURES = Path(__file__).with_name("signatures.json")


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one fault.

    Attributes:
        cells: How many there are, over releases and variants of the fault.
        alike: How many of them show the signature in question, or one next to it.
    """

    cells: int
    alike: int


def measured(fault: str, signature: str) -> Measured:
    """How often a fault, put into a healthy head, showed a signature."""
    row = _measurements().get(fault, {})
    group = next((names for names in _ALIKE if signature in names), frozenset({signature}))
    alike = sum(row.get(name, 0) for name in group)
    return Measured(row.get("cells", 0), min(alike, row.get("cells", 0)))


@cache
def _measurements() -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads(SIGNATURES.read_text("utf-8"))["faults"]
    return table
