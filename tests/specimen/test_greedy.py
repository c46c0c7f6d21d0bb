"""The greedy loop's counting, on drafters made to order."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.specimen import drafter, greedy, permutation, permutation_dir
from eagle3lab.specimen.target import load_target


@pytest.fixture(scope="module")
def target():
    return load_target(permutation_dir("target"))


@pytest.fixture(scope="module")
def perfect(target) -> drafter.Drafter:
    embedding = target.get_input_embeddings().weight.detach()
    return drafter.load_drafter(permutation_dir("uses-every-tensor"), embedding)


def test_formulas() -> None:
    run = greedy.Speculation(steps=3, verify_steps=10, accepted=(8, 5, 2), outputs=())
    assert run.accept_length == 2.5
    assert run.accept_rate == 0.5
    assert run.position_rates == (0.8, 0.5, 0.2)


@pytest.mark.parametrize("steps", [1, 2, 5, 7])
def test_any_number_of_draft_steps(target, perfect: drafter.Drafter, steps: int) -> None:
    ids = permutation.prompts()["covered-cycle"]
    run = greedy.speculate(target, perfect, [ids], steps=steps, max_new_tokens=40)
    assert run.accept_length == steps + 1
    assert run.outputs[0] == greedy.generate(target, ids, 40)


@pytest.mark.parametrize("distance", range(1, 10))
def test_nothing_behind_a_stop_id(target, perfect: drafter.Drafter, distance: int) -> None:
    ids = permutation.prompts()["covered-cycle"]
    stop = {permutation.cycles()[0][len(ids) - 1 + distance]}
    run = greedy.speculate(target, perfect, [ids], max_new_tokens=40, stop_ids=stop)
    assert run.outputs[0] == greedy.generate(target, ids, 40, stop)
    assert len(run.outputs[0]) == distance
    # The first token comes from the prompt; what is left takes a round for every four, and no draft too many.
    rest = distance - 1
    assert run.verify_steps == -(-rest // 4)
    assert sum(run.accepted) == rest - rest // 4


def test_prompts_add_up(target, perfect: drafter.Drafter) -> None:
    prompts = permutation.prompts()
    both = [prompts["covered-cycle"], prompts["uncovered-cycle"]]
    runs = [greedy.speculate(target, perfect, [ids], max_new_tokens=33) for ids in both]
    together = greedy.speculate(target, perfect, both, max_new_tokens=33)
    assert together.verify_steps == sum(run.verify_steps for run in runs)
    assert together.accepted == tuple(map(sum, zip(*(run.accepted for run in runs), strict=True)))
    assert together.outputs == runs[0].outputs + runs[1].outputs
