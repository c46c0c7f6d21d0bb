"""Faults of the specimen's wiring, each found from the two forward passes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from lab.faults import Served
from lab.parity import ParityReport, compare_forwards
from lab.parity.compare import Comparison, causes, engine_steps, made_by
from lab.parity.trainer import load_trainer_head
from lab.reference import Drafter, Target, load_as_served
from lab.reference.forward import Place
from lab.specimen.variant import write_variant

OLD, NEW = "sglang==0.5.9", "sglang==0.5.23"
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def drafter(served: Served, target: Target) -> Drafter:
    return load_as_served(served.drafter, target, NEW).drafter


@pytest.fixture(scope="module")
def comparison(head: Path, target: Target, prompts: Prompts) -> Comparison:
    given = made_by(target, prompts, (2, 4, 5), (2, 4, 5))
    return Comparison(load_trainer_head(head, target), given, 2, 1e-4)


@pytest.fixture
def compare(served: Served, prompts: Prompts, tmp_path: Path):
    """Serve the healthy head with something changed."""

    def run(engine: str = NEW, *, trained: Path | None = None, **change) -> ParityReport:
        folder = write_variant(open_checkpoint(served.drafter), tmp_path / "head", **change)
        return compare_forwards(folder, served.target, engine, trained=trained, prompts=prompts)

    return run


def named(report: ParityReport) -> list[tuple[int, str]]:
    return [(one.stage.step, one.stage.name) for one in report.causes if not one.harmless]


def test_a_healthy_head_differs_in_the_first_position_alone(compare, head: Path) -> None:
    report = compare(trained=head)
    assert report.verdict == "absorbed" and named(report) == []
    assert report.first is not None and report.first.harmless and report.first.stage.name == "first position"
    differing = [(one.step, one.name) for one in report.stages if not one.carried.alike]
    turned = ("rotated queries", "rotated keys")
    assert differing == [(1, "first position"), *((step, name) for step in (1, 2) for name in turned)]
    assert all(one.own.alike for one in report.stages if one.name != "first position")
    assert report.worst_alike < 1e-5
    assert (report.sequences, report.tokens, report.source) == (2, 50, "target")


def test_counting_from_the_same_position_everything_is_equal(
    comparison: Comparison, drafter: Drafter
) -> None:
    one = replace(drafter, wiring=replace(drafter.wiring, first_position=1))
    stages = comparison.stages(one)
    assert all(stage.carried.alike and stage.own.alike for stage in stages)
    # The same numbers, one position further: the first position is named again.
    two = replace(drafter, wiring=replace(drafter.wiring, first_position=2))
    found = causes(comparison.stages(two), two, two.shape, comparison.own)
    assert [(one.stage.name, one.harmless) for one in found] == [("first position", True)]


def test_draft_steps_that_skip_a_position(compare, head: Path) -> None:
    report = compare(OLD, trained=head)
    assert report.verdict == "differ" and named(report) == [(2, "positions")]
    assert all(one.carried.alike for one in report.stages if one.step == 1 and one.name == "logits")


@pytest.mark.parametrize("engine", [OLD, NEW])
def test_norm_before_residual(compare, engine: str) -> None:
    """The config says it, the trainer does it, SGLang does not read it: no second folder is needed."""
    report = compare(engine, config={"norm_before_residual": True})
    assert report.verdict == "differ" and report.first is not None
    assert (report.first.stage.step, report.first.stage.name) == (1, "attention residual")
    assert "norm_before_residual" in report.first.meaning
    before = [one for one in report.stages if one.step == 1 and one.name == "attention"]
    assert before[0].carried.alike


@pytest.mark.parametrize(("base", "words"), [(5e5, "500000"), (100.0, "100")])
def test_rotary_base(compare, head: Path, base: float, words: str) -> None:
    report = compare(trained=head, config={"rope_theta": base})
    assert report.verdict == "differ" and named(report) == [(1, "rotated queries")]
    assert report.first is not None
    assert report.first.meaning == f"rotary base {words} in the engine, 10000 in training"


def test_rotary_base_that_a_release_does_not_read(compare) -> None:
    """Written as transformers 5 writes it; releases before 0.5.12 look for rope_theta at the top level."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    report = compare(OLD, config=rope, without_config=["rope_theta"])
    assert named(report)[0] == (1, "rotated queries")
    assert report.first is not None and "base 10000 in the engine, 100 in" in report.first.meaning


def test_positions_divided(compare, head: Path) -> None:
    report = compare(trained=head, config={"rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    assert report.first is not None and "divided by 4 in the engine, by 1" in report.first.meaning


def test_recurrence_behind_the_norm(compare, head: Path) -> None:
    """Stated for an engine that reads it and not trained; then trained for one that does not read it."""
    report = compare(NEW, trained=head, config={"norm_output": True})
    assert report.verdict == "differ" and named(report) == [(1, "recurrence")]
    assert report.first is not None and "norm_output" in report.first.meaning
    assert next(one for one in report.stages if one.name == "logits").carried.alike


def test_recurrence_that_a_release_does_not_read(compare) -> None:
    report = compare(OLD, config={"norm_output": True})
    assert named(report) == [(1, "recurrence"), (2, "positions")]


def test_two_faults_are_both_named(
    compare, head: Path, served: Served, tmp_path: Path, prompts: Prompts
) -> None:
    trained = write_variant(
        open_checkpoint(served.drafter), tmp_path / "trained", config={"norm_before_residual": True}
    )
    report = compare(trained=trained, config={"rope_theta": 100.0})
    assert named(report) == [(1, "rotated queries"), (1, "attention residual")]


def test_other_layers_and_an_absolute_map(compare, head: Path) -> None:
    """The states and the token map, before the layer and behind it."""
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True}
    d2t = open_checkpoint(head).read("d2t")
    absolute = np.minimum(d2t + np.arange(len(d2t)), 1023 - np.arange(len(d2t)))
    report = compare(trained=head, config={"eagle_config": ids}, replace={"d2t": absolute})
    assert named(report) == [(1, "target states"), (1, "drafted tokens")]


def test_one_state_for_three_skips_fc(compare, head: Path) -> None:
    report = compare(trained=head, config={"eagle_config": {"use_aux_hidden_state": False}})
    assert report.first is not None and report.first.stage.name == "target states"
    assert report.first.stage.own.shapes == ((50, 384), (50, 128))


def test_names_that_are_dropped(served: Served, head: Path, prompts: Prompts, tmp_path: Path) -> None:
    folder = write_variant(
        open_checkpoint(served.drafter),
        tmp_path / "head",
        rename=lambda name: name.replace("midlayer.", "layers.0."),
    )
    report = compare_forwards(folder, served.target, OLD, trained=head, prompts=prompts)
    assert {"queries", "keys", "values", "attention", "mlp"} <= {name for _, name in named(report)}
    assert report.verdict == "differ"
    assert any("10 tensors of the drafter are dropped" in note for note in report.notes)


def test_the_stages_are_the_reference_drafter(drafter: Drafter, target: Target, prompts: Prompts) -> None:
    """What is compared is what is held against the real servers: the same numbers, over two steps."""
    [given, _] = made_by(target, prompts, (2, 4, 5), (2, 4, 5))
    count = len(given.tokens)
    zero = torch.zeros(1, dtype=torch.int64)
    caches = drafter.caches(1, 2 * count)
    tokens, place = given.tokens[None], Place.after(zero, count)
    passed = drafter.forward(tokens, given.served_states[None], place, caches, own=False)
    first, second = engine_steps(drafter, given, 2)
    assert first["logits"].allclose(passed["logits"][0], atol=1e-5)
    assert first["recurrence"].allclose(passed["recurrence"][0], atol=1e-4)
    shifted = torch.cat([given.tokens[1:], zero])
    last = count - 2  # the chain of the last token but one, which has a token to go on with
    slots = torch.tensor([[count]])
    seen = torch.cat([torch.arange(count) <= last, torch.tensor([True])])[None, None]
    chained = drafter.forward(
        shifted[None, last : last + 1],
        passed["recurrence"][:, last : last + 1],
        Place(slots, torch.tensor([[last + 1]]), seen),
        caches,
        own=True,
    )
    assert second["logits"][last].allclose(chained["logits"][0, 0], atol=1e-5)


def test_the_trainer_is_speculators_own_forward(head: Path, target: Target, prompts: Prompts) -> None:
    """Its drafts are those that an unwatched forward returns, and nothing stays hooked."""
    trainer = load_trainer_head(head, target)
    [given, _] = made_by(target, prompts, (2, 4, 5), (2, 4, 5))
    traced = trainer.trace(given.tokens, given.trained_states, 2)
    with torch.inference_mode():
        drafts = trainer.model(
            hidden_states=given.trained_states[None],
            input_ids=given.tokens[None],
            document_ids=torch.zeros(1, len(given.tokens), dtype=torch.int64),
            ttt_steps=2,
        )
    for step, values in zip(drafts, traced, strict=True):
        assert values["logits"].argmax(-1).equal(step[0])
    assert not any(module._forward_hooks for module in trainer.model.modules())


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_speculators_is_asked_for(served: Served, prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "speculators.models.eagle3", None)
    with pytest.raises(InputError, match="needs the speculators library"):
        compare_forwards(served.drafter, served.target, NEW, prompts=prompts)


@pytest.mark.parametrize("prompt", [[5], [5, 1024], [-1, 5]])
def test_prompts_that_cannot_be_run(served: Served, head: Path, prompt: list[int]) -> None:
    with pytest.raises(InputError, match="too short, or has a token beyond"):
        compare_forwards(served.drafter, served.target, NEW, trained=head, prompts=[prompt])


def test_only_sglang_is_followed(served: Served, head: Path) -> None:
    with pytest.raises(InputError, match="follows SGLang's releases, not vllm"):
        compare_forwards(served.drafter, served.target, "vllm==0.32.0", trained=head)


def test_what_an_engine_does_not_serve(served: Served, head: Path, prompts: Prompts) -> None:
    with pytest.raises(InputError, match="does not serve this: ValueError"):
        compare_forwards(head, served.target, NEW, prompts=prompts)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"drop": ["d2t"]}, "has no d2t"),
        ({"drop": ["norm.weight"]}, "fills model.norm.weight|is missing"),
        ({"config": {"num_hidden_layers": 2}}, "layers"),
        ({"config": {"bias": True}}, "bias|does not serve"),
        ({"replace": {"extra.weight": np.zeros(3, dtype=np.float32)}}, "nothing that speculators"),
    ],
)
def test_heads_that_speculators_cannot_be(
    served: Served, compare, tmp_path: Path, change, problem: str
) -> None:
    trained = write_variant(open_checkpoint(served.drafter), tmp_path / "trained", **change)
    with pytest.raises(InputError, match=problem):
        compare(trained=trained)
