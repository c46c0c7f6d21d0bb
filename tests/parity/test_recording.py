"""A recording of the boundary instead of the target: read, compared, replayed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from lab.faults import Served
from lab.parity import compare_forwards
from lab.parity.compare import made_by, only_matrices
from lab.parity.recording import read_passes, replay, sequences
from lab.reference import Drafter, Target, load_as_served
from lab.reference.forward import Place
from lab.specimen.variant import write_variant

NEW = "sglang==0.5.23"
Prompts = list[list[int]]


def save(folder: Path, step: int, phase: str, **tensors: torch.Tensor) -> Path:
    path = folder / f"boundary-0-4711-{step}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"phase": phase, "step": str(step)}
    save_file({name: one.contiguous() for name, one in tensors.items()}, path, metadata=metadata)
    return path


@pytest.fixture(scope="module")
def drafter(served: Served, target: Target) -> Drafter:
    return load_as_served(served.drafter, target, NEW).drafter


@pytest.fixture(scope="module")
def recording(drafter: Drafter, target: Target, prompts: Prompts, tmp_path_factory) -> Path:
    """What a probe would keep of one request: its prompt, two draft steps, two tokens accepted and one of padding."""
    run = tmp_path_factory.mktemp("run")
    folder = run / "events"
    [given, _] = made_by(target, prompts, (2, 4, 5), (2, 4, 5))
    prompt = len(given.tokens) - 3
    caches = drafter.caches(1, 64)

    def go(step: int, phase: str, start: int, tokens: torch.Tensor, states: torch.Tensor, length: int):
        place = Place.after(torch.tensor([start]), len(tokens))
        passed = drafter.forward(tokens[None], states[None], place, caches, own=phase == "decode")
        logits, output = passed["logits"], passed["recurrence"]
        extra = {} if phase == "decode" else {"extend_seq_lens": torch.tensor([len(tokens)])}
        save(
            folder,
            step,
            phase,
            hidden_states=states,
            input_ids=tokens,
            positions=place.positions[0],
            seq_lens=torch.tensor([length]),
            logits=logits[0, -1:] if phase == "extend" else logits[0],
            output_states=output[0, -1:] if phase == "extend" else output[0],
            **extra,
        )
        return output[0]

    rows = slice(0, prompt)
    state = go(0, "extend", 0, given.tokens[rows], given.served_states[rows], prompt)[-1:]
    for step in (1, 2):
        state = go(step, "decode", prompt + step - 1, torch.tensor([50 + step]), state, prompt)
    rows = slice(prompt, prompt + 3)
    state = go(3, "draft_extend", prompt, given.tokens[rows], given.served_states[rows], prompt + 3)
    go(4, "decode", prompt + 2, torch.tensor([99]), state[1:2], prompt + 2)
    return run


def test_a_recording_needs_no_layers_of_the_target(
    served: Served, head: Path, recording: Path, tmp_path: Path
) -> None:
    matrices = write_variant(
        open_checkpoint(served.target), tmp_path / "target", drop=["model.layers.*", "model.norm.weight"]
    )
    report = compare_forwards(served.drafter, matrices, NEW, trained=head, events=recording)
    assert (report.verdict, report.source, report.sequences) == ("absorbed", "recording", 1)
    assert [one.phase for one in report.replayed] == ["extend", "decode", "decode", "draft_extend", "decode"]
    assert all(one.alike for one in report.replayed)
    given = [report.replayed[number].given for number in (1, 4)]
    assert all(one is not None and one.max_abs == 0 for one in given)


def test_a_server_that_does_something_else_is_told(drafter: Drafter, recording: Path) -> None:
    """The recording against an engine's side that normalises its recurrence, and one of another base."""
    passes = read_passes(recording)
    normed = replace(drafter, wiring=replace(drafter.wiring, recurrence_normed=True))
    other = replace(drafter, shape=replace(drafter.shape, rope_base=100.0))
    assert [one.alike for one in replay(drafter, passes)[0]] == [True] * 5
    assert not any(one.states.alike for one in replay(normed, passes)[0] if one.states is not None)
    assert not replay(other, passes)[0][0].alike
    gap = replace(drafter, wiring=replace(drafter.wiring, position_gap=1))
    positions = [(one.first_position, one.expected_position) for one in replay(gap, passes)[0]]
    assert [a - b for a, b in positions[:3]] == [0, -1, -1]


def test_passes_of_several_requests_are_not_replayed(drafter: Drafter, recording: Path) -> None:
    first, *others = read_passes(recording)
    found, [note] = replay(drafter, [replace(first, lengths=(10, len(first.tokens) - 10)), *others])
    assert found == () and note.startswith("5 recorded passes")
    beyond = replace(first, positions=first.positions * 10**9)
    assert replay(drafter, [beyond, *others]) == ((), (note,))


def test_a_fault_shows_in_a_recording(served: Served, head: Path, recording: Path, tmp_path: Path) -> None:
    folder = write_variant(open_checkpoint(served.drafter), tmp_path / "head", config={"rope_theta": 100.0})
    report = compare_forwards(folder, served.target, NEW, trained=head, events=recording / "events")
    assert report.first is not None and report.first.stage.name == "rotated queries"
    assert not all(one.alike for one in report.replayed), "the recording is of the healthy head"


def test_a_server_counting_from_one(
    served: Served, head: Path, target: Target, tmp_path: Path, prompts
) -> None:
    """Where the positions were recorded, they are the server's word."""
    [given, _] = made_by(target, prompts, (2, 4, 5), (2, 4, 5))
    save(
        tmp_path,
        0,
        "extend",
        hidden_states=given.served_states.bfloat16(),
        input_ids=given.tokens,
        positions=1 + torch.arange(len(given.tokens)),
    )
    report = compare_forwards(served.drafter, served.target, NEW, trained=head, events=tmp_path)
    assert report.verdict == "alike" and report.causes == ()


def test_a_prefix_from_a_cache_is_no_beginning(drafter: Drafter, recording: Path, tmp_path: Path) -> None:
    """One cached token in front of a pass looks like counting from one, but for the length of the request."""
    first, *others = read_passes(recording)
    assert first.before == (0,)
    cached = replace(first, before=(1,), positions=first.positions + 1)
    assert replay(drafter, [cached, *others])[0] == ()
    given, notes = sequences([first, cached], 8, 20)
    assert len(given) == 1 and len(given[0].tokens) == 20
    assert notes == (
        "1 recorded prompts begin after their first token and were left out",
        "1 prompts were cut to 20 tokens",
    )


def test_a_run_folder_says_how_it_was_launched(
    served: Served, head: Path, recording: Path, tmp_path: Path
) -> None:
    """An old release and Triton: draft steps a position further, accepted tokens counted twice."""
    run = shutil.copytree(recording, tmp_path / "run")
    plan = {
        "engine": {"release": "0.5.9"},
        "plan": {"algorithm": "EAGLE3", "backends": {"attention": "triton"}},
    }
    (run / "plan.json").write_text(json.dumps(plan))
    report = compare_forwards(served.drafter, served.target, "sglang==0.5.9", trained=head, events=run)
    assert any("counts accepted tokens twice" in note for note in report.notes)
    assert report.replayed[0].alike and not report.replayed[1].alike, "the recording follows 0.5.23"


def test_only_matrices_of_a_wrapped_target(target: Target, served: Served, tmp_path: Path) -> None:
    folder = write_variant(
        open_checkpoint(served.target), tmp_path / "target", rename=lambda name: f"language_model.{name}"
    )
    assert only_matrices(folder).embedding.equal(target.embedding)


T = torch.zeros(3, 384)
IDS = torch.tensor([5, 6, 7])


@pytest.mark.parametrize(
    ("phase", "tensors", "problem"),
    [
        ("extend", {"input_ids": IDS}, "tensor 'hidden_states': is not in this recording"),
        ("extend", {"hidden_states": T}, "tensor 'input_ids': is not in this recording"),
        ("extend", {"hidden_states": T[0], "input_ids": IDS}, "has shape"),
        ("extend", {"hidden_states": T[:2], "input_ids": IDS}, "different lengths"),
        ("extend", {"hidden_states": T, "input_ids": IDS + 1020}, "outside the target's vocabulary"),
        ("extend", {"hidden_states": T, "input_ids": IDS - 6}, "outside the target's vocabulary"),
        (
            "extend",
            {"hidden_states": T[:, :128], "input_ids": IDS},
            "128 wide, and the trainer's fc takes 384",
        ),
        ("decode", {"hidden_states": T, "input_ids": IDS}, "no pass over a whole prompt"),
        (
            "extend",
            {"hidden_states": T, "input_ids": IDS, "positions": IDS + 0},
            "no pass over a whole prompt",
        ),
    ],
)
def test_recordings_that_are_none(
    served: Served, head: Path, tmp_path: Path, phase: str, tensors: dict[str, torch.Tensor], problem: str
) -> None:
    save(tmp_path, 0, phase, **tensors)
    with pytest.raises(InputError, match=problem):
        compare_forwards(served.drafter, served.target, NEW, trained=head, events=tmp_path)


def test_folders_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_passes(tmp_path / "nothing")
    with pytest.raises(InputError, match="holds no recorded tensors"):
        read_passes(tmp_path)
    (tmp_path / "boundary-0-1-0.safetensors").write_bytes(b"\x10" * 40)
    with pytest.raises(InputError, match="cannot be read"):
        read_passes(tmp_path)
