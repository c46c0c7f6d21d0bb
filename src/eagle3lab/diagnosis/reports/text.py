"""A diagnosis for a terminal. rich is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.diagnosis.model import Diagnosis, Evidence, Finding, Severity, Verdict
from eagle3lab.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

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
