"""The matrix: its file, and cells that are measured once for the inputs they have."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.errors import InputError
from lab.matrix import Cell, Diagnosed, Matrix, read_matrix
from lab.matrix import run as running
from lab.matrix.cell import with_figures, with_histograms
from lab.matrix.records import SCHEMA_VERSION, write_matrix

CELL = Cell(
    fault="vocab.zero",
    slug="vocab.zero",
    engine="sglang==0.5.9",
    way="reference",
    outcome="measured",
    steps=3,
    verify_steps=4,
    accepted=(2, 1, 0),
    accept_length=1.75,
    rounds=("20", "01"),
    histograms=((1, 0, 1, 0), (1, 1, 0, 0)),
    answers="abc",
    diagnosis=Diagnosed(verdict="broken", first="vocab.zero", named=True, place=1),
)


def changed(**fields) -> Cell:
    import msgspec

    return msgspec.structs.replace(CELL, **fields)


def test_it_reads_what_it_writes_in_order(tmp_path: Path) -> None:
    cells = [
        changed(engine="sglang==0.5.23"),
        CELL,
        changed(fault="healthy", slug="healthy", engine="sglang==0.5.23"),
        changed(way="server"),
    ]
    write_matrix(cells, tmp_path / "m.jsonl")
    found = read_matrix(tmp_path / "m.jsonl")
    assert [one.key for one in found.cells] == [
        ("healthy", "sglang==0.5.23", "reference"),
        ("vocab.zero", "sglang==0.5.9", "reference"),
        ("vocab.zero", "sglang==0.5.9", "server"),
        ("vocab.zero", "sglang==0.5.23", "reference"),
    ]
    assert found.cell("vocab.zero", "sglang==0.5.9", "reference") == CELL
    assert found.faults == ("healthy", "vocab.zero")
    assert len(found.of(engine="sglang==0.5.23")) == 2


def test_rates() -> None:
    assert CELL.position_rates == (0.5, 0.25, 0.0)
    assert CELL.accept_rate == 0.25


@pytest.mark.parametrize(
    ("fields", "agree"),
    [
        ({}, True),
        ({"rounds": ("20", "10")}, False),
        ({"answers": "other"}, False),
        ({"rounds": ()}, True),
        ({"rounds": (), "histograms": ((1, 0, 1, 0), (0, 2, 0, 0))}, False),
        ({"outcome": "stops"}, None),
    ],
)
def test_agreement_is_step_by_step(fields: dict, agree: bool | None) -> None:
    matrix = Matrix((CELL, changed(way="server", **fields)))
    assert matrix.agreement("vocab.zero", "sglang==0.5.9") is agree
    assert matrix.agreement("vocab.zero", "sglang==0.5.23") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 99, "cells": 0}', "schema version 99"),
        ('{"cells": 0}', "no cell"),
        (f'{{"schema_version": {SCHEMA_VERSION}, "cells": 1}}\n{{"fault": 3}}', "no cell"),
        (f'{{"schema_version": {SCHEMA_VERSION}, "cells": 1}}\nnot json', "no cell"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        read_matrix(tmp_path / "m.jsonl")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_matrix(tmp_path / "none.jsonl")


class Told(list):
    def __call__(self, cell: Cell, cached: bool, number: int, total: int) -> None:
        self.append((cell.fault, cached))


def test_a_cell_is_measured_once_for_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, todo = (
        tmp_path / "m.jsonl",
        running.jobs(faults=["healthy", "vocab.zero"], engines=["sglang==0.5.23"]),
    )
    first, again, longer = Told(), Told(), Told()
    cells = running.run(todo, path, first, prompts=3, tokens=16)
    assert [one.outcome for one in cells] == ["measured", "measured"]
    assert cells[0].accept_length > cells[1].accept_length
    assert cells[0].same_answers and cells[1].same_answers
    assert cells[0].diagnosis.verdict == "no-fault-found"
    assert cells[1].diagnosis.first == "vocab.zero"
    assert cells[1].diagnosis.named
    assert running.run(todo, path, again, prompts=3, tokens=16) == cells
    running.run(todo, path, longer, prompts=3, tokens=17)
    assert [[cached for _, cached in told] for told in (first, again, longer)] == [
        [False, False], [True, True], [False, False],
    ]  # fmt: skip
    monkeypatch.setattr(running, "code_digest", lambda way: "other code")
    other = Told()
    running.run(todo, path, other, prompts=3, tokens=17)
    assert [cached for _, cached in other] == [False, False]


def test_what_stops_or_does_not_apply_is_recorded(tmp_path: Path) -> None:
    todo = running.jobs(faults=["capture.ids-range", "names.dropped/layers.0"], engines=["sglang==0.5.23"])
    stops, other = running.run(todo, tmp_path / "m.jsonl", Told(), prompts=2, tokens=8)
    assert (stops.outcome, stops.accept_length) == ("stops", None)
    assert "RuntimeError" in stops.detail
    assert other.outcome == "not applicable"
    assert other.detail == "this release takes the name layers.0."
    assert read_matrix(tmp_path / "m.jsonl").cells == (stops, other)


def test_a_fault_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match=r"vocab\.nothing"):
        running.jobs(faults=["vocab.nothing"])


def test_figures_are_the_same_from_rounds_and_from_histograms() -> None:
    from lab.specimen.trial import load_trial

    trial = load_trial(prompts=2)
    rounds, outputs = [(2, 0), (0, 1)], [(1, 2), (3,)]
    one = with_figures(CELL, rounds, outputs, trial, seconds=1.0)
    two = with_histograms(CELL, CELL.histograms, outputs, trial, seconds=1.0)
    assert one == two
    assert (one.verify_steps, one.accepted, one.accept_length) == (4, (2, 1, 0), 1.75)
    assert one.same_answers is False


@pytest.fixture(scope="module")
def shipped() -> Matrix:
    return read_matrix()


def test_the_shipped_matrix_has_every_fault_in_both_releases(shipped: Matrix) -> None:
    wanted = {(job.fault, job.engine, job.way) for job in running.jobs()}
    assert {cell.key for cell in shipped.cells if cell.way == "reference"} == wanted


def test_reference_and_servers_agree_wherever_both_were_asked(shipped: Matrix) -> None:
    """Parameters that nothing filled are chance on either side: there, answers are compared alone."""
    for engine in shipped.engines:
        for fault in shipped.faults:
            ours = shipped.cell(fault, engine, "reference")
            if ours is not None and not ours.uninitialised:
                assert shipped.agreement(fault, engine) is not False, (fault, engine)


def test_no_fault_changes_an_answer(shipped: Matrix) -> None:
    measured = [cell for cell in shipped.cells if cell.outcome == "measured"]
    assert len(measured) > 100
    assert all(cell.same_answers for cell in measured)


def test_many_faults_cost_acceptance(shipped: Matrix) -> None:
    costly = set()
    for engine in running.ENGINES:
        healthy = shipped.cell("healthy", engine, "reference")
        assert healthy is not None and healthy.accept_length is not None
        for cell in shipped.of(engine=engine, way="reference"):
            if cell.accept_length is not None and cell.accept_length < healthy.accept_length - 0.05:
                costly.add(cell.fault)
    assert len(costly) >= 30


def test_the_shipped_matrix_names_no_machine(shipped: Matrix) -> None:
    import re

    text = "\n".join(f"{cell.detail} {cell.log_line}" for cell in shipped.cells)
    assert not re.search(r"/(work|root|tmp|home)/", text)
