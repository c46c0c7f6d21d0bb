"""Fixtures: an empty project, and a small book that was run and rendered once for all tests that look at it.

The notebooks of these tests do not depend on the library's code, so its files are left out of their digests:
what is unchanged must count as unchanged even while someone edits the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3lab.book import chapters
from eagle3lab.book.chapters import Layout, find_chapters
from eagle3lab.book.render import render
from eagle3lab.book.runner import run
from tests.book.project import Project

_FIGURES = """
from eagle3lab.figures import figure
lines = figure("Acceptance at each position, a title long enough to need two lines", x="position", y="share")
for name in ("drafter", "the same drafter, repaired", "ceiling"):
    lines.add_scatter(x=[1, 2, 3], y=[0.7, 0.5, 0.4], name=name)
lines.show()
""", """
flow = figure("Where each tensor goes")
nodes = {"label": ["layers.0.q_proj", "qkv_proj"]}
flow.add_sankey(node=nodes, link={"source": [0], "target": [1], "value": [1]})
flow
""", """
import pandas as pd
pd.DataFrame({f"a column with a long name {i}": range(3) for i in range(12)})
""", """
from eagle3lab.book import claim
claim("`fc` gets three states & not < three", 3 * 7168 == 21504, 21504, expected="3 × 7168")
claim("a share is shown short", True, 0.123456789)
"""  # fmt: skip

_INTRO = r"""
# A small book

See [the figures](../notebooks/01-figures.ipynb) and [the other](../notebooks/02-plain.ipynb). Inline
$h \in \mathbb{R}^{3H}$, and

$$
\begin{aligned}
\text{length} &= 1 + \sum_{i=1}^{n} p_i \\
\text{rate} &= \frac{\text{length} - 1}{n}
\end{aligned}
$$

| `a_rather_long_name_of_a_parameter` | a second column of some width | and a third |
|---|---|---|
| one | two | three |
"""


@pytest.fixture(scope="session", autouse=True)
def _library_left_out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chapters, "PACKAGE", tmp_path_factory.mktemp("no-library"))
        yield


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture(scope="session")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """The layout of a rendered book: figures, maths, wide table, claims."""
    made = Project(tmp_path_factory.mktemp("book") / "project")
    made.chapter("01-figures", *_FIGURES, parameters="steps: int = 4  # draft steps")
    made.chapter("02-plain", "from eagle3lab.book import claim\nclaim('one is one', 1 == 1)")
    made.prose(intro=_INTRO)
    runs = run(made.layout, find_chapters(made.layout))
    assert [one.failure for one in runs] == [None, None]
    assert render(made.layout)
    return made.layout
