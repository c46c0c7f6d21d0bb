"""CONTRIBUTING.md: its example of a check is run as it stands, and nothing else has to be touched for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.diagnosis import diagnose
from eagle3lab.diagnosis.checks import all_checks, layer
from eagle3lab.diagnosis.framework import CHECKS, findings
from lab.specimen.paths import permutation_dir
from lab.specimen.variant import write_variant
from tests.support.project import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def recipe() -> Iterator[dict[str, Any]]:
    """The check of the recipe in the module where it says that it stands, and its test."""
    check, test = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names = {**vars(layer), "SimpleNamespace": SimpleNamespace, "findings": findings}
    exec(check + "\n\n" + test, names)
    all_checks.cache_clear()
    yield names
    del CHECKS["E3L-L99"]
    all_checks.cache_clear()


def test_the_check_of_the_recipe_takes_two_files(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["test_a_tiny_rotary_base"]()
    head = open_checkpoint(permutation_dir("copies-one-state-reduced"))
    folder = write_variant(head, tmp_path / "head", config={"rope_theta": 100.0})
    found = {one.code: one for one in diagnose(folder).findings}
    assert found["E3L-L99"].fault == "layer.rope"
    assert CHECKS["E3L-L99"].page.title == "rope_theta is smaller than any model is trained with"
    assert "E3L-L99" not in {one.code for one in diagnose(head.path).findings}


def test_every_path_and_command_of_the_recipes_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"make (\w[\w-]*)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    examples = ("checks/FAMILY.py", "test_layer.py")
    paths = re.findall(r"`((?:src|book|tests|requirements|engines|lab)/[\w./-]*)`", TEXT)
    for path in (path for path in paths if not path.endswith(examples)):
        assert any((base / path).exists() for base in (ROOT, ROOT / "src/eagle3lab")), path
