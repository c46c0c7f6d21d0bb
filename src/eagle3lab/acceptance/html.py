"""A report as HTML: a fragment for notebooks, and a page of its own without a script or an outside request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from eagle3lab.acceptance.charts import Mark, bars, curve
from eagle3lab.acceptance.points import by_position, distribution, points_over_time
from eagle3lab.acceptance.render import AGREES, facts
from eagle3lab.acceptance.report import AcceptanceReport, ServerReport
from eagle3lab.page import page_around
from eagle3lab.text import printable

_STYLE = """
.e3a{font:15px/1.5 system-ui,sans-serif;max-width:60rem;color:inherit}
.e3a h2{font-size:1.15rem;margin:0 0 .3rem}.e3a h3{font-size:1rem;margin:.8rem 0 .2rem}
.e3a .verdict{padding:.5rem .8rem;border-left:.4rem solid #888;background:#8881;margin-bottom:.8rem}
.e3a .good{border-color:#1b7f3b}.e3a .bad{border-color:#b3261e}
.e3a article{border:1px solid #8885;border-radius:.3rem;padding:.6rem .8rem;margin:.6rem 0}
.e3a table{border-collapse:collapse;font-size:.9em}.e3a td,.e3a th{padding:.1rem .8rem .1rem 0;text-align:left;
vertical-align:top;overflow-wrap:anywhere}.e3a th{font-weight:600}.e3a .dim{opacity:.75;font-size:.9em}
.e3a svg{max-width:40rem;display:block}
"""
_GOOD, _BAD = {"healthy"}, {"dead", "near-dead", "random-head", "collapse", "switched-off", "not-speculating"}


def page(report: AcceptanceReport) -> str:
    """A complete HTML document; its policy forbids scripts and every outside request."""
    main = report.main
    title = main.signature.name if main else "no data"
    return page_around(fragment(report), f"eagle3lab acceptance: {title}")


def fragment(report: AcceptanceReport) -> str:
    """The report as one element, with its style."""
    parts = [_server(server, len(report.servers) > 1) for server in report.servers]
    if not parts:
        parts = ["<p>no data: nothing reports acceptance</p>"]
    foot = [*report.notes, *(f"{e.path}:{e.line}: {e.reason}: {e.text}" for e in report.reading.examples)]
    if foot:
        parts.append(f"<h3>Notes</h3><ul>{''.join(f'<li>{_text(note)}</li>' for note in foot)}</ul>")
    return f'<section class="e3a"><style>{_STYLE}</style>{"".join(parts)}</section>'


def _text(text: str) -> str:
    return escape(printable(text, 600))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{_text(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _behind(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f'<details class="dim"><summary>The numbers</summary>{_table(head, rows)}</details>'


def _server(server: ServerReport, several: bool) -> str:
    name = server.signature.name
    kind = "good" if name in _GOOD else "bad" if name in _BAD else ""
    parts = [f'<div class="verdict {kind}"><h2>{_text(name)}: {_text(server.signature.meaning)}</h2>']
    if several:
        parts.append(f'<div class="dim">{_text(server.path)}, from line {server.first_line}</div>')
    parts.append(f"<div>{_text(server.signature.reason)}</div></div>")
    parts.append(_table(("Quantity", "Value"), facts(server)))
    over_time = server.log if server.log is not None else server
    parts += [_over_time(over_time), _positions(server), _distribution(server), _agreement(server)]
    if server.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in server.notes)
        parts.append(f'<ul class="dim">{notes}</ul>')
    return f"<article>{''.join(parts)}</article>"


def _over_time(server: ServerReport) -> str:
    points = points_over_time(server)
    if not points:
        return ""
    rows = len(server.table["lines"])
    marks = [
        Mark(c.row / max(rows - 1, 1), f"{c.before:.2f} to {c.after:.2f}", across=False)
        for c in server.changes
    ]
    if server.expected is not None:
        marks.append(Mark(server.expected.accept_length, "training promises"))
    drawn = curve(
        f"accept length over {rows} rows, mean {server.accept_length.mean if server.accept_length else 1:.2f}",
        [(p.low, p.accept_length, p.high) for p in points],
        (str(points[0].time), str(points[-1].time)),
        marks,
    )
    numbers = (
        (str(p.time), str(p.lines), f"{p.accept_length:.3f}", f"{p.low:.3f} to {p.high:.3f}") for p in points
    )
    return (
        "<h3>Accept length over time, tokens a verify step (1.00: nothing accepted)</h3>"
        + drawn + _behind(("From", "Rows", "Accept length", "95 % interval"), numbers)
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _positions(server: ServerReport) -> str:
    rows = by_position(server)
    if not rows:
        return ""
    drawn = bars(
        "share of verify steps that accept each draft position",
        [(str(row.position), row.measured, row.promised) for row in rows],
    )
    promised = any(row.promised is not None for row in rows)
    outlined = " (outlined: promised by training)" if promised else ""
    return (
        f"<h3>By draft position, share of the verify steps{outlined}</h3>"
        + drawn
        + _behind(
            ("Position", "Measured", "Given the ones before", "Promised"),
            ((str(r.position), _share(r.measured), _share(r.conditional), _share(r.promised)) for r in rows),
        )
    )


def _distribution(server: ServerReport) -> str:
    if server.source != "sglang-request":
        return ""
    rows = distribution(server)
    if not rows:
        return ""
    drawn = bars("share of requests by accept length", [(f"{row.low:.1f}", row.share, None) for row in rows])
    return (
        "<h3>Requests by accept length</h3>"
        + drawn
        + _behind(
            ("From", "To", "Requests", "Share"),
            ((f"{r.low:.1f}", f"{r.high:.1f}", str(r.rows), _share(r.share)) for r in rows),
        )
    )


def _agreement(server: ServerReport) -> str:
    found = server.agreement
    if found is None:
        return ""
    figures = (
        (
            one.source,
            one.covers,
            "" if one.steps is None else f"{one.steps:.0f}",
            f"{one.accept_length:.3f}"
            + ("" if one.low == one.high else f" ({one.low:.3f} to {one.high:.3f} left open)"),
            _share(one.accept_rate),
        )
        for one in found.figures
    )
    checks = "".join(
        f"<li>{'yes' if check.agree else '<b>no</b>'}: {_text(check.says)}</li>" for check in found.checks
    )
    return (
        f"<h3>{AGREES[found.agree].capitalize()}</h3>"
        + _table(("Source", "Covers", "Verify steps", "Accept length", "Drafts accepted"), figures)
        + f'<ul class="dim">{checks}</ul>'
    )
