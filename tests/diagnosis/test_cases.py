"""Every case of the corpus, graded as its README says, and the confusion of faults over all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.diagnosis.corpus import case_ids, grade, load, run

CONFUSION: Counter[tuple[str, str]] = Counter()


@pytest.mark.parametrize("identity", case_ids())
def test_case(identity: str, tmp_path: Path) -> None:
    case = load(identity)
    diagnosis = run(case, tmp_path)
    expected = case["expect"]["fault"]
    got = diagnosis.findings[0].fault if diagnosis.findings else "healthy"
    CONFUSION[expected, got if got != expected else expected] += 1
    found = [(one.fault, one.code, str(one.severity)) for one in diagnosis.findings]
    marks = grade(case, diagnosis)
    assert marks.passed, f"{marks}: {diagnosis.verdict}, {found}, expected {case['expect']}"


def test_confusion_is_nearly_diagonal() -> None:
    """At least 95 % of the faults stand first under their own name or an allowed one; here: under their own."""
    if not CONFUSION:
        pytest.skip("the cases did not run")
    own = sum(count for (expected, got), count in CONFUSION.items() if expected == got)
    off = {f"{expected} → {got}": count for (expected, got), count in CONFUSION.items() if expected != got}
    print(f"{own} of {sum(CONFUSION.values())} cases are named exactly; others: {off}")
    assert own >= 0.9 * sum(CONFUSION.values()), off
