"""The drawing of a token's way leads to pages that exist, and names every family of faults."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
import yaml

from eagle3lab.figures.token_path import STAGES, token_path, token_strip
from tests.support.project import ROOT


def test_every_family_of_faults_sits_at_a_stage() -> None:
    families = yaml.safe_load((ROOT / "book" / "faults" / "faults.yaml").read_text())["families"]
    assert {family for stage in STAGES for family in stage.families} == set(families)


@pytest.mark.parametrize("columns", [1, 3])
def test_links_lead_to_chapters_and_faults(columns: int) -> None:
    drawn = token_path(columns=columns)
    ElementTree.fromstring(drawn)  # well formed
    for chapter in re.findall(r'"\.\./notebooks/([^"]+)\.html"', drawn):
        assert (ROOT / "notebooks" / f"{chapter}.ipynb").is_file()
    assert len(re.findall(r"book/faults/index\.html#", drawn)) == sum(len(stage.families) for stage in STAGES)


def test_the_stages_of_a_chapter_are_marked() -> None:
    assert token_path(current="06-the-hidden-states").count('class="stage here"') == 2
    assert "here" not in token_path()


def test_a_chapter_s_strip_marks_its_stages() -> None:
    assert token_strip("06-the-hidden-states").count('aria-current="step"') == 2
    assert token_strip("09-every-fault-measured") == ""
