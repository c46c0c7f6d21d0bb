"""Drafting, verifying and counting, on drafters made to order."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from lab.reference import (
    Drafter,
    Speculation,
    Target,
    generate,
    load_as_trained,
    load_reference_target,
    speculate,
)
from lab.specimen import permutation, permutation_dir, target_dir
from lab.specimen.target import load_target
from lab.specimen.trial import Trial, load_trial


@pytest.fixture(scope="module")
def trial() -> Trial:
    return load_trial(prompts=6)


def test_formulas() -> None:
    rounds = ((0, 1, 2, 3, 1), (2, 0, 1, 2, 3))
    run = Speculation(steps=3, rounds=rounds, outputs=())
    assert run.verify_steps == 10
    assert run.accepted == (8, 5, 2)
    assert run.accept_length == 2.5
    assert run.accept_rate == 0.5
    assert run.position_rates == (0.8, 0.5, 0.2)


@pytest.mark.parametrize("steps", [1, 2, 5, 7])
def test_any_number_of_draft_steps(permuting: Target, perfect: Drafter, steps: int) -> None:
    ids = permutation.prompts()["covered-cycle"]
    run = speculate(permuting, perfect, [ids], steps=steps, max_new_tokens=40)
    assert run.accept_length == steps + 1
    assert run.outputs == generate(permuting, [ids], 40)


@pytest.mark.parametrize("distance", range(1, 10))
def test_an_answer_ends_at_its_stop_id(permuting: Target, perfect: Drafter, distance: int) -> None:
    ids = permutation.prompts()["covered-cycle"]
    stop = {permutation.cycles()[0][len(ids) - 1 + distance]}
    run = speculate(permuting, perfect, [ids], max_new_tokens=40, stop_ids=stop)
    assert run.outputs == generate(permuting, [ids], 40, stop)
    assert len(run.outputs[0]) == distance
    # The first token comes from the prompt; what is left takes a round for every four, all of whose drafts count.
    assert run.rounds == ((3,) * -(-(distance - 1) // 4),)


def test_prompts_go_together_as_each_would_alone(trial: Trial) -> None:
    from lab.specimen import drafter_dir

    drafter = load_as_trained(drafter_dir(), trial.target)
    together = speculate(trial.target, drafter, trial.prompts, max_new_tokens=24, stop_ids=trial.stop_ids)
    for number, prompt in enumerate(trial.prompts):
        alone = speculate(trial.target, drafter, [prompt], max_new_tokens=24, stop_ids=trial.stop_ids)
        assert alone.outputs == (together.outputs[number],)
        assert alone.rounds == (together.rounds[number],)


def test_the_target_is_transformers_target(trial: Trial) -> None:
    """The same greedy answers, and the same logits behind the last token, from the real class."""
    real = load_target(target_dir())
    for prompt, answer in zip(trial.prompts, generate(trial.target, trial.prompts, 20), strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = real.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=20,
                do_sample=False,
                eos_token_id=-1,
            )
        assert tuple(output[0, len(prompt) :].tolist()) == answer


@pytest.mark.parametrize(("topk", "nodes"), [(2, 4), (2, 6), (4, 8), (3, 13)])
def test_a_tree_accepts_no_less_and_changes_nothing(trial: Trial, topk: int, nodes: int) -> None:
    from lab.specimen import drafter_dir

    drafter = load_as_trained(drafter_dir(), trial.target)
    asked = {"max_new_tokens": 32, "stop_ids": trial.stop_ids}
    chain = speculate(trial.target, drafter, trial.prompts, **asked)
    tree = speculate(trial.target, drafter, trial.prompts, topk=topk, draft_tokens=nodes, **asked)
    assert tree.outputs == chain.outputs
    assert tree.position_rates[0] >= chain.position_rates[0]
    if nodes > 2 * topk:
        assert tree.accept_length > chain.accept_length


def test_a_tree_of_one_branch_is_a_chain(permuting: Target) -> None:
    drafter = load_as_trained(permutation_dir("copies-one-state"), permuting)
    ids = list(permutation.prompts().values())
    chain = speculate(permuting, drafter, ids, max_new_tokens=40)
    assert speculate(permuting, drafter, ids, max_new_tokens=40, draft_tokens=9) == chain


def test_a_second_candidate_is_taken_where_the_first_is_wrong(permuting: Target) -> None:
    """A head that always prefers one wrong token: a chain gets nothing, the second of two branches is right."""
    drafter = load_as_trained(permutation_dir("copies-one-state"), permuting)
    ids = permutation.prompts()["covered-cycle"]
    head = drafter.lm_head.clone()
    head[0, 16] = 3.0  # every state holds the constant of its embedding there
    wrong = replace(drafter, lm_head=head)
    chain = speculate(permuting, wrong, [ids], steps=1, max_new_tokens=31)
    tree = speculate(permuting, wrong, [ids], steps=1, topk=2, draft_tokens=3, max_new_tokens=31)
    assert chain.accept_length == 1.0
    assert tree.accept_length == 2.0
    assert tree.outputs == chain.outputs


def test_a_model_that_is_no_plain_llama_is_refused(tmp_path) -> None:
    from eagle3lab.errors import InputError

    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="plain Llama"):
        load_reference_target(tmp_path)
