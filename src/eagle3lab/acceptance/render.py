"""A report as JSON or as text."""

from __future__ import annotations

import math
import textwrap
from datetime import UTC, datetime
from typing import Any

from eagle3lab.acceptance.counts import merge_pairs
from eagle3lab.acceptance.expectation import Advice
from eagle3lab.acceptance.formulas import formula_texts
from eagle3lab.acceptance.lines import YEARLESS
from eagle3lab.acceptance.report import AcceptanceReport, ServerReport
from eagle3lab.acceptance.run import Agreement
from eagle3lab.acceptance.signature import UNKNOWN, limit
from eagle3lab.acceptance.statistics import Dependence
from eagle3lab.text import printable

SCHEMA_VERSION = 1

JSON_ROWS = 256
"""Rows over time in the JSON of a server; longer series are merged pairwise."""


def as_json(report: AcceptanceReport) -> dict[str, Any]:
    """The report as JSON-ready data: the main server's figures on top, all servers below `servers`."""
    main = report.main
    top = _server_json(main) if main else _server_json_empty()
    notes = [*report.notes, *top.pop("notes")]
    if len(report.servers) > 1:
        notes.insert(
            0,
            f"{len(report.servers)} servers in what was read; the figures on top are those of the last with data",
        )
    reading = report.reading
    return {
        "schema_version": SCHEMA_VERSION,
        **top,
        "unparsed": {
            "count": reading.unparsed,
            "examples": [
                {"file": e.path, "line": e.line, "reason": e.reason, "text": printable(e.text, 200)}
                for e in reading.examples
            ],
        },
        "lines": reading.lines,
        "servers": [_server_json(server) for server in report.servers],
        "notes": notes,
    }


def _server_json_empty() -> dict[str, Any]:
    keys = (
        "engine", "accept_length", "accept_length_ci", "accept_rate_reported", "formula", "accept_rate",
        "draft_tokens", "per_position",
    )  # fmt: skip
    return {**dict.fromkeys(keys), "signature": _no_data(), "intervals": [], "notes": []}


def _no_data() -> dict[str, Any]:
    return {"name": "no-data", "level": UNKNOWN, "confidence": 0.95, "reason": "no line reports acceptance"}


def _server_json(server: ServerReport) -> dict[str, Any]:
    length, positions = server.accept_length, server.per_position
    return {
        "engine": str(server.engine) if server.engine else None,
        "algorithm": printable(server.algorithm) if server.algorithm else None,
        "accept_length": rounded(length.mean) if length else None,
        "accept_length_ci": [rounded(length.low), rounded(length.high)] if length and length.known else None,
        "accept_rate_reported": rounded(server.accept_rate_reported),
        "formula": server.reading.formula,
        "formula_decided_by": {
            "basis": server.reading.basis,
            "confidence": server.reading.confidence,
            "note": server.reading.note,
        },
        "accept_rate": rounded(server.accept_rate),
        "draft_tokens": server.draft_tokens,
        "per_position": {
            "unconditional": [rounded(share) for share in positions.unconditional],
            "conditional": [rounded(share) for share in positions.conditional],
        }
        if positions
        else None,
        "signature": {
            "name": server.signature.name,
            "level": server.signature.level,
            "confidence": server.signature.confidence,
            "reason": server.signature.reason,
        },
        "expected": {
            "accept_length": rounded(server.expected.accept_length),
            "per_position": [rounded(share) for share in server.expected.per_position],
            "assumptions": list(server.expected.assumptions),
            "impossible": server.impossible,
        }
        if server.expected
        else None,
        "steps_advice": _advice_json(server.advice),
        "ranks": {
            printable(r.label) or "-": {"accept_length": rounded(r.accept_length), "lines": r.lines}
            for r in server.ranks
        },
        "changes": [
            {
                "row": c.row,
                "time": _time(c.time),
                "before": rounded(c.before),
                "after": rounded(c.after),
                "p": c.p,
            }
            for c in server.changes
        ],
        "on_load": _dependence_json(server.on_load),
        "on_context": _dependence_json(server.on_context),
        "intervals": _intervals(server),
        "agreement": _agreement_json(server.agreement) if server.agreement else None,
        "read_from": server.source or None,
        "idle_intervals": server.idle,
        "file": server.path,
        "first_line": server.first_line,
        "role": printable(server.role) or None,
        "notes": [printable(note) for note in server.notes],
    }


def _advice_json(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "step_cost": advice.step_cost,
        "best": advice.best,
        "steps": [
            {
                "steps": row.steps,
                "accept_length": rounded(row.accept_length),
                "cost": rounded(row.cost),
                "speed": rounded(row.speed),
            }
            for row in advice.rows
        ],
    }


def _agreement_json(agreement: Agreement) -> dict[str, Any]:
    return {
        "agree": agreement.agree,
        "sources": [
            {
                "source": one.source,
                "covers": one.covers,
                "verify_steps": rounded(one.steps),
                "accept_length": rounded(one.accept_length),
                "left_open": None if one.low == one.high else [rounded(one.low), rounded(one.high)],
                "accept_rate": rounded(one.accept_rate),
            }
            for one in agreement.figures
        ],
        "checks": [
            {"sources": list(check.sources), "agree": check.agree, "says": check.says}
            for check in agreement.checks
        ],
        "notes": [printable(note) for note in agreement.notes],
    }


def _dependence_json(found: Dependence | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "correlation": rounded(found.correlation),
        "p": found.p,
        "accept_length_low": rounded(found.low),
        "accept_length_high": rounded(found.high),
    }


def _intervals(server: ServerReport) -> list[dict[str, Any]]:
    table = server.table
    while len(table["lines"]) > JSON_ROWS:
        table = merge_pairs(table)
    rows = []
    for i in range(len(table["lines"])):
        lines, rate_steps = float(table["lines"][i]), float(table["rate_steps"][i])
        running = float(table["running"][i]) / lines
        rows.append(
            {
                "time": _time(float(table["time"][i])),
                "lines": int(lines),
                "accept_length": rounded(float(table["tokens"][i]) / float(table["steps"][i])),
                "accept_rate_reported": rounded(float(table["rate_tokens"][i]) / rate_steps)
                if rate_steps
                else None,
                "running": rounded(running) if math.isfinite(running) else None,
            }
        )
    return rows


def rounded(value: float | None) -> float | None:
    """A figure as JSON shows it, to four decimals; None where it is not known or not finite."""
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _time(seconds: float) -> str | None:
    """ISO time as the log prints it; without the year where the log has none."""
    if not math.isfinite(seconds):
        return None
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return moment.strftime("%m-%dT%H:%M:%S" if moment.year == YEARLESS else "%Y-%m-%dT%H:%M:%S")


def as_text(report: AcceptanceReport) -> str:
    """The report for a terminal."""
    blocks = [_server_text(server, len(report.servers) > 1) for server in report.servers]
    if not blocks:
        blocks = ["no data: no line reports acceptance"]
    reading = report.reading
    foot = [f"note: {printable(note)}" for note in report.notes]
    foot += [
        f"unparsed {printable(e.path)}:{e.line}: {e.reason}: {printable(e.text, 120)}"
        for e in reading.examples
    ]
    return "\n\n".join(blocks) + ("\n\n" + "\n".join(map(_wrapped, foot)) if foot else "") + "\n"


WIDTH = 110
"""Columns of the text report."""

_INDENT = 17


def _wrapped(line: str) -> str:
    """A line of `label   value` folded under its value; sequences without a space stay whole."""
    if len(line) <= WIDTH:
        return line
    return textwrap.fill(
        line, WIDTH, subsequent_indent=" " * _INDENT, break_long_words=False, break_on_hyphens=False
    )


def _server_text(server: ServerReport, several: bool) -> str:
    out = [f"{printable(server.path)}, from line {server.first_line}"] if several else []
    out.append(
        f"{server.signature.name}: {server.signature.meaning} (confidence {server.signature.confidence:.0%})"
    )
    out.append(f"  because        {server.signature.reason}")
    out += [f"  {label:<14} {value}" for label, value in facts(server)]
    if server.agreement is not None:
        out += _agreement_text(server.agreement)
    out += [f"  note           {printable(note)}" for note in server.notes]
    return "\n".join(map(_wrapped, out))


def facts(server: ServerReport) -> list[tuple[str, str]]:
    """What is known of a server, as (label, value), in the order in which it is read."""
    length = server.accept_length
    name = f", {printable(server.algorithm)}" if server.algorithm else ""
    out = [("engine", f"{server.engine or 'unknown'}{name}")]
    if length is not None:
        interval = (
            f", 95 % interval {length.low:.2f} to {length.high:.2f}" if length.known else ", no interval"
        )
        out.append(("accept length", f"{length.mean:.2f} tokens a verify step, bonus included{interval}"))
    if server.accept_rate_reported is not None:
        formula = server.reading.formula
        meaning = f"{formula}: {formula_texts()[formula]}" if formula else "formula not decided"
        out.append(("printed rate", f"{server.accept_rate_reported:.2f} = {meaning}"))
    if length is not None:
        rate = (
            f"{server.accept_rate:.1%} of the drafts proposed are accepted"
            if server.accept_rate is not None
            else "unknown"
        )
        draft = f" ({server.draft_tokens} draft tokens)" if server.draft_tokens else ", draft tokens unknown"
        out.append(("accept rate", f"{rate}{draft}"))
    if server.per_position is not None:
        expected = server.expected.per_position if server.expected else ()
        for index, share in enumerate(server.per_position.unconditional):
            given = server.per_position.conditional[index]
            text = f"{share:.1%} of the steps"
            text += (
                f", {given:.1%} of those that accepted the ones before" if index and given is not None else ""
            )
            text += f", training promises {expected[index]:.1%}" if index < len(expected) else ""
            out.append((f"position {index + 1}", text))
    out += _advised(server.advice)
    if server.expected is not None:
        assumed = "; ".join(server.expected.assumptions)
        out.append(("expected", f"{server.expected.accept_length:.2f} from training, if {assumed}"))
    if server.impossible:
        out.append(("impossible", server.impossible))
    if len(server.ranks) > 1:
        out += [
            (printable(r.label) or "-", f"{r.accept_length:.2f} in {r.lines} lines")
            for r in server.ranks[:16]
        ]
    return out + _over_time(server)


def _advised(advice: Advice | None) -> list[tuple[str, str]]:
    """How many draft steps would serve best, beside what is drafted now."""
    if advice is None or len(advice.rows) < 2:
        return []
    now = advice.rows[-1]
    if advice.best == 0:
        text = f"none is worth it: {now.accept_length:.2f} tokens for {now.cost:.2f} of a verify step"
    else:
        best = advice.rows[advice.best - 1]
        text = (
            f"{best.steps} serve best: {best.accept_length:.2f} tokens for {best.cost:.2f} of a verify step"
        )
        if best.steps < now.steps:
            text += f", now {now.steps}: {now.accept_length:.2f} for {now.cost:.2f}"
    return [("draft steps", f"{text}, if a draft step costs {advice.step_cost:.0%} of one (--step-cost)")]


def _over_time(server: ServerReport) -> list[tuple[str, str]]:
    out = []
    for change in server.changes:
        when = _time(change.time)
        at = f" at {when}" if when else ""
        out.append(("change", f"{change.before:.2f} to {change.after:.2f}{at} (p {change.p:.1g})"))
    for few, many, found in (
        ("few", "many running requests", server.on_load),
        ("short", "long context", server.on_context),
    ):
        if (
            found is not None
            and found.p < limit("change_p")
            and abs(found.high - found.low) > limit("change_size")
        ):
            out.append(("depends", f"{found.low:.2f} at {few}, {found.high:.2f} at {many} (p {found.p:.1g})"))
    if server.previous is not None and math.isfinite(server.previous.low):
        d = server.previous
        verdict = "different from" if d.different else "not shown to differ from"
        out.append(
            ("before", f"{d.change:+.2f} ({d.low:+.2f} to {d.high:+.2f}): {verdict} the server before it")
        )
    return out


AGREES = {True: "the sources agree", False: "the sources do not agree", None: "nothing to compare"}
"""Whether the sources of a run agree, in words."""


def _agreement_text(agreement: Agreement) -> list[str]:
    out = []
    for one in agreement.figures:
        steps = f" over {one.steps:.0f} verify steps" if one.steps is not None else ""
        rate = f", {one.accept_rate:.1%} of the drafts" if one.accept_rate is not None else ""
        out.append(f"  {one.source:<14} {one.accept_length:.3f}{steps}{rate}: {one.covers}")
    out.append(f"  {'agreement':<14} {AGREES[agreement.agree]}")
    out += [f"  {'yes' if check.agree else 'NO':>14} {check.says}" for check in agreement.checks]
    return out + [f"  note           {printable(note)}" for note in agreement.notes]
