"""The case corpus, materialised once, and its grading."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.diagnosis import Diagnosis, Severity, diagnose
from eagle3lab.diagnosis.framework import Inputs
from eagle3lab.diagnosis.inputs import Given
from eagle3lab.diagnosis.run import BROKE
from tests.support.make_case import materialise
from tests.support.project import ROOT

CASES = ROOT / "tests" / "cases"
Case = dict[str, Any]


@cache
def _text(identity: str) -> str:
    return (CASES / f"{identity}.json").read_text("utf-8")


def case_ids() -> list[str]:
    return sorted(path.stem for path in CASES.glob("*.json"))


def inputs(**given: Any) -> Inputs:
    """The inputs of a diagnosis of what is given."""
    return Inputs({"Given": Given(**given), "Earlier": []})


def load(identity: str) -> Case:
    case: Case = json.loads(_text(identity))
    return case


def run(case: Case, folder: Path) -> Diagnosis:
    """Materialise a case in `folder` and diagnose it as a user would: no identity, no title."""
    materialise({**case, "id": "case"} | {"drafter": _seeded(case)}, folder)
    diagnosis = diagnose(
        folder / "drafter" if case["drafter"] else None,
        target=folder / "target" if case["target"] else None,
        engine=case["engine"],
        launch=case["launch"],
        log=folder / "server.log" if case["log"] else None,
    )
    assert not [one for one in diagnosis.skipped if BROKE in one.reason], diagnosis.skipped
    return diagnosis


def _seeded(case: Case) -> Any:
    return case["drafter"] and {"seed": 7, **case["drafter"]}


@dataclass(frozen=True, slots=True)
class Grade:
    """The four marks of the corpus's README."""

    first: bool
    found: bool
    verdict: bool
    no_alarm: bool

    @property
    def passed(self) -> bool:
        return self.first and self.found and self.verdict and self.no_alarm


def grade(case: Case, diagnosis: Diagnosis) -> Grade:
    expect = case["expect"]
    right = [expect["fault"], *expect.get("also_allowed", [])]
    slugs = [finding.fault for finding in diagnosis.findings]
    loud = [finding.fault for finding in diagnosis.findings if finding.severity is not Severity.NOTE]
    silent_is_right = "healthy" in right and not loud
    healthy = expect["fault"] == "healthy"
    # Of files and a command alone the best that can be said is that no fault was found.
    said = "healthy" if not case["log"] and diagnosis.verdict == "no-fault-found" else diagnosis.verdict
    wanted = [expect["fault"], *expect.get("also_expected", [])]
    return Grade(
        first=silent_is_right or (bool(slugs) and (loud if healthy else slugs)[0] in right),
        found=silent_is_right or healthy or all(slug in slugs for slug in wanted),
        verdict=said in (expect["verdict"], *(expect.get("verdict_also") or [])),
        no_alarm=not set(slugs) & set(expect["must_not"]) and (not healthy or set(loud) <= set(right)),
    )
