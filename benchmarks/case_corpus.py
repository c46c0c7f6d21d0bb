"""The confusion of faults over the case corpus, and the record of it that the book shows.

    python benchmarks/case_corpus.py [--write]

Every case of tests/cases is written out, diagnosed as a user would, and graded as its README says. Rows are expected
faults, columns what the report names first; rows and columns that lie on the diagonal are summed up. With --write,
book/faults/examples.json is written anew. Aim: every case passes all four marks; the status says whether.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eagle3lab.book.case_record import HEALTHY, CaseOutcome, Example, Marks, confusion, marks_held, to_json
from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.diagnosis import Diagnosis, Severity
from eagle3lab.diagnosis.reports import place
from eagle3lab.errors import InputError
from eagle3lab.repair import plan_repair

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "book" / "faults" / "examples.json"


def outcomes() -> tuple[CaseOutcome, ...]:
    """Every case, diagnosed now."""
    corpus: Any = import_module("tests.diagnosis.corpus")
    found = []
    for identity in corpus.case_ids():
        with tempfile.TemporaryDirectory() as folder:
            case = corpus.load(identity)
            diagnosis = corpus.run(case, Path(folder))
            found.append(_outcome(identity, case, diagnosis, corpus.grade(case, diagnosis), Path(folder)))
    return tuple(found)


def _outcome(identity: str, case: Any, diagnosis: Diagnosis, grade: Any, folder: Path) -> CaseOutcome:
    expect = case["expect"]
    slugs = [one.fault for one in diagnosis.findings]
    if expect["fault"] == HEALTHY:  # a note on a healthy case is no fault
        slugs = [one.fault for one in diagnosis.findings if one.severity is not Severity.NOTE]
    wanted = (expect["fault"], *expect.get("also_expected", []))
    repairs = _repairs(case, folder)
    return CaseOutcome(
        case=identity,
        title=case["title"],
        engine=case["engine"] or "",
        given=tuple(_given(case)),
        launch=case["launch"] or "",
        expected=expect["fault"],
        first=slugs[0] if slugs else HEALTHY,
        marks=Marks(grade.first, grade.found, grade.verdict, grade.no_alarm),
        examples=tuple(
            Example(
                fault=one.fault,
                code=one.code,
                title=one.title.rstrip("."),
                evidence=tuple((item.text, place(item).replace(f"{folder}/", "")) for item in one.evidence),
                effect=one.effect,
                fix=one.fix,
                repair=repairs.get(one.fault, ""),
            )
            for one in diagnosis.findings
            if one.fault in wanted and expect["fault"] != HEALTHY
        ),
    )


def _given(case: Any) -> list[str]:
    lines = len(case["log"] or ())
    words = {
        "the drafter": case["drafter"],
        "the target's config.json": case["target"],
        "the launch command": case["launch"],
        f"{lines} line{'s' * (lines != 1)} of the log": lines,
    }
    return [word for word, there in words.items() if there]


def _repairs(case: Any, folder: Path) -> dict[str, str]:
    """Fault to what a repair would do about it or why it will not; nothing for files that cannot be read."""
    if not case["drafter"] or not (case["engine"] or "").startswith("sglang"):
        return {}
    try:
        target = open_checkpoint(folder / "target") if case["target"] else None
        plan = plan_repair(open_checkpoint(folder / "drafter"), case["engine"], target)
    except InputError:
        return {}
    if plan.refusals:  # then nothing is written, whatever else could be changed
        return {
            one.fault: " ".join((f"Refused: {one.reason.rstrip('.')}.", *one.alternatives))
            for one in plan.refusals
            if one.fault
        }
    return {one.fault: f"{one.title.rstrip('.')}: {one.proof.rstrip('.')}." for one in plan.changes}


def matrix(found: Sequence[CaseOutcome]) -> Table:
    """The confusion matrix; rows that lie on the diagonal are one row."""
    counts = confusion(found)
    off = [pair for pair in counts if pair[0] != pair[1]]
    rows = sorted({expected for expected, _ in off})
    columns = sorted({first for expected in rows for first in {f for e, f in counts if e == expected}})
    exact = sum(count for (expected, first), count in counts.items() if expected == first)
    table = Table(
        "Expected", *columns, "cases", title="First finding by expected fault", title_justify="left"
    )
    for row in rows:
        cells = [str(counts[row, column] or "·") for column in columns]
        table.add_row(row, *cells, str(sum(counts[row, column] for column in columns)))
    others = {expected for expected, _ in counts} - set(rows)
    on = sum(counts[slug, slug] for slug in others)
    table.add_row(f"{len(others)} others, all exact", *("" for _ in columns), str(on), end_section=True)
    table.add_row(f"all: {exact} exact", *("" for _ in columns), str(len(found)))
    return table


def by_family(found: Sequence[CaseOutcome]) -> Table:
    """Marks by family of the expected fault and by source: cases known from the start, and of public reports (s-*)."""
    table = Table(
        "Family", "source", "cases", "first", "found", "verdict", "no alarm", title="By family and source"
    )
    groups = sorted({(one.expected.partition(".")[0], one.case.startswith("s-")) for one in found})
    for family, reported in [*groups, ("all", False), ("all", True)]:
        group = [
            one
            for one in found
            if one.case.startswith("s-") is reported and family in ("all", one.expected.partition(".")[0])
        ]
        source = "reports" if reported else "known"
        table.add_row(family, source, str(len(group)), *map(str, marks_held(group).values()))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.relative_to(ROOT)} anew")
    options = parser.parse_args()
    start = time.perf_counter()
    found = outcomes()
    seconds = time.perf_counter() - start
    console = Console(highlight=False)
    console.print(matrix(found))
    console.print(by_family(found))
    held = marks_held(found)
    words = ", ".join(f"{count} {mark.replace('_', ' ')}" for mark, count in held.items())
    console.print(f"{len(found)} cases: {words} ({seconds:.1f} s)")
    for one in found:
        missed = [name.replace("_", " ") for name in held if not getattr(one.marks, name)]
        if missed:
            console.print(f"{one.case}: missed {', '.join(missed)}", markup=False)
    if options.write:
        RECORD.write_text(to_json(found), "utf-8")
    return int(any(count < len(found) for count in held.values()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # the corpus and its grading belong to the tests
    sys.exit(main())
