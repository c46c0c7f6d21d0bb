"""Every page of a rendered book in headless Chromium: drawn, quiet, self-contained, and no wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.acceptance.formulas import DRAFTS, LEN_D, LEN_STEPS1, candidates
from eagle3lab.book.chapters import Layout
from eagle3lab.book.render import is_current, landing_parts
from eagle3lab.book.tables import Chooser
from lab.matrix import read_matrix
from lab.matrix.ranking import best_cell, conditional, most_alike, retained
from tests.book.browser import NARROW, WIDE, Browser, Seen, browser, find_chromium
from tests.support.project import ROOT

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium on this machine: the book's pages were not opened")
    pytest.importorskip("playwright", reason="playwright is not installed: the book's pages were not opened")
    with browser(executable) as opened:
        yield opened


@pytest.fixture(scope="module", params=["fixture", "project"])
def book(request: pytest.FixtureRequest) -> Layout:
    if request.param == "fixture":
        layout: Layout = request.getfixturevalue("small_book")
        return layout
    layout = Layout.of(ROOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eagle3lab.book.chapters.PACKAGE", ROOT / "src" / "eagle3lab")
        if not is_current(layout):
            pytest.skip("the book is not rendered or has changed since: run `make book` first")
    return layout


def _pages(layout: Layout) -> list[Path]:
    # index.html only leads to the first page; what lies in _static are parts of the theme.
    inside = [layout.html / name for name in ("book", "notebooks")]
    return [page for folder in inside for page in sorted(folder.rglob("*.html"))]


def test_every_page_is_drawn_and_keeps_to_itself(chromium: Browser, book: Layout) -> None:
    """Each is opened once, and looked at in light and dark on a narrow screen and a wide one."""
    pages = _pages(book)
    assert len(pages) > 4  # intro, claims, status, and two chapters at least
    complaints = [
        f"{page.relative_to(book.html)}: {complaint}"
        for page in pages
        for complaint in _complaints(chromium.visit(page, widths=(WIDE, NARROW)))
    ]
    assert not complaints, "\n".join(complaints)


def _complaints(seen: Seen) -> Iterator[str]:
    yield from (f"asked for {url}" for url in seen.outside)
    yield from (f"console: {error}" for error in seen.errors)
    for view in seen.views:
        place = f"on a screen of {view.width} px in {view.theme}"
        if view.overflow > 0:
            yield f"{view.overflow} px wider than it is {place}"
        if len(view.figures) != view.plots:
            yield f"{view.plots - len(view.figures)} of {view.plots} figures not drawn {place}"
        for drawn_width, height in view.figures:
            if not (200 < drawn_width <= view.width and height > 100):
                yield f"a figure of {drawn_width} × {height} px {place}"
        if min(view.contrasts, default=21.0) < 4.5:
            yield f"text with a contrast of {min(view.contrasts):.1f}:1 {place}"


def test_figures_and_maths_take_up_room(chromium: Browser, small_book: Layout) -> None:
    figures = chromium.visit(small_book.html / "notebooks" / "01-figures.html").views[0]
    assert len(figures.figures) == figures.plots == 2
    assert chromium.visit(small_book.html / "book" / "intro.html").views[0].maths == 2


def test_figures_follow_a_switch_of_the_theme(chromium: Browser, small_book: Layout) -> None:
    colours = chromium.tick_colours(small_book.html / "notebooks" / "01-figures.html")
    assert colours["light"] != colours["dark"]


def test_the_first_page_leads_to_the_book(chromium: Browser, small_book: Layout) -> None:
    assert "url=book/intro.html" in (small_book.html / "index.html").read_text("utf-8")


def test_a_page_that_breaks_the_rules_is_caught(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><html data-theme=light><meta name=viewport content='width=device-width'>"
        "<body style='background:white'><div style='width:2000px'>wide</div>"
        "<img src='https://example.invalid/a.png'><script>console.error('no'); throw Error('thrown')</script>"
        "<figcaption style='color:#ddd'>pale</figcaption><div class=eagle3lab-plot><svg class=main-svg "
        "width=10 height=10></svg></div></body></html>"
    )
    complaints = " ".join(_complaints(chromium.visit(page, widths=(NARROW,))))
    for expected in (
        "asked for https://example.invalid/a.png",
        "console: no",
        "thrown",
        "wider",
        "10 × 10",
        "contrast",
    ):
        assert expected in complaints


@pytest.mark.parametrize(
    ("fields", "observed"),
    [
        ({"[data-length]": "1.0"}, {"accept_length": 1.0}),
        ({"[data-length]": "2.2"}, {"accept_length": 2.2}),
        ({f'[data-share="{k}"]': share for k, share in ((1, "0.41"), (2, "0.18"), (3, "0.06"))},
         {"shares": (0.41, 0.18, 0.06)}),
        ({'[data-share="1"]': "0.6", '[data-promised="1"]': "0.9", '[data-promised="2"]': "0.8"},
         {"shares": (0.6,), "promised": (0.9, 0.8)}),
    ],
)  # fmt: skip
def test_the_chooser_ranks_as_the_library_does(
    chromium: Browser, tmp_path: Path, fields: dict[str, str], observed: dict[str, Any]
) -> None:
    matrix, engine = read_matrix(), "sglang==0.5.9"
    healthy = best_cell(matrix, "healthy", engine)
    assert healthy is not None
    cells = {name: cell for name in matrix.faults if (cell := best_cell(matrix, name, engine)) is not None}
    own = conditional(healthy.position_rates)
    form = Chooser(
        {name: retained(cell, healthy) for name, cell in cells.items()}, own, {"healthy": "page.html"}
    )
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><title>form</title>{form._repr_html_()}")
    shown = chromium.chosen(page, fields)
    given = observed.get("promised", ())
    promised = (*given, *(round(share, 3) for share in own[len(given) :]))
    expected = most_alike(matrix, engine, **(observed | {"promised": promised}))
    assert len(shown) == 6
    # The form holds its figures to a few digits, so what is all but equally far may stand in another order.
    far = {one.cell.fault: one.distance for one in expected}
    ranked = [far[text.partition(":")[0]] for text in shown]
    assert ranked == pytest.approx([one.distance for one in expected[:6]], abs=2e-3)
    lengths = {one.cell.fault: one.accept_length for one in expected}
    for text in shown:
        name, _, rest = text.partition(": expect ")
        assert float(rest.partition(",")[0]) == pytest.approx(lengths[name], abs=0.01)


def test_the_field_reads_a_line_as_the_library_does(chromium: Browser, tmp_path: Path) -> None:
    field = landing_parts()["rate-reader.html"]
    script = (ROOT / "book" / "_static" / "rate-reader.js").read_text()
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><title>x</title>{field}<script>{script}</script>")
    pairs = [(1.0, 0.2), (1.05, 0.21), (1.75, 0.25), (2.76, 0.44), (3.2, 0.4)]
    lines = {f"accept len: {length:.2f}, accept rate: {rate:.2f}": (length, rate) for length, rate in pairs}
    for line, said in chromium.said_of(page, lines).items():
        shown = {
            text.rpartition("the rate is ")[2].partition(",")[0] for text in said[1:] if "the rate is" in text
        }
        fitting = candidates({lines[line]: 1}, (LEN_D, LEN_STEPS1, DRAFTS))
        assert shown == {fit.formula for fit in fitting}
    assert chromium.said_of(page, ["no numbers"])["no numbers"] == [
        "No accept length of 1 or more is in this line."
    ]
