"""The reference and real servers, step by step: the same answers, the same drafts accepted at every verification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.serving.measure import measure
from eagle3lab.serving.profiles import cpu
from eagle3lab.serving.workload import Workload
from lab.faults import FAULTS, inject, write_healthy
from lab.matrix import Matrix
from lab.matrix import run as running
from lab.reference import load_as_served, load_reference_target, speculate
from lab.specimen import permutation, permutation_dir
from tests.serving.engines import engine

pytestmark = [pytest.mark.engine, pytest.mark.server]


@pytest.mark.parametrize(("fault", "release"), [("healthy", "0.5.9"), ("capture.disabled", "0.5.23")])
def test_every_verification_accepts_the_same(fault: str, release: str, tmp_path: Path) -> None:
    """The trained specimen: attention, positions, states and token map all count."""
    name = f"sglang=={release}"
    todo = running.jobs(("reference", "server"), [name], [fault])
    cells = running.run(todo, tmp_path / "matrix.jsonl", lambda *_: None, prompts=4, tokens=32)
    assert [cell.outcome for cell in cells] == ["measured", "measured"], [cell.detail for cell in cells]
    assert cells[0].rounds
    assert cells[0].rounds == cells[1].rounds
    assert cells[1].same_answers
    assert Matrix(tuple(cells)).agreement(fault, name) is True


def healthy(folder: Path) -> Path:
    return permutation_dir("uses-every-tensor")


def reduced(folder: Path) -> Path:
    return permutation_dir("copies-one-state-reduced")


@pytest.mark.parametrize(
    ("head", "launch"),
    [(reduced, {}), (healthy, {"steps": 3, "topk": 2, "draft_tokens": 6})],
)
def test_permutation_heads(head: Callable[[Path], Path], launch: dict[str, int], tmp_path: Path) -> None:
    """A chain and a tree, on the heads whose acceptance theory knows."""
    folder, target = head(tmp_path), load_reference_target(permutation_dir("target"))
    prompts = list(permutation.prompts().values())
    plan = cpu(str(permutation_dir("target")), str(folder), release="0.5.23", **launch)
    served = measure(
        plan, engine("0.5.23"), Workload(prompts, 33, stop_at_eos=False), tmp_path / "run", probe=False
    )
    ours = speculate(
        target,
        load_as_served(folder, target, "sglang==0.5.23").drafter,
        prompts,
        max_new_tokens=33,
        **launch,
    )
    assert ours.outputs == served.outputs
    assert ours.verify_steps == served.verify_steps
    assert sum(ours.accepted) == served.counts.accepted


def test_the_injected_folder_is_what_was_served(tmp_path: Path) -> None:
    """What the cells are measured on is on disk as described, and the healthy head beside it is not."""
    whole = write_healthy(tmp_path / "healthy")
    served = inject(FAULTS["names.dropped/layers.0"], whole, tmp_path / "faulty")
    target = load_reference_target(served.target)
    old = load_as_served(served.drafter, target, "sglang==0.5.9", attention_backend="triton")
    assert all(name.startswith("layers.0.") for name in old.dropped)
    assert load_as_served(whole.drafter, target, "sglang==0.5.9").dropped == ()
