"""Drafters on disk for the repair tests, and what they look like from outside."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.repair import RepairPlan, plan_repair
from tests.support.make_case import materialise
from tests.support.project import ROOT

CASES = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "tests/cases").glob("*.json"))}
OLD, NEW = "sglang==0.5.9", "sglang==0.5.23"


def engine_for(case: dict[str, Any]) -> str:
    """The case's own release; 0.5.9 where it has none, or one of vLLM."""
    engine = case["engine"] or OLD
    return str(engine) if engine.startswith("sglang") else OLD


def drafter(case_id: str, folder: Path) -> Path:
    """The case's drafter, written out below `folder`."""
    return materialise(CASES[case_id], folder) / "drafter"


def plan(path: Path, engine: str, target: Path | None = None) -> RepairPlan:
    return plan_repair(open_checkpoint(path), engine, None if target is None else open_checkpoint(target))


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def faults(planned: RepairPlan) -> list[str]:
    return [change.fault for change in planned.changes]


def refused(planned: RepairPlan) -> set[str | None]:
    return {refusal.fault for refusal in planned.refusals}


def specforge(**changes: Any) -> dict[str, Any]:
    """A healthy case as SpecForge writes it: template, config and edits can be changed by dotted keys."""
    case = json.loads(json.dumps(CASES["ok-specforge-llama-0.5.9"]))
    case["id"] = "made"
    for path, value in changes.items():
        place = case["drafter"]
        *parents, key = path.split("__")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = value
    return case
