"""Pages of faults: every slug and check is there, links lead somewhere, the recorded cases are those of today."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from benchmarks.case_corpus import RECORD, matrix, outcomes
from eagle3lab.book import pages
from eagle3lab.book.case_record import CaseOutcome, Example, Marks, read_record, to_json
from eagle3lab.book.chapters import Layout
from eagle3lab.book.pages import cases_section, example_of, fault_page, fault_pages, page_name
from eagle3lab.book.render import render
from eagle3lab.diagnosis.checks import all_checks
from eagle3lab.errors import InputError
from tests.book.project import Project
from tests.support.project import ROOT

TAXONOMY = yaml.safe_load((ROOT / "book" / "faults" / "faults.yaml").read_text("utf-8"))
CASES = read_record(RECORD)
WRITTEN = fault_pages(TAXONOMY, CASES)


def case(**changes: object) -> CaseOutcome:
    fields = {
        "case": "made-up",
        "title": "A title",
        "engine": "sglang==0.5.9",
        "given": ("the drafter",),
        "launch": "",
        "expected": "vocab.zero",
        "first": "vocab.zero",
        "marks": Marks(True, True, True, True),
        "examples": (Example("vocab.zero", "E3L-V04", "t", (("seen", "d2t"),), "e", "f"),),
    }
    return CaseOutcome(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_fault_has_a_page_and_every_check_stands_on_one() -> None:
    assert set(WRITTEN) == {f"{page_name(slug)}.md" for slug in TAXONOMY["faults"] if slug != "healthy"}
    for check in all_checks():
        for slug in (check.fault, *check.others):
            page = WRITTEN[f"{page_name(slug)}.md"]
            assert f"Check `{check.code}`" in page and f"## {check.page.title}\n" in page
            assert all(f"\n{name}\n: {text}\n" in page for name, text in check.page.parts.items())


def test_docstrings_hold_no_html() -> None:
    """They go into the pages as the Markdown they are."""
    for check in all_checks():
        for text in (check.page.title, *check.page.parts.values()):
            assert not re.search(r"<[\w/!?]|\]\(|\$", re.sub(r"`[^`]*`", "", text)), (check.code, text)


def test_the_table_of_faults_leads_to_the_pages() -> None:
    table = pages.faults_table(TAXONOMY)
    assert {f"{name}.md" for name in re.findall(r'href="([\w-]+)\.html"', table)} == set(WRITTEN)


def test_most_faults_have_an_example() -> None:
    """Where the corpus has a case, its page shows it."""
    expected = {one.expected for one in CASES} - {"healthy"}
    assert (
        expected == {slug for slug in expected if "\n## Example\n" in WRITTEN[f"{page_name(slug)}.md"]}
        and len(expected) >= 50
    )


def test_an_example_is_one_where_the_fault_comes_first() -> None:
    other = case(case="second", first="vocab.range")
    shown = example_of("vocab.zero", [other, case()])
    assert shown is not None and shown[0].case == "made-up"
    assert example_of("vocab.zero", [other]) is not None
    assert example_of("vocab.dtype", [other]) is None


def test_what_comes_from_cases_is_escaped() -> None:
    evil = "<script>x</script>`</pre>\n\n# [a](b) \x1b[31m"
    one = Example("vocab.zero", "E3L-V04", evil, ((evil, evil),), evil, evil, evil)
    made = case(
        case=evil, title=evil, engine=evil, given=(evil,), launch=evil, first="vocab.t2d", examples=(one,)
    )
    for text in (fault_page("vocab.zero", TAXONOMY["faults"]["vocab.zero"], [made]), cases_section([made])):
        assert "script&gt;" in text
        assert "<script" not in text and "\x1b" not in text and "\n# [a]" not in text


def test_the_section_of_cases_counts() -> None:
    missed = case(case="second", title="Another", first="vocab.range", marks=Marks(False, True, True, False))
    text = cases_section([case(), missed, case(expected="healthy", first="healthy", examples=())])
    assert "Of 3 small cases with a known answer, 1 are healthy" in text
    assert "in 2; it finds everything it should in 3" in text and "no false alarm in 2" in text
    assert "stands first in 2. The others:" in text and '<a href="vocab-range.html">' in text
    drawn = matrix([case(), missed])
    assert [column.header for column in drawn.columns] == ["Expected", "vocab.range", "vocab.zero", "cases"]


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = (case(), case(launch="é"))
    (tmp_path / "r.json").write_text(to_json(made), "utf-8")
    assert read_record(tmp_path / "r.json") == made


@pytest.mark.parametrize("text", ["", "{}", '{"cases": [{}]}', '{"cases": 1}', '{"cases": [1]}'])
def test_a_broken_record_is_an_error_that_says_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "examples.json").write_text(text)
    with pytest.raises(InputError, match="make cases"):
        read_record(tmp_path / "examples.json")


def test_the_record_is_up_to_date() -> None:
    """After a change to checks or cases: `make cases`."""
    now = outcomes()
    assert [one.case for one in now] == [one.case for one in CASES]
    for recorded, current in zip(CASES, now, strict=True):
        assert recorded == current


def test_the_pages_render_and_their_links_lead_somewhere(project: Project) -> None:
    project.pretend_it_ran(project.chapter("01-only", "1"))
    project.prose(intro="# A book\n")
    layout: Layout = project.layout
    shutil.copytree(ROOT / "book" / "faults", layout.root / "book" / "faults")
    toc = yaml.safe_load((layout.root / "_toc.yml").read_text("utf-8"))
    faults = {"file": "book/faults/index", "sections": [{"glob": "book/faults/*-*"}]}
    toc["chapters"].append(faults)
    (layout.root / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")
    assert render(layout)  # any warning fails
    site = layout.html / "book" / "faults"
    assert {f"{path.stem}.md" for path in site.glob("*.html")} == {*WRITTEN, "index.md"}
    index = (site / "index.html").read_text("utf-8")
    assert "How the diagnosis does on the case corpus" in index
    for slug in set(TAXONOMY["faults"]) - {"healthy"}:
        page = (site / f"{page_name(slug)}.html").read_text("utf-8")
        assert re.search(rf"<h1>{re.escape(slug)}<", page)
        assert f'href="{page_name(slug)}.html"><code>{slug}</code>' in index
        for target in re.findall(r'href="([\w./-]+\.html)', page.split("<article", 1)[1]):
            assert (site / target).resolve().is_file(), (slug, target)


def test_the_books_contents_list_them() -> None:
    toc = (ROOT / "_toc.yml").read_text("utf-8")
    assert "glob: book/faults/*-*" in toc
