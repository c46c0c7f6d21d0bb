"""Every check is a page of the book, and every slug has a check."""

from __future__ import annotations

import re

import pytest
import yaml

from eagle3lab.diagnosis import diagnose
from eagle3lab.diagnosis.checks import FAMILIES, Check, all_checks
from eagle3lab.diagnosis.checks.kind import dialect
from eagle3lab.diagnosis.framework import PARTS, findings, provided
from eagle3lab.diagnosis.model import Impact
from eagle3lab.engines.release import parse_release
from tests.support.project import ROOT

CHECKS = all_checks()
FAULTS = set(yaml.safe_load((ROOT / "book" / "faults" / "faults.yaml").read_text("utf-8"))["faults"])


def slugs(check: Check) -> set[str]:
    return {check.fault, *check.others}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_check_is_documented(check: Check) -> None:
    page = check.page
    assert page.title and len(page.title) < 120
    assert tuple(page.parts) == PARTS
    assert all(len(text) >= 5 for text in page.parts.values())
    assert re.fullmatch(r"E3L-[A-Z]\d\d", check.code)
    assert check.effect.endswith(".")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_check_speaks_of_known_things(check: Check) -> None:
    assert slugs(check) <= FAULTS
    assert set(check.after) <= FAULTS
    assert {name for name, _ in check.needs.values()} <= provided() | {"Given", "Earlier", "Cleared"}
    assert check.run.__module__.rpartition(".")[2] in FAMILIES


def test_every_slug_has_a_check() -> None:
    covered = set().union(*(slugs(check) for check in CHECKS))
    assert covered >= FAULTS - {"healthy"}


def test_codes_are_stable() -> None:
    """Codes are a public contract: a check may be added at the end of its family, none may go or change its name."""
    numbers = {
        "F": 4,
        "K": 5,
        "N": 8,
        "V": 8,
        "H": 7,
        "C": 12,
        "L": 12,
        "G": 7,
        "R": 6,
        "M": 2,
        "T": 9,
        "E": 3,
    }
    published = {f"E3L-{letter}{n:02}" for letter, last in numbers.items() for n in range(1, last + 1)}
    found = {check.code for check in CHECKS}
    assert published <= found
    for letter in {code[4] for code in found}:
        taken = sorted(int(code[5:]) for code in found if code[4] == letter)
        assert taken == list(range(1, len(taken) + 1)), letter


def test_a_check_is_called_with_what_it_takes() -> None:
    """One line tests a check; what is optional may be left out, and what a finding leaves out is the check's."""
    raw = {"transformer_layer_config": {}, "architectures": ["Eagle3Speculator"]}
    found = findings(dialect, raw=raw, tensors=None, sglang=parse_release("sglang==0.5.9"))
    assert [(one.code, one.fault, one.impact) for one in found] == [
        ("E3L-K03", "head-kind.config-dialect", Impact.STOPS)
    ]


def test_the_reason_of_an_input_is_that_of_its_checks() -> None:
    skipped = {one.code: one.reason for one in diagnose(engine="vllm==0.20.2").skipped}
    assert skipped["E3L-G03"] == "no launch command given"
    assert skipped["E3L-C06"] == "no drafter given" and skipped["E3L-M01"] == "no log given"
