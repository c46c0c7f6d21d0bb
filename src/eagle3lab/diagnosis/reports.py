"""A diagnosis written out: for a terminal, as HTML for notebooks and colleagues, as SARIF for a code-scanning service.

rich is imported only when a diagnosis is drawn. The HTML makes no outside request, and its policy forbids scripts.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from eagle3lab.diagnosis.checks import all_checks
from eagle3lab.diagnosis.model import Diagnosis, Evidence, Finding, Observed, Severity, Verdict
from eagle3lab.page import page_around
from eagle3lab.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

# ---- terminal -------------------------------------------------------------------------------------------------------

_VERDICT_STYLE = {
    Verdict.BROKEN: "bold red",
    Verdict.SUSPECT: "bold yellow",
    Verdict.HEALTHY: "bold green",
    Verdict.NO_FAULT_FOUND: "bold green",
    Verdict.UNKNOWN: "bold",
}
_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "cyan"}


def place(evidence: Evidence) -> str:
    """Where a piece of evidence stands, as `file:line, tensor name`; empty where nowhere in particular."""
    file = printable(evidence.file) if evidence.file else ""
    if evidence.line is not None:
        file = f"{file or 'line'}:{evidence.line}"
    tensor = printable(evidence.tensor) if evidence.tensor else ""
    return ", ".join(part for part in (file, tensor) if part)


def drawn(diagnosis: Diagnosis) -> list[RenderableType]:
    """The diagnosis as rich renderables."""
    from rich.text import Text

    style = _VERDICT_STYLE[diagnosis.verdict]
    lines: list[RenderableType] = [
        Text(f"{diagnosis.verdict}: {printable(diagnosis.summary, 1200)}", style=style)
    ]
    if diagnosis.observed is not None:
        lines.append(Text(observed_line(diagnosis)))
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [Text(""), *_finding(number, finding)]
    if len(diagnosis.repair_order) > 1:
        lines += [Text(""), Text("Repair in this order: " + ", ".join(diagnosis.repair_order))]
    for heading, texts in (("Next", diagnosis.questions), ("Note", diagnosis.notes)):
        if texts:
            lines.append(Text(""))
            lines += (Text(f"{heading}: {printable(text, 1200)}") for text in texts)
    lines += [Text(""), Text(counts(diagnosis), style="dim")]
    return lines


def observed_line(diagnosis: Diagnosis) -> str:
    """What the log shows, in one line."""
    observed = diagnosis.observed
    assert observed is not None
    return f"Observed: {observed.signature} ({printable(observed.reason)})"


def counts(diagnosis: Diagnosis) -> str:
    """How many checks passed, found something, were skipped."""
    found = len({finding.code for finding in diagnosis.findings})
    return (
        f"{len(diagnosis.passed)} checks passed, {found} found something, {len(diagnosis.skipped)} were skipped "
        "(--format json has the reasons)"
    )


def _finding(number: int, finding: Finding) -> list[Text]:
    from rich.text import Text

    head = Text(f"{number}. ")
    head.append(str(finding.severity), style=_STYLE[finding.severity])
    head.append(f" {finding.title}")
    head.append(f"  [{finding.code} {finding.fault}, {finding.confidence:.0%} sure]", style="dim")
    lines = [head]
    for item in finding.evidence:
        where = place(item)
        lines.append(Text(f"   · {item.text}" + (f"  ({where})" if where else "")))
    lines.append(Text(f"   Effect: {finding.effect}"))
    repair = Text("   Repair: ")
    repair.append(finding.fix, style="bold")
    lines.append(repair)
    if finding.ranking:
        lines.append(Text(f"   Place: {finding.ranking}", style="dim"))
    if finding.hidden_by:
        lines.append(Text(f"   Hidden until {', '.join(finding.hidden_by)} is repaired.", style="dim"))
    return lines


# ---- HTML ------------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _MARGIN = 640, 150, 32
_SHEET = """
.e3l{font:15px/1.5 system-ui,sans-serif;max-width:60rem;color:inherit}
.e3l h2{font-size:1.15rem;margin:0 0 .3rem}.e3l h3{font-size:1rem;margin:0 0 .2rem}
.e3l .verdict{padding:.5rem .8rem;border-left:.4rem solid #888;background:#8881;margin-bottom:.8rem}
.e3l .broken{border-color:#b3261e}.e3l .suspect{border-color:#b26a00}
.e3l .healthy,.e3l .no-fault-found{border-color:#1b7f3b}
.e3l article{border:1px solid #8885;border-radius:.3rem;padding:.6rem .8rem;margin:.6rem 0}
.e3l .error h3::before{content:"\\25CF ";color:#b3261e}.e3l .warning h3::before{content:"\\25B2 ";color:#b26a00}
.e3l .note h3::before{content:"\\25CB ";color:#2466a8}
.e3l code{overflow-wrap:anywhere}.e3l .dim{opacity:.7;font-size:.9em}.e3l ul{margin:.2rem 0 .4rem;padding-left:1.2rem}
"""


def page(diagnosis: Diagnosis) -> str:
    """A complete HTML document; its policy forbids scripts and every outside request."""
    return page_around(fragment(diagnosis), f"eagle3lab: {diagnosis.verdict}")


def fragment(diagnosis: Diagnosis) -> str:
    """The diagnosis as one element, with its style."""
    parts = [f"<style>{_SHEET}</style>"]
    parts.append(
        f'<div class="verdict {diagnosis.verdict}"><h2>{_text(f"{diagnosis.verdict}: {diagnosis.summary}")}</h2>'
    )
    given = ", ".join(f"{name}: {value}" for name, value in diagnosis.inputs.items())
    parts.append(f'<div class="dim">{_text(given)}</div>')
    if diagnosis.observed is not None:
        parts.append(f"<div>{_text(observed_line(diagnosis))}</div>")
        parts.append(_plot(diagnosis.observed))
    parts.append("</div>")
    parts += (_article(finding) for finding in diagnosis.findings)
    if len(diagnosis.repair_order) > 1:
        parts.append(f"<p>Repair in this order: {_text(', '.join(diagnosis.repair_order))}</p>")
    for heading, texts in (("Next", diagnosis.questions), ("Notes", diagnosis.notes)):
        if texts:
            items = "".join(f"<li>{_text(text)}</li>" for text in texts)
            parts.append(f"<h3>{heading}</h3><ul>{items}</ul>")
    skipped = "".join(f"<li>{_text(one.code)}: {_text(one.reason)}</li>" for one in diagnosis.skipped)
    summary = _text(counts(diagnosis).partition(" (")[0])
    parts.append(f'<details class="dim"><summary>{summary}</summary><ul>{skipped}</ul></details>')
    return f'<section class="e3l">{"".join(parts)}</section>'


def _text(text: str) -> str:
    return escape(printable(text, 1200))


def _article(finding: Finding) -> str:
    evidence = ""
    for item in finding.evidence:
        where = place(item)
        evidence += f"<li>{_text(item.text)}" + (f" <code>{escape(where)}</code>" if where else "") + "</li>"
    after = ""
    if finding.ranking:
        after += f'<div class="dim">{_text(finding.ranking)}</div>'
    if finding.hidden_by:
        after += f'<div class="dim">Hidden until {_text(", ".join(finding.hidden_by))} is repaired.</div>'
    return (
        f'<article class="{finding.severity}"><h3>{_text(finding.title)}</h3>'
        f'<div class="dim">{_text(finding.code)} · {_text(finding.fault)} · {finding.confidence:.0%} sure</div>'
        f"<ul>{evidence}</ul><div>{_text(finding.effect)}</div>"
        f"<div><strong>{_text(finding.fix)}</strong></div>{after}</article>"
    )


def _plot(observed: Observed) -> str:
    """Accept length over time as an SVG polyline; nothing for fewer than two points."""
    values = observed.history
    if len(values) < 2:
        return ""
    top = max(2.0, *values) * 1.05
    step = (_WIDTH - 2 * _MARGIN) / (len(values) - 1)

    def height(value: float) -> float:
        return _HEIGHT - _MARGIN - (value - 1) / (top - 1) * (_HEIGHT - 2 * _MARGIN)

    points = " ".join(f"{_MARGIN + i * step:.1f},{height(max(1.0, v)):.1f}" for i, v in enumerate(values))
    floor = height(1.0)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img" '
        f'aria-label="accept length over {len(values)} intervals, from {min(values):.2f} to {max(values):.2f}">'
        f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{floor:.1f}" y2="{floor:.1f}" '
        'stroke="#888" stroke-dasharray="4 3"/>'
        f'<polyline points="{points}" fill="none" stroke="#2466a8" stroke-width="2"/>'
        f'<text x="2" y="{floor + 4:.1f}" font-size="11" fill="currentColor">1.00</text>'
        f'<text x="{_MARGIN}" y="14" font-size="11" fill="currentColor">accept length (1.00: nothing accepted)</text>'
        f'<text x="2" y="{height(max(values)) + 4:.1f}" font-size="11" fill="currentColor">{max(values):.2f}</text>'
        "</svg>"
    )


# ---- SARIF -----------------------------------------------------------------------------------------------------------

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def sarif(diagnosis: Diagnosis) -> dict[str, Any]:
    """One run with a rule for each code that found something and a result for each finding."""
    from eagle3lab import __version__

    codes = list(dict.fromkeys(finding.code for finding in diagnosis.findings))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "eagle3lab",
                        "semanticVersion": __version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "exitCode": diagnosis.exit_status}],
                "results": [_result(one, codes.index(one.code), diagnosis) for one in diagnosis.findings],
                "properties": {"verdict": str(diagnosis.verdict)},
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    check = next(one for one in all_checks() if one.code == code)
    page = check.page
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in check.fault.replace(".", "-").split("-")),
        "shortDescription": {"text": f"{page.title}."},
        "fullDescription": {"text": " ".join(page.parts.values()) or page.title},
        "help": {"text": page.parts.get("Repair", page.title)},
        "defaultConfiguration": {"level": _LEVEL[check.severity]},
        "properties": {"fault": check.fault},
    }


def _result(finding: Finding, rule: int, diagnosis: Diagnosis) -> dict[str, Any]:
    seen = " ".join(f"{item.text}." for item in finding.evidence)
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVEL[finding.severity],
        "rank": round(100 * finding.confidence, 1),
        "message": {"text": f"{finding.title}. {seen} Repair: {finding.fix}"},
        "locations": [_location(item, diagnosis) for item in finding.evidence if item.file or item.tensor][
            :8
        ],
        "properties": {"fault": finding.fault, "confidence": finding.confidence, "effect": finding.effect},
    }


def _location(item: Evidence, diagnosis: Diagnosis) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if item.file:
        folder = diagnosis.inputs.get("drafter")
        bare = folder is not None and "/" not in item.file
        path = f"{folder}/{item.file}" if bare else item.file
        physical: dict[str, Any] = {
            "artifactLocation": {"uri": quote(printable(path, 4096).lstrip("/"), safe="/")}
        }
        if item.line is not None:
            physical["region"] = {"startLine": max(1, item.line)}
        location["physicalLocation"] = physical
    if item.tensor:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(item.tensor), "kind": "member"}]
    return location
