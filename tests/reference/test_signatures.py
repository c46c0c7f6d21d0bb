"""The ranking's data is the matrix': what the diagnosis reads was counted from the cells in the repository."""

from __future__ import annotations

import json

from eagle3lab.diagnosis.ranking import SIGNATURES, measured
from lab.matrix import Matrix, read_matrix
from lab.matrix.ranking import grade, half, signatures_of, tabulate


def test_the_file_in_the_package_is_today_s_matrix() -> None:
    assert json.loads(SIGNATURES.read_text("utf-8")) == tabulate(read_matrix()), "run `make matrix` again"


def test_neighbouring_signatures_count_together() -> None:
    dead, random = measured("names.dropped", "dead"), measured("names.dropped", "random-head")
    assert dead == random and 0 < dead.alike <= dead.cells
    assert measured("vocab.double-offset", "healthy").alike == 0
    assert measured("no.such-fault", "dead").cells == 0


def test_the_ranking_is_graded_on_cells_that_it_is_not_fitted_to() -> None:
    """Half of the faults served are enough to name the others by."""
    graded = grade(read_matrix())
    assert graded.cells >= 40
    assert graded.first / graded.cells > 0.8, str(graded)


def test_a_cell_of_a_head_that_works_is_healthy_until_more_was_promised() -> None:
    healthy = read_matrix().cell("healthy", "sglang==0.5.23", "server")
    assert healthy is not None and signatures_of(healthy, None) == {"healthy"}
    assert signatures_of(healthy, 3.5) == {"healthy", "below-expectation"}


def test_a_fault_counts_once_in_a_release_and_as_the_server_has_it() -> None:
    """Where parameters are unwritten the two may differ; elsewhere the second says nothing new."""
    matrix = read_matrix()
    cells = [matrix.cell("names.dropped/layers.0", "sglang==0.5.9", way) for way in ("server", "reference")]
    both = [cell for cell in cells if cell is not None]
    assert [signatures_of(cell, None) for cell in both] == [{"dead"}, {"random-head"}]
    for some, seen in ((both, "dead"), (both[::-1], "dead"), (both[1:], "random-head")):
        reported = tabulate(Matrix(()))["faults"]["names.dropped"]
        row = tabulate(Matrix(tuple(some)), half(some[0]))["faults"]["names.dropped"]
        assert tabulate(Matrix(tuple(some)), 1 - half(some[0]))["faults"]["names.dropped"] == reported
        assert row["cells"] == reported["cells"] + 1
        assert row[seen] == reported.get(seen, 0) + 1
