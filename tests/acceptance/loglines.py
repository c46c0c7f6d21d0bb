"""Log lines for the tests: the samples, and lines made in every release's own format."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.acceptance.formulas import NONE, printed_rate
from eagle3lab.engines.release import Release

CASES = Path(__file__).parents[1] / "cases"
LOGS = CASES / "logs"


@dataclass(frozen=True, slots=True)
class LineRange:
    """How SGLang releases from `first` up to, not including, `until` print decode lines ("" leaves an end open)."""

    first: str
    until: str
    formula: str
    prefix: tuple[str, ...]
    tail: bool
    graph: tuple[str, ...]
    extra: tuple[str, ...]
    source: str

    def holds(self, number: str) -> bool:
        return Release("sglang", number).within(self.first, self.until)


@cache
def line_ranges() -> tuple[LineRange, ...]:
    """SGLang's decode lines by release, oldest first."""
    rows = tomllib.loads(Path(__file__).with_name("lines.toml").read_text("utf-8"))["sglang"]
    ends = [row["first"] for row in rows[1:]] + [""]
    return tuple(
        LineRange(
            row.get("first", ""),
            until,
            row["formula"],
            tuple(row["prefix"]),
            row["tail"],
            tuple(row["graph"]),
            tuple(row["extra"]),
            row["source"],
        )
        for row, until in zip(rows, ends, strict=True)
    )


def samples() -> list[dict[str, Any]]:
    """Every sample: id, line or lines, expect."""
    return [
        json.loads(line)
        for name in ("lines.jsonl", "excerpts.jsonl")
        for line in (LOGS / name).read_text("utf-8").splitlines()
    ]


def sample_lines(sample: dict[str, Any]) -> list[str]:
    return sample.get("lines") or [sample["line"]]


def decode_line(
    row: LineRange,
    length: float,
    draft_tokens: int = 4,
    *,
    time: str = "2026-03-01 10:00:00",
    ranks: str = " TP0",
    prefix: str | None = None,
    graph: str | None = None,
    running: int = 3,
    tokens: int = 900,
    extra: bool = False,
    iteration: int = 4120,
) -> str:
    """A decode line as the releases of `row` print it."""
    prefix = prefix or row.prefix[0]
    head = {".": "Decode batch. ", ",": "Decode batch, ", "[N],": f"Decode batch [{iteration}], "}[prefix]
    parts = [
        f"#running-req: {running}",
        f"#token: {tokens}",
        "token usage: 0.01",
        f"accept len: {length:.2f}",
    ]
    if row.formula != NONE:
        parts.append(f"accept rate: {printed_rate(row.formula, length, draft_tokens):.2f}")
    if extra:
        parts += [f"{name}: {'0.12' if name.endswith(('usage', 'len')) else '2'}" for name in row.extra]
    label = row.graph[-1] if graph is None else graph
    parts += [f"{label}: True"] if label else []
    parts += ["gen throughput (token/s): 80.11", "#queue-req: 0"]
    return f"[{time}{ranks}] {head}{', '.join(parts)}{', ' if row.tail else ''}"


def all_shapes() -> Iterator[tuple[str, LineRange, dict[str, Any]]]:
    """(id, release range, keyword arguments of `decode_line`) for every prefix, graph label and extra set."""
    for row in line_ranges():
        for prefix in row.prefix:
            for graph in row.graph:
                for extra in (False, True):
                    yield (
                        f"{row.first or row.until}-{prefix}-{graph}-{extra}",
                        row,
                        {"prefix": prefix, "graph": graph, "extra": extra},
                    )


def newest() -> LineRange:
    return line_ranges()[-1]


def row_of(release: str) -> LineRange:
    return next(row for row in line_ranges() if row.holds(release))
