"""The ranking's data is the matrix': what the diagnosis reads was counted from the cells in the repository."""

from __future__ import annotations

import json

from eagle3lab.diagnosis.evidence.measured import SIGNATURES, measured
from eagle3lab.specimen.matrix import read_matrix
from eagle3lab.specimen.matrix.signatures import signatures_of, tabulate


def test_the_file_in_the_package_is_today_s_matrix() -> None:
    assert json.loads(SIGNATURES.read_text("utf-8")) == tabulate(read_matrix()), "run `make matrix` again"


def test_neighbouring_signatures_count_together() -> None:
    dead, random = measured("names.dropped", "dead"), measured("names.dropped", "random-head")
    assert dead == random and 0 < dead.alike <= dead.cells
    assert measured("vocab.double-offset", "healthy").alike == 0
    assert measured("no.such-fault", "dead").cells == 0


def test_a_cell_of_a_head_that_works_is_healthy_until_more_was_promised() -> None:
    healthy = read_matrix().cell("healthy", "sglang==0.5.23", "server")
    assert healthy is not None and signatures_of(healthy, None) == {"healthy"}
    assert signatures_of(healthy, 3.5) == {"healthy", "below-expectation"}
