"""A drafter tried out beside the specimen's target."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.checkpoint import open_checkpoint
from lab.specimen import drafter_dir
from lab.specimen.trial import Trial, load_trial
from lab.specimen.variant import write_variant


@pytest.fixture(scope="module")
def trial() -> Trial:
    return load_trial(prompts=2)


def test_the_layers_name_makes_no_difference_to_a_reader_that_knows_both(
    trial: Trial, tmp_path: Path
) -> None:
    source = open_checkpoint(drafter_dir())
    renamed = write_variant(
        source, tmp_path / "renamed", rename=lambda name: name.replace("layers.0.", "midlayer.")
    )
    assert trial.run(renamed, max_new_tokens=16) == trial.run(drafter_dir(), max_new_tokens=16)


def test_a_layer_that_never_arrived_costs_the_acceptance_and_not_the_output(trial: Trial) -> None:
    whole = trial.run(drafter_dir(), max_new_tokens=24)
    names = open_checkpoint(drafter_dir()).tensors
    layer = [name.removeprefix("layers.0.") for name in names if name.startswith("layers.0.")]
    assert len(layer) == 10
    layerless = trial.run(drafter_dir(), max_new_tokens=24, drop=layer)
    assert layerless.outputs == whole.outputs
    assert layerless.accept_length < whole.accept_length - 0.5


def test_prompts_come_from_both_kinds_in_turn(trial: Trial) -> None:
    assert len(set(trial.prompts)) == 2
    assert len(set(load_trial(prompts=5).prompts)) == 5
