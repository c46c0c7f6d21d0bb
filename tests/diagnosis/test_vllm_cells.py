"""What the diagnosis says of names and shapes, held against what the real vLLM made of each fault in the matrix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle3lab.diagnosis import Diagnosis, diagnose
from eagle3lab.diagnosis.model import Impact
from eagle3lab.diagnosis.run import BROKE
from eagle3lab.errors import InputError
from lab.faults import FAULTS, Served, inject, write_healthy
from lab.faults.train import trained_head
from lab.matrix import read_matrix
from lab.matrix.records import HEALTHY, Cell

CELLS = {
    cell.fault: cell
    for cell in read_matrix().cells
    if cell.engine == "vllm==0.32.0" and cell.outcome in ("measured", "stops")
}
# What vLLM's loaders say where a name leads nowhere or a shape does not fit; an assertion may say nothing at all.
AT_A_TENSOR = re.compile(
    r"ValueError: There is no module or parameter|AssertionError: Tried to load weights|AssertionError:\s*$"
)
# What is wrong with fc has a check of its own.
NAMED_OTHERWISE = {"names.shape/narrow-fc": "capture.width"}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return write_healthy(tmp_path_factory.mktemp("healthy"))


def served(cell: Cell, healthy: Served, folder: Path) -> Served:
    """What was served in the cell."""
    if cell.fault == HEALTHY:
        return healthy
    fault = FAULTS[cell.fault]
    if fault.training is not None:
        try:
            healthy = write_healthy(folder / "trained", trained_head(fault.training))
        except InputError as error:
            pytest.skip(error.problem)
    return inject(fault, healthy, folder / "faulty")


def diagnosed(cell: Cell, healthy: Served, folder: Path) -> Diagnosis:
    case = served(cell, healthy, folder)
    diagnosis = diagnose(case.drafter, target=case.target, engine=cell.engine)
    assert not [one for one in diagnosis.skipped if BROKE in one.reason], diagnosis.skipped
    return diagnosis


def stops_at_a_tensor(cell: Cell) -> bool:
    return cell.outcome == "stops" and AT_A_TENSOR.match(cell.detail) is not None


def test_there_is_something_to_hold_it_against() -> None:
    stopped = {cell.slug for cell in CELLS.values() if stops_at_a_tensor(cell)}
    assert {"names.rejected", "names.unsupported-tensor", "names.shape", "layer.quantisation"} <= stopped
    assert sum(cell.outcome == "measured" for cell in CELLS.values()) > 40


@pytest.mark.parametrize("fault", CELLS)
def test_names_and_shapes_stop_the_diagnosed_vllm_where_they_stopped_the_real_one(
    fault: str, healthy: Served, tmp_path: Path
) -> None:
    cell = CELLS[fault]
    findings = diagnosed(cell, healthy, tmp_path).findings
    if stops_at_a_tensor(cell):
        fitting = {cell.slug, NAMED_OTHERWISE.get(fault)}
        assert any(one.fault.startswith("names.") or one.fault in fitting for one in findings[:2]), findings
        assert findings[0].impact is Impact.STOPS
    else:
        names = [one for one in findings if one.code.startswith("E3L-N")]
        assert not [one for one in names if one.fault == "names.rejected" or one.impact is Impact.STOPS]
    if cell.slug == "names.missing":
        assert [(one.code, one.fault) for one in findings] == [("E3L-N03", "names.missing")]
