"""The rendered book: what is on its pages, what it refuses to render, and what stays as it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from nbformat import v4

from eagle3lab.book import pages
from eagle3lab.book.chapters import Layout
from eagle3lab.book.claims import CLAIM_MIME, Claim
from eagle3lab.book.render import (
    TOC,
    RenderFailed,
    StaleChapters,
    build_stage,
    is_current,
    main,
    render,
    rewrite_outputs,
    toc_pages,
)
from eagle3lab.book.runner import run
from eagle3lab.book.sphinx_book import PLOTLY_MIME, MathError, figure_html, to_mathml
from eagle3lab.errors import InputError
from tests.book.project import CLAIM, Project
from tests.support.project import ROOT


def _page(layout: Layout, name: str) -> str:
    return (layout.html / name).read_text("utf-8")


def test_figures_share_one_script_that_pages_without_figures_do_not_load(small_book: Layout) -> None:
    figures, plain = (
        _page(small_book, "notebooks/01-figures.html"),
        _page(small_book, "notebooks/02-plain.html"),
    )
    assert figures.count("<figure") == 2
    assert 'aria-label="Where each tensor goes"' in figures
    assert "plotly.min.js" in figures
    assert "plotly.min.js" not in plain
    assert len(list(small_book.html.rglob("plotly*.js"))) == 1
    assert len(figures) < 100_000  # the script itself has 4.8 million characters


def test_no_page_names_a_host(small_book: Layout) -> None:
    named = set()
    for page in small_book.html.rglob("*.html"):
        named |= set(re.findall(r"(?:src|href)=[\"'](?:https?:)?//[^\"']+", page.read_text("utf-8")))
        named |= set(re.findall(r"https?://[^\s\"'<>]+", page.read_text("utf-8")))
    assert named <= {"http://www.w3.org/1998/Math/MathML"}  # an XML namespace, not an address


def test_maths_is_mathml(small_book: Layout) -> None:
    intro = _page(small_book, "book/intro.html")
    assert intro.count("<math ") == 2
    assert "MathJax" not in intro


def test_the_claims_page_lists_every_claim_and_links_to_it(small_book: Layout) -> None:
    claims = _page(small_book, "book/claims.html")
    assert "3 of 3 hold" in claims
    assert "<code>0.1235</code>" in claims
    links = re.findall(r'href="\.\./notebooks/([\w-]+\.html)#(claim-\d+)"', claims)
    assert links == [
        ("01-figures.html", "claim-1"),
        ("01-figures.html", "claim-2"),
        ("02-plain.html", "claim-1"),
    ]
    for page, target in links:
        assert f'id="{target}"' in _page(small_book, f"notebooks/{page}")


def test_the_status_page_gives_timings_and_versions(small_book: Layout) -> None:
    status = _page(small_book, "book/status.html")
    record = json.loads(small_book.claims.read_text("utf-8"))
    for chapter in record["chapters"]:
        assert f"{chapter['seconds']:.1f}" in status
    for version in record["versions"].values():
        assert f"<code>{version}</code>" in status


def test_an_unchanged_book_is_not_rendered_again(
    small_book: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_current(small_book)
    before = (small_book.html / "index.html").stat().st_mtime_ns
    assert main(["--root", str(small_book.root)]) == 0
    assert (small_book.html / "index.html").stat().st_mtime_ns == before
    assert (small_book.html / "index.html").as_uri() in capsys.readouterr().out


def test_what_jupyter_book_warns_about_fails_and_leaves_the_old_pages(project: Project) -> None:
    project.pretend_it_ran(project.chapter("01-one", CLAIM))
    project.prose(intro="# Intro\n\n[nowhere](absent.md) and $\\nosuchcommand{x}$ and {term}`unheard of`\n")
    project.layout.html.mkdir()
    (project.layout.html / "index.html").write_text("old")
    with pytest.raises(RenderFailed) as caught:
        render(project.layout)
    for expected in ("absent.md", r"no MathML for \nosuchcommand", "unheard of"):
        assert expected in str(caught.value)
    assert (project.layout.html / "index.html").read_text() == "old"
    assert not is_current(project.layout)


def test_chapters_that_did_not_run_or_failed_or_changed_are_named(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.pretend_it_ran(project.chapter("01-good", CLAIM))
    run(project.layout, [project.chapter("02-bad", "1 / 0")])
    project.pretend_it_ran(project.chapter("03-changed", CLAIM))
    project.chapter("03-changed", CLAIM, "x = 1")
    project.chapter("04-new", CLAIM)
    project.chapter("05-absent", CLAIM)
    project.prose(intro="# Intro\n\nText.")
    (project.layout.notebooks / "05-absent.ipynb").unlink()
    assert main(["--root", str(project.layout.root)]) == 1
    said = capsys.readouterr().err
    assert "01-good" not in said
    for expected in (
        "02-bad: failed: ZeroDiv",
        "03-changed: it, the",
        "04-new: never run",
        "05-absent: _toc.yml",
    ):
        assert expected in said
    with pytest.raises(StaleChapters) as caught:
        build_stage(project.layout, project.layout.out / "stage", allow_stale=True)
    assert "03-changed" not in caught.value.reasons


def test_a_figure_without_a_title_is_refused(project: Project) -> None:
    figure = v4.new_output("display_data", data={PLOTLY_MIME: {"data": [], "layout": {}}})
    project.pretend_it_ran(project.chapter("01-one", CLAIM), figure)
    project.prose(intro="# Intro\n\nText.")
    with pytest.raises(InputError, match=r"01-one\.ipynb: a Plotly figure has no title"):
        build_stage(project.layout, project.layout.out / "stage")


def test_figure_data_cannot_end_its_script() -> None:
    title = '</script><img src=x> "quoted"'
    made = figure_html({"data": [{"y": [1], "name": "</script><b>"}], "layout": {"title": {"text": title}}})
    assert made.count("</script>") == 1
    assert "<img" not in made
    spec = json.loads(made.split('application/json">')[1].split("</script>")[0])
    assert spec["data"][0]["name"] == "</script><b>"
    assert "title" not in spec["layout"]


def test_rewriting_leaves_other_outputs_alone() -> None:
    table = {"text/html": "<table></table>", "text/plain": "table"}
    spec = {"data": [], "layout": {"title": {"text": "T"}}}
    outputs = [
        {"output_type": "stream", "text": "hello"},
        {"output_type": "display_data", "data": dict(table)},
        {"output_type": "display_data", "data": {PLOTLY_MIME: spec}},
        {"output_type": "display_data", "data": Claim("a", True).to_mime()},
        {"output_type": "display_data", "data": Claim("b", True).to_mime()},
    ]
    notebook = {"cells": [{"cell_type": "markdown", "source": ""}, {"cell_type": "code", "outputs": outputs}]}
    rewrite_outputs(notebook)
    assert outputs[1]["data"] == table
    assert list(outputs[2]["data"]) == ["text/html"]
    assert [re.search(r'id="([^"]+)"', out["data"]["text/html"]).group(1) for out in outputs[3:]] == [  # type: ignore
        "claim-1",
        "claim-2",
    ]
    assert CLAIM_MIME not in outputs[3]["data"]


@pytest.mark.parametrize(
    ("latex", "block", "tags"),
    [
        (r"h_t \in \mathbb{R}^{3H}", False, {"msub", "msup"}),
        (r"\frac{a + b}{c}", True, {"mfrac"}),
        (r"a &= b \\ c &= d", True, {"mtable", "mtr", "mtd"}),
        (r"\begin{aligned} a &= b \\ c &= d \end{aligned}", True, {"mtable", "mtr", "mtd"}),
        (r"\begin{cases} 1 & x < 0 \\ 0 & \text{else} \end{cases}", True, {"mtable"}),
    ],
)
def test_latex_becomes_well_formed_mathml_with_its_source(latex: str, block: bool, tags: set[str]) -> None:
    drawn = ElementTree.fromstring(to_mathml(latex, block=block))
    assert drawn.get("display") == ("block" if block else "inline")
    assert tags <= {element.tag.split("}")[1] for element in drawn.iter()}
    assert "".join(note.text or "" for note in drawn.iter() if note.tag.endswith("annotation")) == latex


@pytest.mark.parametrize(
    "latex", [r"\nosuchcommand x", r"\mysterious", r"x^{", r"\begin{nosuch} a & b \end{nosuch}"]
)
def test_latex_that_cannot_be_drawn_in_full_is_an_error(latex: str) -> None:
    with pytest.raises(MathError):
        to_mathml(latex, block=True)


def test_the_table_of_faults_has_every_slug() -> None:
    taxonomy = yaml.safe_load((ROOT / "book" / "faults" / "faults.yaml").read_text("utf-8"))
    table = pages.faults_table(taxonomy)
    for slug, fault in taxonomy["faults"].items():
        assert f">{slug}</code>" in table
        assert slug == "healthy" or slug.split(".")[0] in taxonomy["families"]
        assert isinstance(fault["silent"], bool)
    assert table.count('<td data-label="Server">silent</td>') == sum(
        f["silent"] for f in taxonomy["faults"].values()
    )


@pytest.mark.parametrize("text", ["format: jb-book\n", "[1, 2]", "root: [", ""])
def test_a_table_of_contents_that_lists_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "_toc.yml").write_text(text)
    with pytest.raises(InputError, match=r"_toc\.yml"):
        toc_pages(tmp_path / "_toc.yml")


def test_the_books_table_of_contents_lists_every_notebook_and_only_pages_there_are() -> None:
    listed = toc_pages(ROOT / TOC)
    chapters = {name for name in listed if name.startswith("notebooks/")}
    assert chapters == {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    generated = {"book/claims", "book/status", "book/engine-atlas"}
    assert all((ROOT / f"{name}.md").is_file() for name in set(listed) - chapters - generated)
