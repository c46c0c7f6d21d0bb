"""The repository as someone opens it: no module that knows everything, no path of one machine."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.project import ROOT


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.split()


def test_no_module_is_longer_than_500_lines() -> None:
    assert [f for f in tracked("*.py") if len((ROOT / f).read_text().splitlines()) > 500] == []


def test_no_tracked_text_holds_a_path_of_one_machine() -> None:
    machine = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/[\w.]")
    found = [
        f"{name}:{number}"
        for name in tracked(
            "*.py", "*.md", "*.toml", "*.yml", "*.json", "*.jsonl", "*.ipynb", "Makefile", ".ci/*"
        )
        if not name.startswith("tests/")
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if machine.search(line)
    ]
    assert found == []
