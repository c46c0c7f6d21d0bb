"""The three heads of the case study, made from the trained specimen: diagnosed, repaired, and served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.diagnosis import diagnose
from eagle3lab.repair import plan_repair, write_repair
from eagle3lab.serving.profiles import cpu
from lab.specimen.paths import drafter_dir, target_dir
from lab.specimen.trial import load_trial
from lab.specimen.variant import write_flat, write_variant
from tests.serving.engines import serve

RELEASE = "0.5.9"
ENGINE = f"sglang=={RELEASE}"
STEPS, TOKENS = 3, 40
# Each head: the algorithm it was served with, and the faults that a diagnosis names, the first one first.
STORY = {
    "as trained": ("EAGLE", ["names.dropped", "capture.algorithm"]),
    "double offset": ("EAGLE3", ["vocab.double-offset"]),
    "renamed": ("EAGLE", ["capture.algorithm"]),
}


def midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.")


def head(kind: str, out: Path) -> Path:
    trained = open_checkpoint(drafter_dir())
    if kind == "as trained":
        return write_flat(trained, out)
    if kind == "renamed":
        return write_flat(trained, out, rename=midlayer)
    renamed = open_checkpoint(write_flat(trained, out.with_name("renamed"), rename=midlayer))
    d2t = np.asarray(renamed.read("d2t"))
    return write_variant(renamed, out, replace={"d2t": d2t - np.arange(len(d2t))})


def command(drafter: Path, algorithm: str) -> str:
    return (
        f"python -m sglang.launch_server --model-path {target_dir()} --speculative-algorithm {algorithm} "
        f"--speculative-draft-model-path {drafter} --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4"
    )


def bytes_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {name: checkpoint.read_stored(name).tobytes() for name in checkpoint.tensors}


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, copies = tmp_path_factory.mktemp("case-study"), {}
    for number, kind in enumerate(STORY):
        broken = head(kind, folder / str(number) / "head")
        copies[kind] = folder / str(number) / "repaired"
        target = open_checkpoint(target_dir())
        write_repair(plan_repair(open_checkpoint(broken), ENGINE, target), copies[kind])
    return copies


@pytest.mark.parametrize("kind", STORY)
def test_each_head_is_diagnosed_as_in_the_story(kind: str, tmp_path: Path) -> None:
    algorithm, faults = STORY[kind]
    drafter = head(kind, tmp_path / "head")
    found = diagnose(drafter, target=target_dir(), engine=ENGINE, launch=command(drafter, algorithm))
    named = [one.fault for one in found.findings if one.severity == "error"]
    assert list(dict.fromkeys(named)) == faults
    # Names first, then capture: what hides the other comes before it in the order of repair.
    order = [one.fault for code in found.repair_order for one in found.findings if one.code == code]
    assert list(dict.fromkeys(order)) == faults


@pytest.mark.parametrize("kind", STORY)
def test_a_repaired_head_is_the_healthy_one_and_diagnosed_so(kind: str, repaired: dict[str, Path]) -> None:
    copy = repaired[kind]
    trained = {midlayer(name): data for name, data in bytes_of(open_checkpoint(drafter_dir())).items()}
    assert bytes_of(open_checkpoint(copy)) == trained
    found = diagnose(copy, target=target_dir(), engine=ENGINE, launch=command(copy, "EAGLE3"))
    assert (found.verdict, found.findings) == ("no-fault-found", ())


@pytest.mark.engine
@pytest.mark.server
def test_the_repaired_head_is_accepted_like_the_healthy_one(
    repaired: dict[str, Path], tmp_path: Path
) -> None:
    """All three copies hold the same tensors, so one of them is served."""
    trial = load_trial(4)
    healthy = trial.run(drafter_dir(), steps=STEPS, max_new_tokens=TOKENS)
    plan = cpu(str(target_dir()), str(repaired["double offset"]), release=RELEASE, algorithm="EAGLE3")
    with serve(RELEASE, tmp_path / "run", plan) as server:
        answers = server.generate(
            [list(prompt) for prompt in trial.prompts], TOKENS, concurrency=4, stop_at_eos=True
        )
    steps = sum(answer.meta["spec_verify_ct"] for answer in answers)
    accepted = sum(round(a.meta["spec_accept_rate"] * a.meta["spec_verify_ct"] * STEPS) for a in answers)
    assert [answer.token_ids for answer in answers] == list(healthy.outputs)
    # The last step of an answer can be cut short, which the two count differently.
    assert 1 + accepted / steps == pytest.approx(healthy.accept_length, abs=0.1)
    assert healthy.accept_length > 2.0
