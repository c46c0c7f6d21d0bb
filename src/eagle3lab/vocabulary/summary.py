"""A token map's report as JSON and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lab.text import printable
from eagle3lab.vocabulary.coverage import CoverageReport
from eagle3lab.vocabulary.source import TokenMap

SCHEMA_VERSION = 1
ShowToken = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class MapRow:
    """One row of the map.

    Attributes:
        draft_id: The row of lm_head.
        d2t: The stored entry: an int, or a float where the tensor is one (NaN and infinities as text).
        target_id: The id an engine computes, or None where it cannot.
        token: The target token's text, escaped, or None without a tokenizer or for an id it does not have.
    """

    draft_id: int
    d2t: int | float | str
    target_id: int | None
    token: str | None


def map_rows(
    token_map: TokenMap, draft_ids: Sequence[int], show: ShowToken | None = None
) -> tuple[MapRow, ...]:
    """The rows `draft_ids` of the map; empty where d2t is missing or no vector."""
    values = token_map.d2t_values
    if values is None or values.ndim != 1:
        return ()
    ids = token_map.report.hot_token_id
    rows = []
    for draft_id in draft_ids:
        target_id = None if ids is None else int(ids[draft_id])
        token = None if show is None or target_id is None else show(target_id)
        rows.append(MapRow(draft_id, _plain(values[draft_id].item()), target_id, token))
    return tuple(rows)


def ends_of_map(token_map: TokenMap, rows: int) -> tuple[range, range]:
    """The first and the last `rows` draft ids, without overlap."""
    entries = token_map.report.entries or 0
    first = min(rows, entries)
    return range(first), range(max(first, entries - rows), entries)


def as_json(
    token_map: TokenMap,
    coverage: CoverageReport | None = None,
    show: ShowToken | None = None,
    rows: int = 8,
) -> dict[str, Any]:
    """The report as plain JSON values; the keys are those of the dataclasses."""
    report = token_map.report
    first, last = ends_of_map(token_map, rows)
    engine = report.engine_reading
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": report.kind.value,
        "sound": report.kind.sound,
        "fault": report.fault,
        "meaning": report.kind.meaning,
        "confidence": round(report.confidence, 4),
        "evidence": list(report.evidence),
        "open_questions": list(report.open_questions),
        "vocab_size": report.vocab_size,
        "draft_vocab_size": report.draft_vocab_size,
        "lm_head_rows": token_map.lm_head_rows,
        "d2t": None
        if token_map.d2t is None
        else {"tensor": token_map.d2t.name, "dtype": token_map.d2t.dtype, "shape": list(token_map.d2t.shape)},
        "engine_ids": None
        if engine is None or report.hot_token_id is None
        else {
            "below_zero": engine.below_zero,
            "beyond": engine.beyond,
            "repeats": engine.repeats,
            "sorted": engine.ascending,
            "lowest": int(engine.ids.min()),
            "highest": int(engine.ids.max()),
        },
        "readings": [
            {
                "name": reading.name,
                "multiple": reading.multiple,
                "outside": reading.outside,
                "repeats": reading.repeats,
                "possible": reading.possible,
                "matches_t2d": reading.matches_t2d,
            }
            for reading in report.readings
        ],
        "t2d": None
        if token_map.t2d is None
        else {"tensor": token_map.t2d.name, "dtype": token_map.t2d.dtype, **_t2d_counts(token_map)},
        "repair": None
        if report.repair is None
        else {
            "proven": report.repair.proven,
            "reason": report.repair.reason,
            "first_offsets": report.repair.offsets[:rows].tolist(),
        },
        "first_rows": [_row_json(row) for row in map_rows(token_map, first, show)],
        "last_rows": [_row_json(row) for row in map_rows(token_map, last, show)],
        "coverage": None if coverage is None else _coverage_json(coverage, show, rows),
    }


def as_text(
    token_map: TokenMap,
    coverage: CoverageReport | None = None,
    show: ShowToken | None = None,
    rows: int = 8,
) -> str:
    """The report for a terminal; plain text, no colours, ends with a newline."""
    report = token_map.report
    lines = [f"{report.kind.value} (confidence {report.confidence:.2f}): {report.kind.meaning}", ""]
    lines.append(f"target vocabulary  {report.vocab_size:>10,}")
    lines.append(f"draft vocabulary   {report.draft_vocab_size:>10,}")
    if token_map.d2t is not None:
        shape = list(token_map.d2t.shape)
        lines.append(f"d2t                {token_map.d2t.dtype:>10} {shape}  {printable(token_map.d2t.name)}")
    if token_map.t2d is not None:
        marked = _t2d_counts(token_map)["marked"]
        lines.append(
            f"t2d                {token_map.t2d.dtype:>10} {list(token_map.t2d.shape)}  {marked:,} marked"
        )
    lines += ["", "Evidence", *(f"  - {sentence}" for sentence in report.evidence)]
    if report.open_questions:
        lines += ["", "What the file cannot tell", *(f"  - {sentence}" for sentence in report.open_questions)]
    if report.repair is not None:
        certainty = "proven" if report.repair.proven else "not proven"
        lines += ["", f"Repair ({certainty})", f"  - {report.repair.reason}"]
    first, last = ends_of_map(token_map, rows)
    table = map_rows(token_map, first, show)
    if table:
        lines += ["", f"{'draft id':>10} {'d2t':>10} {'target id':>10}" + ("  token" if show else "")]
        lines += [_row_text(row) for row in table]
        if last and last.start > first.stop:
            lines.append(f"{'…':>10} {'…':>10} {'…':>10}")
        lines += [_row_text(row) for row in map_rows(token_map, last, show)]
    if coverage is not None:
        lines += ["", *_coverage_text(coverage, show, rows)]
    return "\n".join(lines) + "\n"


def _t2d_counts(token_map: TokenMap) -> dict[str, Any]:
    marks = token_map.t2d_values
    assert marks is not None
    counts: dict[str, Any] = {"length": int(marks.size), "marked": int((marks != 0).sum())}
    if (comparison := token_map.report.t2d) is not None:
        counts |= {
            "shared": comparison.shared,
            "only_in_map": comparison.only_in_map,
            "only_in_t2d": comparison.only_in_t2d,
            "same_set": comparison.same_set,
            "same_order": comparison.same_order,
        }
    return counts


def _plain(value: Any) -> int | float | str:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return int(value)


def _row_json(row: MapRow) -> dict[str, Any]:
    return {"draft_id": row.draft_id, "d2t": row.d2t, "target_id": row.target_id, "token": row.token}


def _row_text(row: MapRow) -> str:
    target = "–" if row.target_id is None else str(row.target_id)
    token = "" if row.token is None else f"  '{row.token}'"
    return f"{row.draft_id:>10} {row.d2t:>10} {target:>10}{token}"


def _uncovered(coverage: CoverageReport, show: ShowToken | None, rows: int) -> list[dict[str, Any]]:
    pairs = zip(
        coverage.uncovered_ids[:rows].tolist(), coverage.uncovered_counts[:rows].tolist(), strict=True
    )
    return [{"target_id": i, "count": count, "token": show(i) if show else None} for i, count in pairs]


def _coverage_json(coverage: CoverageReport, show: ShowToken | None, rows: int) -> dict[str, Any]:
    ceiling = coverage.accept_length_ceiling
    return {
        "tokens": coverage.tokens,
        "distinct": coverage.distinct,
        "covered": coverage.covered,
        "coverage": coverage.coverage,
        "best_coverage": coverage.best_coverage,
        "steps": coverage.steps,
        "verify_steps": coverage.verify_steps,
        "accept_length_ceiling": ceiling,
        "accept_length_if_independent": coverage.accept_length_if_independent,
        "uncovered_distinct": int(coverage.uncovered_ids.size),
        "uncovered": _uncovered(coverage, show, rows),
    }


def _coverage_text(coverage: CoverageReport, show: ShowToken | None, rows: int) -> list[str]:
    ceiling = coverage.accept_length_ceiling
    most = "– (the text is shorter than one verify step)" if ceiling is None else f"{ceiling:.2f}"
    lines = [
        "Coverage of the text",
        f"  {coverage.coverage:.2%} of {coverage.tokens:,} tokens are in the draft vocabulary",
        f"  {coverage.best_coverage:.2%} with the best {coverage.draft_vocab_size:,} tokens for this text",
        f"  accept length at most {most} with {coverage.steps} draft tokens: every covered one accepted",
        f"  (were tokens covered independently: {coverage.accept_length_if_independent:.2f})",
    ]
    missing = _uncovered(coverage, show, rows)
    if missing:
        lines.append(f"  most frequent of {coverage.uncovered_ids.size:,} uncovered tokens:")
        for entry in missing:
            token = "" if entry["token"] is None else f"  '{entry['token']}'"
            lines.append(f"{entry['target_id']:>12} {entry['count']:>8} ×{token}")
    return lines
