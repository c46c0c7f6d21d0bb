"""A comparison for a terminal."""

from __future__ import annotations

import math

from eagle3lab.acceptance.comparison import BETTER, NO_DIFFERENCE, UNKNOWN, WORSE, Comparison
from eagle3lab.acceptance.report import ServerReport, count
from eagle3lab.text import printable

_SAYS = {
    BETTER: "B is better than A",
    WORSE: "B is worse than A",
    NO_DIFFERENCE: "no difference between A and B is shown",
    UNKNOWN: "whether B differs from A cannot be told",
}


def says(found: Comparison) -> str:
    """The verdict in one sentence, with the change, its interval and how sure it is."""
    change = found.length
    text = _SAYS[found.verdict]
    if found.verdict == UNKNOWN:
        return f"{text}: one measurement has no spread ({change.change:+.2f} tokens a verify step)"
    text += (
        f": {change.change:+.3f} tokens a verify step, 95 % interval {change.low:+.3f} to {change.high:+.3f}"
    )
    if found.verdict == NO_DIFFERENCE:
        return f"{text}; a change of {found.resolution or 0:.2f} would have shown"
    return f"{text}, {_percent(found.sure or 0)} sure"


def _percent(sure: float) -> str:
    return "more than 99.9 %" if sure > 0.999 else f"{sure:.1%}"


def comparison_text(found: Comparison) -> str:
    """The comparison in full."""
    out = [says(found)]
    for name, side, length in (
        ("A", found.a, found.length.before.mean),
        ("B", found.b, found.length.after.mean),
    ):
        out.append(f"  {name}            {_side(side, length)}")
    if found.pairs:
        out.append(f"  judged       prompt by prompt, {count(found.pairs, 'prompt')} that both answered")
    else:
        rows = f"{len(found.a.table['lines'])} and {len(found.b.table['lines'])} rows"
        out.append(f"  judged       as independent runs, {rows}")
    if found.rate is not None:
        out.append(f"  true rate    {found.rate * 100:+.1f} percentage points of the drafts")
    for one in found.per_position:
        text = f"{one.before:.1%} to {one.after:.1%} of the steps"
        if one.difference is not None and math.isfinite(one.difference.low):
            low, high = one.difference.low * 100, one.difference.high * 100
            text += f" ({low:+.1f} to {high:+.1f} points)"
        out.append(f"  position {one.position:<3} {text}")
    if found.same_answers is not None:
        out.append(f"  answers      the same tokens in {found.same_answers} of {found.pairs}")
    if found.speed is not None:
        before, after = found.speed
        out.append(f"  speed        {before:.1f} to {after:.1f} tokens a second, all requests together")
    out += [f"  note         {printable(note)}" for note in found.notes]
    return "\n".join(out) + "\n"


def _side(report: ServerReport, length: float) -> str:
    rate = f", {report.accept_rate:.1%} of the drafts" if report.accept_rate is not None else ""
    return f"{length:.3f} tokens a verify step{rate}, {report.signature.name}: {printable(report.path)}"
