"""The chapters' sources: no outputs in git, parameters that document themselves, clean code."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_PARAMETER = re.compile(r"^[a-z_][a-z0-9_]*: [^=]+ = .+  # \S.*$")


def _cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return cells


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def parameter_faults(source: str) -> list[str]:
    """The lines of a parameters cell that are not `name: type = literal  # help`."""
    faults = []
    for line in source.splitlines():
        try:
            (statement,) = ast.parse(line).body
            ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            good = isinstance(statement, ast.AnnAssign) and _PARAMETER.match(line)
        except (SyntaxError, ValueError, AttributeError):
            good = None
        if line.strip() and not good:
            faults.append(line)
    return faults


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("steps: int = 4  # draft steps", True),
        ("drafter: str | None = None  # folder of the drafter", True),
        ("steps = 4  # draft steps", False),
        ("steps: int = 4", False),
        ("steps: int = 4  #", False),
        ("steps: int = compute()  # draft steps", False),
        ("import os  # no", False),
    ],
)
def test_the_style_of_parameters(line: str, good: bool) -> None:
    assert parameter_faults(line) == ([] if good else [line])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
class TestChapter:
    def test_holds_no_outputs(self, notebook: Path) -> None:
        data = json.loads(notebook.read_text("utf-8"))
        assert "papermill" not in data["metadata"]
        assert "version" not in data["metadata"].get("language_info", {})
        for cell in data["cells"]:
            assert "papermill" not in cell["metadata"]
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []
                assert cell["execution_count"] is None

    def test_has_one_parameters_cell_that_documents_itself(self, notebook: Path) -> None:
        tagged = [cell for cell in _cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
        assert len(tagged) == 1
        assert parameter_faults(_source(tagged[0])) == []

    def test_begins_with_its_title_and_claims_something(self, notebook: Path) -> None:
        cells = _cells(notebook)
        assert _source(cells[0]).startswith("# ")
        assert any("claim(" in _source(cell) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.skipif(not NOTEBOOKS, reason="there are no chapters yet")
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_the_chapters_code_is_clean(command: list[str]) -> None:
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *map(str, NOTEBOOKS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ruff.returncode == 0, ruff.stdout + ruff.stderr
