"""`eagle3lab vocab`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.make_case import materialise
from tests.vocabulary.drafters import HOSTILE, IDS, drafter, plain_drafter, target

GOLDEN = Path(__file__).parent / "golden"


def vocab(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eagle3lab", "vocab", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=120)


def as_json(*args: str | Path) -> dict[str, Any]:
    done = vocab(*args, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_text_report_of_a_broken_map(tmp_path: Path) -> None:
    case = json.loads((Path(__file__).parents[1] / "cases" / "vocab-double-offset.json").read_text())
    folder = materialise(case, tmp_path)
    done = vocab(folder / "drafter", "--target", folder / "target", "--rows", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / "double-offset.txt").read_text(encoding="utf-8")


def test_the_text_report_with_coverage(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("w7 w20 w9 w7 w9 w9 w8 w20 " * 20)
    done = vocab(plain_drafter(tmp_path / "d"), "--target", target(tmp_path / "t"), "--text", text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / "coverage.txt").read_text(encoding="utf-8")


def test_json(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("w7 w20 w9 w7 " * 50)
    report = as_json(
        plain_drafter(tmp_path / "d"),
        "--target",
        target(tmp_path / "t"),
        "--text",
        text,
        "--rows",
        "2",
        "--steps",
        "3",
    )
    assert report["schema_version"] == 1
    assert (report["kind"], report["sound"], report["fault"]) == ("offsets", True, None)
    assert (report["vocab_size"], report["draft_vocab_size"], report["lm_head_rows"]) == (40, 6, 6)
    assert report["first_rows"] == [
        {"draft_id": 0, "d2t": 0, "target_id": 0, "token": "\\x1b[31mred"},
        {"draft_id": 1, "d2t": 0, "target_id": 1, "token": "two\\nlines"},
    ]
    assert report["last_rows"] == [
        {"draft_id": 4, "d2t": 16, "target_id": 20, "token": "w20"},
        {"draft_id": 5, "d2t": 34, "target_id": 39, "token": "w39"},
    ]
    assert report["t2d"]["same_set"] is True
    assert [reading["multiple"] for reading in report["readings"]] == [0, 1, 2]
    coverage = report["coverage"]
    assert (coverage["tokens"], coverage["covered"], coverage["coverage"]) == (200, 150, 0.75)
    # w9, every fourth token, is uncovered: it is the bonus token of each step, of the first after one draft.
    assert coverage["uncovered"] == [{"target_id": 9, "count": 50, "token": "w9"}]
    assert (coverage["verify_steps"], coverage["accept_length_ceiling"]) == (50, 3.96)


def test_a_map_without_rows_to_show(tmp_path: Path) -> None:
    report = as_json(drafter(tmp_path, {}))
    assert (report["kind"], report["d2t"], report["engine_ids"]) == ("missing", None, None)
    assert report["first_rows"] == report["last_rows"] == []


def test_no_float_that_json_does_not_know(tmp_path: Path) -> None:
    values = np.array([0.0, np.nan, np.inf, 1.5, 2, 3])
    done = vocab(drafter(tmp_path, {"d2t": (values, "F32")}), "--format", "json")
    rows = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))["first_rows"]
    assert [row["d2t"] for row in rows] == [0.0, "nan", "inf", 1.5, 2.0, 3.0]
    assert all(row["target_id"] is None for row in rows)


def test_nothing_hostile_reaches_the_terminal(tmp_path: Path) -> None:
    folder = drafter(tmp_path / "d", {"\x1b]0;title\x07.d2t": (IDS - np.arange(6), "I64")})
    done = vocab(folder, "--target", target(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout) & {"\x1b", "\x07", "\x00", "\u202e"}
    assert "\\x1b]0;title\\x07.d2t" in done.stdout
    in_json = vocab(folder, "--target", tmp_path / "t", "--format", "json").stdout
    assert in_json.isascii() and in_json.replace("\n", "").isprintable()
    assert json.loads(in_json)["d2t"]["tensor"] == "\x1b]0;title\x07.d2t"
    assert all(repr(word)[1:-1] in done.stdout for word in HOSTILE[:2])


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["absent"], "does not exist"),
        (["d", "--target", "absent"], "not a folder"),
        (["d", "--text", "d/config.json"], "has no tokenizer.json"),
        (["bf16", "--target", "t", "--text", "d/config.json"], "serves no tokens"),
        (["d", "--target", "t", "--text", "t/absent"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line(args: list[str], problem: str, tmp_path: Path) -> None:
    plain_drafter(tmp_path / "d")
    drafter(tmp_path / "bf16", {"d2t": (IDS, "BF16")})
    target(tmp_path / "t")
    paths = [arg if arg.startswith("--") else str(tmp_path / arg) for arg in args]
    done = vocab(*paths)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr
