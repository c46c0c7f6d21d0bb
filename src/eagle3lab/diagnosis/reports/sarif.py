"""A diagnosis as SARIF 2.1.0, so that a code-scanning service can annotate a change."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from eagle3lab.diagnosis.checks import all_checks
from eagle3lab.diagnosis.model import Diagnosis, Evidence, Finding, Severity
from eagle3lab.text import printable

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def sarif(diagnosis: Diagnosis) -> dict[str, Any]:
    """One run with a rule for each code that found something and a result for each finding."""
    from eagle3lab import __version__

    codes = list(dict.fromkeys(finding.code for finding in diagnosis.findings))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "eagle3lab",
                        "semanticVersion": __version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "exitCode": diagnosis.exit_status}],
                "results": [_result(one, codes.index(one.code), diagnosis) for one in diagnosis.findings],
                "properties": {"verdict": str(diagnosis.verdict)},
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    check = next(one for one in all_checks() if one.code == code)
    page = check.page
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in check.fault.replace(".", "-").split("-")),
        "shortDescription": {"text": f"{page.title}."},
        "fullDescription": {"text": " ".join(page.parts.values()) or page.title},
        "help": {"text": page.parts.get("Repair", page.title)},
        "defaultConfiguration": {"level": _LEVEL[check.severity]},
        "properties": {"fault": check.fault},
    }


def _result(finding: Finding, rule: int, diagnosis: Diagnosis) -> dict[str, Any]:
    seen = " ".join(f"{item.text}." for item in finding.evidence)
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVEL[finding.severity],
        "rank": round(100 * finding.confidence, 1),
        "message": {"text": f"{finding.title}. {seen} Repair: {finding.fix}"},
        "locations": [_location(item, diagnosis) for item in finding.evidence if item.file or item.tensor][
            :8
        ],
        "properties": {"fault": finding.fault, "confidence": finding.confidence, "effect": finding.effect},
    }


def _location(item: Evidence, diagnosis: Diagnosis) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if item.file:
        folder = diagnosis.inputs.get("drafter")
        bare = folder is not None and "/" not in item.file
        path = f"{folder}/{item.file}" if bare else item.file
        physical: dict[str, Any] = {
            "artifactLocation": {"uri": quote(printable(path, 4096).lstrip("/"), safe="/")}
        }
        if item.line is not None:
            physical["region"] = {"startLine": max(1, item.line)}
        location["physicalLocation"] = physical
    if item.tensor:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(item.tensor), "kind": "member"}]
    return location
