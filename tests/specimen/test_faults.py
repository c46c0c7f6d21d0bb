"""Every injector changes something, one thing, and is a fault of the taxonomy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.diagnosis.checks import all_checks
from eagle3lab.engines.atlas.resolve import resolve_release
from eagle3lab.errors import InputError
from lab.faults import FAULTS, Fault, Served, inject, write_healthy
from lab.faults.train import TRAININGS, head_folder, trained_head
from lab.specimen import drafter_dir, specimen_dir

# Slugs of the taxonomy for which no check exists, or which are none of a checkpoint's.
_WITHOUT_CHECK = {"healthy"}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return write_healthy(tmp_path_factory.mktemp("healthy") / "drafter")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", [name for name, one in FAULTS.items() if one.training is None])
def test_it_changes_something_and_the_original_stays(name: str, healthy: Served, tmp_path: Path) -> None:
    before = files(healthy.drafter) | files(specimen_dir())
    served = inject(FAULTS[name], healthy, tmp_path / "faulty")
    assert served.digest() != healthy.digest()
    assert files(healthy.drafter) | files(specimen_dir()) == before
    # Made twice, it is the same: nothing but the seeds written in the code decides it.
    again = inject(FAULTS[name], healthy, tmp_path / "again")
    if name != "files.stale-safetensors":  # torch writes its own archive
        assert again.digest() == served.digest()


def test_they_are_faults_of_the_taxonomy() -> None:
    known = {check.fault for check in all_checks()}
    assert {one.slug for one in FAULTS.values()} - known <= _WITHOUT_CHECK
    assert len({one.slug for one in FAULTS.values()}) >= 38


def test_each_is_described() -> None:
    changes = [one.change for one in FAULTS.values()]
    assert len(set(changes)) == len(changes)
    assert all(
        change.endswith(".") and one.expected for change, one in zip(changes, FAULTS.values(), strict=True)
    )


def test_an_injector_that_changes_nothing_is_an_error(healthy: Served, tmp_path: Path) -> None:
    from lab.specimen.variant import write_variant

    def nothing(head, out: Path) -> None:
        write_variant(head, out)

    idle = Fault("vocab.zero/idle", "nothing", "nothing", nothing, lambda facts: None)
    with pytest.raises(InputError, match="changed nothing"):
        inject(idle, healthy, tmp_path / "a")
    no_option = Fault("flags.method/idle", "nothing", "nothing", lambda head, out: None, lambda facts: None)
    with pytest.raises(InputError, match="changed nothing"):
        inject(no_option, healthy, tmp_path / "b")


def test_a_folder_in_use_is_refused(healthy: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        inject(FAULTS["vocab.zero"], healthy, tmp_path)


def test_releases_that_are_not_affected_are_told_apart() -> None:
    old, new = (resolve_release(f"sglang=={release}").facts for release in ("0.5.9", "0.5.23"))
    assert FAULTS["names.dropped/layers.0"].applies(old) is None
    assert "takes the name" in (FAULTS["names.dropped/layers.0"].applies(new) or "")
    assert FAULTS["layer.norm-output/stated"].applies(new) is None
    assert FAULTS["layer.norm-output/stated"].applies(old) is not None


def test_own_embeddings_draft_as_the_healthy_head_where_they_stay(healthy: Served, tmp_path: Path) -> None:
    """The injector's claim: with the embeddings it carries, the head is the healthy one."""
    from dataclasses import replace

    import torch

    from lab.reference import load_as_trained, load_reference_target, speculate
    from lab.specimen.trial import load_trial

    served = inject(FAULTS["head.embedding/own"], healthy, tmp_path / "faulty")
    trial = load_trial(prompts=3)
    target = load_reference_target(served.target)
    own = torch.from_numpy(np.array(open_checkpoint(served.drafter).read("embed_tokens.weight")))
    head = replace(load_as_trained(served.drafter, target), embedding=own)
    whole = load_as_trained(drafter_dir(), target)
    runs = [speculate(target, one, trial.prompts, max_new_tokens=24) for one in (head, whole)]
    assert runs[0] == runs[1]


def test_the_other_target_answers_as_the_specimens(healthy: Served, tmp_path: Path) -> None:
    from lab.reference import generate, load_reference_target
    from lab.specimen.trial import load_trial

    served = inject(FAULTS["training.pairing/other-target"], healthy, tmp_path / "faulty")
    trial = load_trial(prompts=3)
    other = load_reference_target(served.target)
    assert not other.embedding.equal(trial.target.embedding)
    assert generate(other, trial.prompts, 24) == generate(trial.target, trial.prompts, 24)


def test_a_head_that_was_not_trained_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lab.faults.train.cache_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="has not been trained here"):
        trained_head("control")


def test_each_training_has_a_folder_of_its_own() -> None:
    assert len({head_folder(name).name.rpartition("-")[2] for name in TRAININGS}) == len(TRAININGS)
