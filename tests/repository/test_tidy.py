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


def test_no_module_is_longer_than_1000_lines() -> None:
    assert [f for f in tracked("*.py") if len((ROOT / f).read_text().splitlines()) > 1000] == []


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


def test_the_readme_names_every_command_and_every_package() -> None:
    from eagle3lab.cli import app

    readme = (ROOT / "README.md").read_text()
    for command in app.registered_commands:
        assert f"eagle3lab {command.name} " in readme, command.name
    for package in (ROOT / "src/eagle3lab").iterdir():
        if (package / "__init__.py").is_file():
            assert f"  {package.name}/ " in readme, package.name


def test_every_benchmark_that_the_readme_names_exists() -> None:
    named = re.findall(r"benchmarks/\w+\.py", (ROOT / "README.md").read_text())
    assert named and all((ROOT / name).is_file() for name in named)
