"""Small charts as SVG, for a page without scripts: a curve with its band, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="11" fill="currentColor">{escape(text)}</text>'


def _axis(low: float, high: float, form: str) -> str:
    lines = []
    for i in range(3):
        value = low + (high - low) * i / 2
        y = _scale(value, low, high)
        lines.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>'
            + _text(_LEFT - 4, y + 4, format(value, form), "end")
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
                'stroke-dasharray="5 4"/>' + _text(WIDTH - _RIGHT, y - 4, mark.text, "end")
            )
        else:
            x = _place(mark.at)
            drawn.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" stroke="{_GREY}" '
                'stroke-dasharray="2 3"/>' + _text(x + 3, _TOP + 8, mark.text)
            )
    drawn += [_text(_LEFT, HEIGHT - 8, ends[0]), _text(WIDTH - _RIGHT, HEIGHT - 8, ends[1], "end"), "</svg>"]
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
            drawn.append(_text(x + wide / 2, HEIGHT - 8, name, "middle"))
    return "".join([*drawn, "</svg>"])
