"""The probe's events: written, read back, and read when they are damaged or not events at all."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.errors import InputError
from eagle3lab.runs.events import (
    SCHEMA_VERSION,
    AnyEvent,
    Attached,
    Boundary,
    Built,
    Captured,
    Configured,
    Counters,
    EventWriter,
    Guarded,
    Loaded,
    Quiet,
    Shared,
    TokenMap,
    Verified,
    rank_file,
    read_events,
    read_rank,
)

ATTACHED = Attached(
    time=1.0, schema_version=SCHEMA_VERSION, release="0.5.23", pid=7, tp_rank=0, tp_size=1, dp_rank=None,
    ways=["load_weights: plugin"], missing=[],
)  # fmt: skip
HOSTILE = "\x1b[31mred\u202e\n名"
EVENTS: list[AnyEvent] = [
    ATTACHED,
    Built(
        time=2.0, role="drafter", cls="LlamaForCausalLMEagle3", module="m", architectures=["A"], hidden_size=64,
        fc_in=192, fc_out=64, draft_vocab_size=None, parameters=11,
    ),
    Configured(
        time=2.5, algorithm="EAGLE3", steps=3, topk=1, draft_tokens=4, target="t", drafter="d",
        use_aux_hidden_state=None, target_vocab_size=512,
    ),
    Loaded(time=3.0, offered=2, placed={HOSTILE: ["fc.weight"]}, dropped=["x"], never_written=[]),
    TokenMap(time=3.0, present=False),
    Shared(time=4.0, call="set_embed", embed=True, head=False),
    Captured(time=4.0, chain=["A", "B"], given=None, layers=[2, 6, 9]),
    Boundary(
        time=5.0, step=0, phase="extend", hidden_shape=[5, 192], embeds_shape=[5, 64], fc_ran=True,
        hidden_norm=None, embeds_norm=1.5,
    ),
    Verified(time=6.0, step=0, draft_tokens=4, accepted=[3, 0], requests=["a", "b"]),
    Guarded(time=6.0, stage="start", faults=["dropped-names"], text="…"),
    Quiet(time=7.0, where="boundary", problem="ValueError: no"),
    Counters(
        time=8.0, verify_steps=2, accepted=3, per_position=[1, 1, 1], draft_tokens=4,
        boundaries={"extend": 1}, widths={"extend:192": 1},
    ),
]  # fmt: skip


def write(path: Path, events: list[AnyEvent] = EVENTS) -> Path:
    writer = EventWriter(path)
    for event in events:
        writer.write(event)
    writer.close()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(rank_file(tmp_path / "events", 0, 7))
    [rank] = read_events(tmp_path / "events")
    assert list(rank.events) == EVENTS
    assert rank.attached == ATTACHED and rank.notes == ()
    assert {type(event) for event in EVENTS} == set(AnyEvent.__args__), "an event type without a test"
    assert rank.of(Shared) == (EVENTS[5],)
    assert rank.last(Counters) == EVENTS[-1]
    assert read_rank(rank.path).last(Counters) == EVENTS[-1]


def test_each_event_is_one_line_of_json_that_names_its_type(tmp_path: Path) -> None:
    lines = write(tmp_path / "rank-0-7.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [type(event).__name__ for event in EVENTS]
    assert b"\x1b" not in b"".join(lines)


def test_ranks_come_in_order_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for rank, pid in ((10, 1), (2, 5), (2, 4)):
        write(rank_file(tmp_path, rank, pid), [msgspec.structs.replace(ATTACHED, tp_rank=rank, pid=pid)])
    (tmp_path / "boundary-0.safetensors").write_bytes(b"\0")
    (tmp_path / "rank-0-x.jsonl").write_text("junk")
    found = [(rank.attached.tp_rank, rank.attached.pid) for rank in read_events(tmp_path)]
    assert found == [(2, 4), (2, 5), (10, 1)]


def test_a_last_line_that_is_cut_off_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path / "rank-0-7.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    rank = read_rank(path)
    assert list(rank.events) == EVENTS[:-1]
    [note] = rank.notes
    assert f"line {len(EVENTS)}" in note


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no whole event"),
        (b'{"event":"Attach', "no whole event"),
        (b'{"event":"Attached","schema_version":2}\n', "schema version 2"),
        (
            b'{"event":"Shared","time":1,"call":"set_embed","embed":true,"head":false}\n',
            "Shared, not Attached",
        ),
        (b'{"event":"Nonsense","time":1}\n', "1: this is no event"),
        (b"[" * 100_000 + b"\n", "1: this is no event"),
        (b"\xff\xfe\n", "1: this is no event"),
        (b"null\n", "1: this is no event"),
        (
            msgspec.json.encode(ATTACHED) + b"\n\x1b[2J\n" + msgspec.json.encode(ATTACHED),
            "2: this is no event",
        ),
        (msgspec.json.encode(ATTACHED) + b'\n{"event":"Verified","time":"soon"}\n', "2: this is no event"),
    ],
)
def test_what_is_no_events_file_is_refused_with_its_place(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rank-0-7.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_events(tmp_path)
    assert str(path) in str(caught.value) and str(caught.value).isprintable()


def test_a_folder_that_is_missing_is_an_error_and_an_empty_one_has_no_ranks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder of events"):
        read_events(tmp_path / "none")
    assert read_events(tmp_path) == ()


@given(data=st.binary(max_size=400), at=st.integers(0, 2000))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damage_anywhere_is_an_input_error_or_read(data: bytes, at: int, tmp_path: Path) -> None:
    whole = b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS)
    path = tmp_path / "rank-0-7.jsonl"
    path.write_bytes(whole[:at] + data + whole[at + len(data) // 2 :])
    try:
        rank = read_rank(path)
    except InputError as error:
        assert str(error).isprintable()
    else:
        assert rank.events[0] is rank.attached
