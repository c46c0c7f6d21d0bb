"""Tables: escaped, and labelled for narrow screens."""

from __future__ import annotations

from eagle3lab.book.tables import Table


def test_a_table_shows_every_cell_as_text() -> None:
    shown = Table(["name", "values"], [["fc.weight", 3], ["lm_head", None]], caption="Tensors")
    assert repr(shown) == "Tensors\nname       values\nfc.weight  3\nlm_head"
    assert '<td data-label="values">3</td>' in shown._repr_html_()


def test_untrusted_cells_cannot_reach_page_or_terminal() -> None:
    shown = Table(["name"], [["<script>alert(1)</script>\x1b[31m`x`"]])
    assert "<script>" not in shown._repr_html_()
    assert "\x1b" not in shown._repr_html_() + repr(shown)
    assert "<code>x</code>" in shown._repr_html_()
