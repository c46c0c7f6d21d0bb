"""Recordings of any shape: they are read, replayed or refused, and nothing else happens."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle3lab.errors import InputError
from lab.faults import Served
from lab.parity.compare import check_tokens
from lab.parity.recording import read_passes, replay, sequences
from lab.reference import EngineStops, Target, load_as_served

small = st.integers(-3, 6)
numbers = st.lists(small, min_size=0, max_size=4)
one_pass = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["extend", "draft_extend", "decode", "odd"]),
        "step": st.sampled_from(["", "0", "1", "2", "x", "-1"]),
        "rows": st.integers(0, 4),
        "width": st.sampled_from([128, 384, 384, 384, 256]),
        "ids": st.none() | st.none() | st.none() | numbers,
        "positions": st.none() | small | small | st.sampled_from([10**6, -(2**31)]) | numbers,
        "extend_seq_lens": st.none() | st.just("rows") | numbers,
        "seq_lens": st.none() | small | numbers,
        "logits": st.none() | st.tuples(st.integers(0, 4), st.sampled_from([704, 3])),
        "value": st.sampled_from([0.0, 1.0, float("nan"), float("inf")]),
    }
)


def write(folder: Path, number: int, one: dict) -> None:
    tensors = {
        "hidden_states": torch.full((one["rows"], one["width"]), one["value"]),
        "input_ids": torch.tensor([5] * one["rows"] if one["ids"] is None else one["ids"], dtype=torch.int64),
    }
    starts = one["positions"]
    rows = list(range(starts, starts + one["rows"])) if isinstance(starts, int) else starts
    lengths = [one["rows"]] if one["extend_seq_lens"] == "rows" else one["extend_seq_lens"]
    whole = [one["seq_lens"]] if isinstance(one["seq_lens"], int) else one["seq_lens"]
    for name, values in (("positions", rows), ("extend_seq_lens", lengths), ("seq_lens", whole)):
        if values is not None:
            tensors[name] = torch.tensor(values, dtype=torch.int32)
    if one["logits"] is not None:
        tensors["logits"] = torch.zeros(one["logits"])
    metadata = {"phase": one["phase"], "step": one["step"]}
    save_file(tensors, folder / f"boundary-0-1-{number}.safetensors", metadata=metadata)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(passes=st.lists(one_pass, min_size=1, max_size=4))
def test_any_recording(served: Served, target: Target, passes: list[dict]) -> None:
    drafter = load_as_served(served.drafter, target, "sglang==0.5.23").drafter
    with tempfile.TemporaryDirectory() as name:
        for number, one in enumerate(passes):
            write(Path(name), number, one)
        try:
            read = read_passes(Path(name))
            check_tokens(read, target)
            found, _ = replay(drafter, read)
            prompts, _ = sequences(read, 8, 64)
        except (InputError, EngineStops) as error:
            assert str(error)
            return
        assert len(found) <= len(read)
        assert all(len(one.tokens) == len(one.served_states) > 1 for one in prompts)
