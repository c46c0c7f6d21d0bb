"""What a release makes of a folder: the reference's load, against what is known of the releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from eagle3lab.checkpoint import open_checkpoint
from lab.faults import write_healthy
from lab.reference import (
    EngineStops,
    Target,
    Wiring,
    load_as_served,
    load_as_trained,
    speculate,
)
from lab.reference.forward import Place
from lab.specimen import drafter_dir, permutation, permutation_dir
from lab.specimen.trial import Trial, load_trial
from lab.specimen.variant import write_variant

OLD, NEW = "sglang==0.5.9", "sglang==0.5.23"
CYCLE = [permutation.prompts()["covered-cycle"]]


@pytest.fixture(scope="module")
def trial() -> Trial:
    return load_trial(prompts=4)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The specimen's head as every release reads it."""
    return write_healthy(tmp_path_factory.mktemp("served") / "head").drafter


def changed(served: Path, out: Path, **change) -> Path:
    return write_variant(open_checkpoint(served), out / "head", **change)


def test_a_healthy_head_drafts_as_trained(trial: Trial, served: Path) -> None:
    trained = trial.run(drafter_dir(), max_new_tokens=32)
    assert trial.run(served, max_new_tokens=32, engine=NEW) == trained
    assert load_as_served(served, trial.target, NEW).drafter.wiring == Wiring(capture=(2, 4, 5))


def test_releases_before_0_5_12_skip_a_position(trial: Trial, served: Path) -> None:
    """Their draft steps run one position too far: the first draft is the same, later ones need not be."""
    old, new = (load_as_served(served, trial.target, engine).drafter for engine in (OLD, NEW))
    assert (old.wiring.position_gap, new.wiring.position_gap) == (1, 0)
    one = [speculate(trial.target, head, trial.prompts, steps=1, max_new_tokens=32) for head in (old, new)]
    assert one[0] == one[1]
    assert load_as_served(served, trial.target, "sglang==0.5.11").drafter.wiring.position_gap == 1
    assert load_as_served(served, trial.target, "sglang==0.5.12").drafter.wiring.position_gap == 0


def test_old_triton_backends_count_accepted_tokens_twice(trial: Trial, served: Path) -> None:
    def twice(engine: str, backend: str) -> bool:
        head = load_as_served(served, trial.target, engine, attention_backend=backend).drafter
        return head.wiring.accepted_twice

    assert twice(OLD, "triton") and not twice(OLD, "flashinfer")
    assert twice("sglang==0.5.13", "triton") and not twice("sglang==0.5.14", "triton")


def test_a_doubled_place_counts_new_tokens_twice() -> None:
    """Two tokens behind one: what was there counts once, what is new once for all and once in its order."""
    place = Place.after(torch.tensor([1]), 3).doubled(torch.tensor([2]))
    assert place.seen[0].exp().round().int().tolist() == [[1, 2, 1, 0], [1, 2, 2, 0], [1, 2, 2, 1]]


def test_dropped_names_leave_noise(permuting: Target, tmp_path: Path) -> None:
    source = open_checkpoint(permutation_dir("uses-every-tensor"))
    folder = write_variant(
        source, tmp_path / "head", rename=lambda name: name.replace("midlayer.", "layers.0.")
    )
    old, new = (load_as_served(folder, permuting, engine) for engine in (OLD, NEW))
    assert len(old.dropped) == 10
    assert len(old.uninitialised) == 4  # qkv, o, gate and up, down; the norms stay at one
    assert new.dropped == new.uninitialised == ()
    assert speculate(permuting, old.drafter, CYCLE, max_new_tokens=40).accept_length < 1.1
    assert speculate(permuting, new.drafter, CYCLE, max_new_tokens=40).accept_length == 4.0


def test_noise_is_seeded(permuting: Target, tmp_path: Path) -> None:
    folder = write_variant(
        open_checkpoint(permutation_dir("uses-every-tensor")), tmp_path / "head", drop=["lm_head.weight"]
    )
    heads = [load_as_served(folder, permuting, NEW, seed=seed).drafter.lm_head for seed in (1, 1, 2)]
    assert heads[0].equal(heads[1])
    assert not heads[0].equal(heads[2])


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN"])
@pytest.mark.parametrize("engine", [OLD, NEW])
def test_another_algorithm_takes_head_and_states_from_the_target(
    trial: Trial, served: Path, engine: str, algorithm: str
) -> None:
    head = load_as_served(served, trial.target, engine, algorithm=algorithm).drafter
    assert head.wiring.capture is None
    assert head.token_ids is None
    assert head.lm_head.equal(trial.target.lm_head[:704])


def test_one_state_skips_fc(trial: Trial, served: Path, tmp_path: Path) -> None:
    """As wide as the embedding, it goes into the layer as it is: fc may hold anything."""
    off = {"eagle_config": {"use_aux_hidden_state": False}}
    plain = changed(served, tmp_path / "a", config=off)
    emptied = changed(
        served,
        tmp_path / "b",
        config=off,
        replace={"fc.weight": np.zeros((128, 384), dtype=np.float32)},
    )
    assert trial.run(plain, engine=NEW) == trial.run(emptied, engine=NEW)
    assert trial.run(plain, engine=NEW) != trial.run(served, engine=NEW)


@pytest.mark.parametrize(
    ("ids", "points"), [([1, 3, 4], (2, 4, 5)), ([2, 4, 5], (3, 5, 6)), (None, (2, 4, 5))]
)
def test_ids_name_outputs(trial: Trial, served: Path, tmp_path: Path, ids, points) -> None:
    config = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    head = load_as_served(changed(served, tmp_path, config=config), trial.target, OLD).drafter
    assert head.wiring.capture == points


@pytest.mark.parametrize("engine", [OLD, NEW])
def test_a_layer_that_is_not_there_ends_the_engine(
    trial: Trial, served: Path, tmp_path: Path, engine: str
) -> None:
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}}
    with pytest.raises(EngineStops, match="RuntimeError"):
        trial.run(changed(served, tmp_path, config=ids), engine=engine)


def test_a_target_without_the_hook_ends_the_engine(trial: Trial, served: Path) -> None:
    other = replace(trial.target, config={**trial.target.config, "architectures": ["XverseForCausalLM"]})
    for engine in (OLD, NEW):
        with pytest.raises(EngineStops):
            load_as_served(served, other, engine)
        load_as_served(served, other, engine, algorithm="EAGLE")


@pytest.mark.parametrize(
    ("change", "exception"),
    [
        ({"config": {"architectures": ["LlamaForCausalLM"]}}, "ValueError"),
        ({"config": {"target_hidden_size": None}}, "TypeError"),
        ({"without_config": ["draft_vocab_size"]}, "AttributeError"),
        ({"replace": {"fc.weight": np.zeros((128, 383), dtype=np.float32)}}, "AssertionError"),
    ],
)
def test_what_the_engine_refuses(trial: Trial, served: Path, tmp_path: Path, change, exception: str) -> None:
    with pytest.raises(EngineStops) as stop:
        load_as_served(changed(served, tmp_path, **change), trial.target, NEW)
    assert stop.value.exception == exception


def test_norms_and_switches_of_the_trainer(trial: Trial, served: Path, tmp_path: Path) -> None:
    config = {"norm_before_residual": True, "norm_output": True}
    folder = changed(served, tmp_path, config=config)
    trained = load_as_trained(folder, trial.target).wiring
    assert (trained.residual_normed, trained.recurrence_normed) == (True, True)
    old, new = (load_as_served(folder, trial.target, engine).drafter.wiring for engine in (OLD, NEW))
    assert (old.residual_normed, old.recurrence_normed) == (False, False)
    assert (new.residual_normed, new.recurrence_normed) == (False, True)


def test_rope_is_read_where_the_release_reads_it(trial: Trial, served: Path, tmp_path: Path) -> None:
    nested = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    folder = changed(served, tmp_path, config=nested, without_config=["rope_theta", "rope_scaling"])
    new = load_as_served(folder, trial.target, NEW).drafter.shape
    old = load_as_served(folder, trial.target, OLD).drafter.shape
    assert (new.rope_base, new.rope_factor) == (5e5, 2.0)
    assert (old.rope_base, old.rope_factor) == (1e4, 1.0)


def test_rows_that_the_engine_pads_the_head_with_are_never_drafted(
    trial: Trial, served: Path, tmp_path: Path
) -> None:
    """Engines pad the head to a multiple of 64 rows and cut the scores off again."""
    head = open_checkpoint(served)
    rows = np.asarray(head.read("lm_head.weight"), dtype=np.float32)[:48].copy()
    fewer = {"lm_head.weight": rows, "d2t": np.asarray(head.read("d2t"))[:48].copy()}
    folder = write_variant(
        head, tmp_path / "head", replace=fewer, drop=["t2d"], config={"draft_vocab_size": 48}
    )
    loaded = load_as_served(folder, trial.target, NEW)
    assert loaded.drafter.lm_head.shape[0] == 48 and not loaded.uninitialised
    assert set(loaded.dropped) == set()
