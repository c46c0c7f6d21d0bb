"""The case study says "Told" of what the account states, and of nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from eagle3lab.book.case import TOLD, inferred, told
from eagle3lab.errors import InputError
from tests.support.project import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ACCOUNT: dict[str, Any] = yaml.safe_load((ROOT / TOLD).read_text())


def calls(notebook: Path, function: str) -> list[ast.Call]:
    cells = nbformat.read(notebook, as_version=4).cells
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    return [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_told_is_printed_from_the_account_only(notebook: Path) -> None:
    for cell in nbformat.read(notebook, as_version=4).cells:
        assert cell.cell_type == "code" or "Told." not in cell.source
    for call in calls(notebook, "told"):
        assert {ast.literal_eval(argument) for argument in call.args} <= set(ACCOUNT)


def test_the_case_study_prints_the_whole_account() -> None:
    printed = calls(ROOT / "notebooks" / "11-the-case-study.ipynb", "told")
    assert {ast.literal_eval(argument) for call in printed for argument in call.args} == set(ACCOUNT)


def test_the_second_log_of_chapter_1_is_the_account_s() -> None:
    log = (ROOT / "notebooks" / "logs" / "2-renamed.log").read_text()
    assert log.splitlines() == ACCOUNT["renamed"]["lines"]


def test_what_was_not_told_cannot_be_printed_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")
    with pytest.raises(InputError, match="'release' was not told"):
        told("release")


def test_a_statement_is_labelled_and_escaped() -> None:
    shown = inferred("a < b in `x`", because="b > a")._repr_html_()
    assert "<strong>Inferred.</strong> a &lt; b in <code>x</code>" in shown
    assert "<em>Because</em> b &gt; a" in shown
