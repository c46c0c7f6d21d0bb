"""A diagnosis as HTML: a fragment for notebooks, and a page of its own without any outside request."""

from __future__ import annotations

from html import escape

from eagle3lab.diagnosis.model import Diagnosis, Finding, Observed
from eagle3lab.diagnosis.reports.text import counts, observed_line, place
from eagle3lab.page import page_around
from eagle3lab.text import printable

_WIDTH, _HEIGHT, _MARGIN = 640, 150, 32
_STYLE = """
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
    parts = [f"<style>{_STYLE}</style>"]
    parts.append(
        f'<div class="verdict {diagnosis.verdict}"><h2>{_text(f"{diagnosis.verdict}: {diagnosis.summary}")}</h2>'
    )
    given = ", ".join(f"{name}: {value}" for name, value in diagnosis.inputs.items())
    parts.append(f'<div class="dim">{_text(given)}</div>')
    if diagnosis.observed is not None:
        parts.append(f"<div>{_text(observed_line(diagnosis))}</div>")
        parts.append(_plot(diagnosis.observed))
    parts.append("</div>")
    parts += (_finding(finding) for finding in diagnosis.findings)
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


def _finding(finding: Finding) -> str:
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
