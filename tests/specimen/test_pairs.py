"""Two faults in one head: put in, measured, diagnosed, and what was recorded of real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from lab.matrix import Matrix, pairs_file, read_matrix
from lab.matrix import run as running
from lab.matrix.cell import faults_of, prepare
from lab.matrix.pairs import COMMON, SERVED, SERVED_BY, pairs
from lab.specimen.trial import Trial, load_trial

STOPPED = "capture.algorithm/EAGLE + head.tied"
MAP_AND_HEAD = "vocab.double-offset + head.tied"


@pytest.fixture(scope="module")
def trial() -> Trial:
    return load_trial(prompts=2)


@pytest.fixture(scope="module")
def recorded() -> Matrix:
    return read_matrix(pairs_file())


def test_names() -> None:
    assert faults_of("healthy") == ()
    assert [one.name for one in faults_of(MAP_AND_HEAD)] == ["vocab.double-offset", "head.tied"]
    with pytest.raises(InputError, match="no fault called 'nonsense'"):
        faults_of("vocab.zero + nonsense")
    with pytest.raises(InputError, match="no fault called 'nonsense'"):
        running.jobs(faults=["nonsense + vocab.zero"])


def test_both_are_put_in(trial: Trial, tmp_path: Path) -> None:
    prepared = prepare(MAP_AND_HEAD, SERVED_BY, "server", trial, 8, tmp_path / "pair")
    alone = [
        prepare(name, SERVED_BY, "server", trial, 8, tmp_path / name) for name in MAP_AND_HEAD.split(" + ")
    ]
    folder, *others = (open_checkpoint(one.served.drafter) for one in (prepared, *alone) if one.served)
    assert (folder.read("d2t") == others[0].read("d2t")).all()
    assert not (folder.read("d2t") == others[1].read("d2t")).all()
    tied = [one.raw_config.get("tie_word_embeddings") for one in (folder, *others)]
    assert tied == [True, False, True]


def test_the_launch_is_that_of_either(trial: Trial, tmp_path: Path) -> None:
    prepared = prepare("capture.algorithm/EAGLE + head.tied", SERVED_BY, "server", trial, 8, tmp_path)
    assert prepared.launch["algorithm"] == "EAGLE"


def test_a_head_is_not_trained_twice(trial: Trial, tmp_path: Path) -> None:
    name = "training.weak/few-steps + training.weak/one-step"
    with pytest.raises(InputError, match="cannot be trained in two ways"):
        prepare(name, SERVED_BY, "server", trial, 8, tmp_path)


def test_a_cell_of_two_is_named_by_both(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    todo = running.jobs(faults=[MAP_AND_HEAD], engines=[SERVED_BY])
    [cell] = running.run(todo, path, lambda *_: None, prompts=2, tokens=8)
    assert (cell.slug, cell.outcome) == ("vocab.double-offset + head.tied", "measured")
    assert cell.diagnosis is not None
    assert cell.diagnosis.named
    assert cell.diagnosis.first == "vocab.double-offset"
    assert cell.diagnosis.place == 2
    assert read_matrix(path).cells == (cell,)
    again = []
    running.run(todo, path, lambda _, cached, *__: again.append(cached), prompts=2, tokens=8)
    assert again == [True]


def test_pairs_and_each_by_itself(trial: Trial, tmp_path: Path) -> None:
    found = pairs(trial, SERVED_BY, tmp_path, COMMON[2:4], 8)
    assert [(one.first, one.second) for one in found] == [
        ("vocab.double-offset", "vocab.double-offset"),
        ("head.tied", "head.tied"),
        ("vocab.double-offset", "head.tied"),
    ]
    assert all(one.complete for one in found)
    assert set(found[2].order) == {"vocab.double-offset", "head.tied"}


def test_the_recorded_pairs_are_those_listed(recorded: Matrix) -> None:
    assert {one.key for one in recorded.cells} == {
        (name, SERVED_BY, way) for name in SERVED for way in ("reference", "server")
    }
    assert {one.outcome for one in recorded.cells if one.fault != STOPPED} == {"measured"}


@pytest.mark.parametrize("name", [name for name in SERVED[1:] if name != STOPPED])
def test_server_and_reference_agree_at_every_step_of_a_recorded_pair(recorded: Matrix, name: str) -> None:
    assert recorded.agreement(name, SERVED_BY)
    assert all(one.rounds and one.same_answers for one in recorded.cells if one.fault == name)


def test_what_stops_the_server_stops_the_reference(recorded: Matrix) -> None:
    """An EAGLE server deletes embedding and head for the target's: of a tied head it deletes the same one twice."""
    ours, theirs = (recorded.cell(STOPPED, SERVED_BY, way) for way in ("reference", "server"))
    assert ours is not None and theirs is not None
    assert ours.outcome == theirs.outcome == "stops"
    assert (
        ours.detail
        == theirs.detail
        == "AttributeError: 'VocabParallelEmbedding' object has no attribute 'weight'"
    )
    assert theirs.diagnosis is not None and theirs.diagnosis.named
