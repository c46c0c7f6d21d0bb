"""A report as HTML: a fragment for notebooks, and a page of its own without a script or an outside request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

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


# --- Small charts as SVG, for a page without scripts: a curve with its band, and bars ---

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 14, 26
_BLUE, _ORANGE, _GREY = "#2466a8", "#b26a00", "#888"


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a chart: at a height (`across`) or at a place from 0 to 1 (not `across`), and what it is."""

    at: float
    text: str
    across: bool = True


def _scale(value: float, low: float, high: float) -> float:
    return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)


def _place(share: float) -> float:
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _open(label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{escape(label)}">'


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="11" fill="currentColor">{escape(text)}</text>'


def _axis(low: float, high: float, form: str) -> str:
    lines = []
    for i in range(3):
        value = low + (high - low) * i / 2
        y = _scale(value, low, high)
        lines.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>'
            + _label(_LEFT - 4, y + 4, format(value, form), "end")
        )
    return "".join(lines)


def curve(
    label: str,
    rows: Sequence[tuple[float, float, float]],
    ends: tuple[str, str],
    marks: Sequence[Mark] = (),
) -> str:
    """A curve of (low, value, high) rows with its band, accept length upwards from 1.

    Args:
        label: What it shows, for those who cannot see it.
        rows: In order, at least one.
        ends: What stands below the first and the last row.
        marks: Lines to draw across.
    """
    top = max(2.0, *(high for _, _, high in rows), *(m.at for m in marks if m.across)) * 1.05

    def point(i: int, value: float) -> str:
        return f"{_place(i / max(len(rows) - 1, 1)):.1f},{_scale(value, 1, top):.1f}"

    forth = [point(i, high) for i, (_, _, high) in enumerate(rows)]
    back = [point(i, low) for i, (low, _, _) in enumerate(rows)][::-1]
    middle = " ".join(point(i, value) for i, (_, value, _) in enumerate(rows))
    drawn = [_open(label), _axis(1, top, ".2f")]
    drawn.append(f'<polygon points="{" ".join(forth + back)}" fill="{_BLUE}" fill-opacity="0.2"/>')
    drawn.append(f'<polyline points="{middle}" fill="none" stroke="{_BLUE}" stroke-width="2"/>')
    if len(rows) == 1:
        drawn.append(
            f'<circle cx="{_place(0):.1f}" cy="{_scale(rows[0][1], 1, top):.1f}" r="4" fill="{_BLUE}"/>'
        )
    for mark in marks:
        if mark.across:
            y = _scale(mark.at, 1, top)
            drawn.append(
                f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_ORANGE}" '
                'stroke-dasharray="5 4"/>' + _label(WIDTH - _RIGHT, y - 4, mark.text, "end")
            )
        else:
            x = _place(mark.at)
            drawn.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" stroke="{_GREY}" '
                'stroke-dasharray="2 3"/>' + _label(x + 3, _TOP + 8, mark.text)
            )
    drawn += [
        _label(_LEFT, HEIGHT - 8, ends[0]),
        _label(WIDTH - _RIGHT, HEIGHT - 8, ends[1], "end"),
        "</svg>",
    ]
    return "".join(drawn)


def bars(label: str, rows: Sequence[tuple[str, float | None, float | None]], *, form: str = ".0%") -> str:
    """Bars of (name, value, reference): the reference is an outline behind the bar.

    Args:
        label: What they show.
        rows: At least one; None draws no bar.
        form: Format of the heights.
    """
    values = [value for _, *pair in rows for value in pair if value is not None]
    top = max([*values, 1e-9]) * 1.05
    room = (WIDTH - _LEFT - _RIGHT) / len(rows)
    every = max(1, -(-len(rows) // 12))
    drawn = [_open(label), _axis(0, top, form)]
    for i, (name, value, reference) in enumerate(rows):
        x, wide = _LEFT + (i + 0.15) * room, 0.7 * room
        for height, style in (
            (reference, f'fill="none" stroke="{_ORANGE}" stroke-dasharray="5 4"'),
            (value, f'fill="{_BLUE}" fill-opacity="0.75"'),
        ):
            if height is not None:
                y = _scale(height, 0, top)
                drawn.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{HEIGHT - _BOTTOM - y:.1f}" {style}/>'
                )
        if i % every == 0:
            drawn.append(_label(x + wide / 2, HEIGHT - 8, name, "middle"))
    return "".join([*drawn, "</svg>"])
