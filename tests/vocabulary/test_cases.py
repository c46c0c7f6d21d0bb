"""The cases of tests/cases: the verdict that each one's fault asks for, and no false alarm anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.source import read_token_map
from tests.support.make_case import materialise

CASES = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "cases").glob("*.json"))
}
UNREADABLE = {"files-shard-absent", "files-truncated", "files-unsafe-pickle", "s-glm53-own-mtp-crash"}
# Only a partial file is read there: the map is in the .bin that the engine passes over as well.
STALE = {"files-stale-partial"}
KIND = {
    "vocab-absolute": MapKind.ABSOLUTE,
    "vocab-bf16": MapKind.WRONG_DTYPE,
    "vocab-double-offset": MapKind.DOUBLE_OFFSET,
    "vocab-map-not-saved": MapKind.MISSING,
    "vocab-out-of-range": MapKind.OUT_OF_RANGE,
    "vocab-t2d-other-run": MapKind.DISAGREES_WITH_T2D,
    "vocab-zero-first-n": MapKind.ZERO_BY_MISTAKE,
    "seed-kimi-renamed-double-offset": MapKind.DOUBLE_OFFSET,
    "ok-modelopt-unsorted": MapKind.OFFSETS,
    "ok-full-vocab-zero-d2t": MapKind.ZERO_BY_RIGHT,
    "ok-tied-full-vocab": MapKind.NOT_NEEDED,
    "ok-kimi-mla-verbatim": MapKind.NOT_NEEDED,
    "head-rows-by-offset": MapKind.OFFSETS,
    "head-rows-full": MapKind.OFFSETS,
    "head-rows-resorted": MapKind.OFFSETS,
}


def with_drafter(case: dict[str, Any]) -> bool:
    return bool(case.get("drafter")) and case["drafter"].get("files") != "none"


@pytest.mark.parametrize(
    "name", [n for n, case in CASES.items() if with_drafter(case) and n not in UNREADABLE]
)
def test_case(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = materialise(case, tmp_path) / "drafter"
    report = read_token_map(open_checkpoint(folder)).report
    expected = case["expect"]
    if name in KIND:
        assert report.kind is KIND[name]
    if expected["fault"].startswith("vocab."):
        assert report.fault == expected["fault"]
    elif name not in KIND and name not in STALE:
        assert report.fault is None
        assert report.confidence >= 0.99
    assert report.fault not in expected["must_not"]


def test_every_vocabulary_case_is_named() -> None:
    assert {name for name in CASES if name.startswith("vocab-")} <= set(KIND)


@pytest.mark.parametrize("t2d", ["match", "missing"])
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("offset", MapKind.OFFSETS),
        ("unsorted", MapKind.OFFSETS),
        ("absolute", MapKind.ABSOLUTE),
        ("absolute-unsorted", MapKind.ABSOLUTE),
        ("double", MapKind.DOUBLE_OFFSET),
        ("zeros", MapKind.ZERO_BY_MISTAKE),
        ("range", MapKind.OUT_OF_RANGE),
        ("repeat", MapKind.REPEATING),
        ("missing", MapKind.MISSING),
    ],
)
def test_every_mode_of_the_generator(mode: str, kind: MapKind, t2d: str, tmp_path: Path) -> None:
    case = json.loads(json.dumps(CASES["vocab-absolute"]))
    case["drafter"]["template"] |= {"d2t": mode, "t2d": t2d}
    report = read_token_map(open_checkpoint(materialise(case, tmp_path) / "drafter")).report
    assert report.kind is kind


@pytest.mark.parametrize(("t2d", "kind"), [("first-n", MapKind.ABSOLUTE), ("missing", MapKind.UNDECIDED)])
def test_an_identity_stored_as_ids(t2d: str, kind: MapKind, tmp_path: Path) -> None:
    case = json.loads(json.dumps(CASES["vocab-absolute"]))
    case["drafter"]["template"] |= {"d2t": "arange", "t2d": t2d}
    assert read_token_map(open_checkpoint(materialise(case, tmp_path) / "drafter")).report.kind is kind
