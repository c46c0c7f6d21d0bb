"""What a probe saw inside a server leads to the fault, alone and beside the files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from eagle3lab.diagnosis import Diagnosis, Verdict, diagnose
from eagle3lab.diagnosis.model import Severity
from eagle3lab.diagnosis.run import BROKE
from eagle3lab.errors import InputError
from eagle3lab.runs.events import (
    SCHEMA_VERSION,
    Attached,
    Boundary,
    Built,
    Captured,
    Configured,
    Counters,
    Event,
    EventWriter,
    Loaded,
    Shared,
    TokenMap,
    rank_file,
)
from eagle3lab.serving.guard.judge import judge_start

H, D, V = 64, 128, 512
BUILT = Built(
    time=1.0, role="drafter", cls="LlamaForCausalLMEagle3", module="m", architectures=["LlamaForCausalLMEagle3"],
    hidden_size=H, fc_in=3 * H, fc_out=H, draft_vocab_size=D, parameters=14,
)  # fmt: skip
LOADED = Loaded(time=2.0, offered=16, placed={"fc.weight": ["fc.weight"]}, dropped=[], never_written=[])
MAP = TokenMap(
    time=2.0, present=True, dtype="torch.int64", rows=D, minimum=3, maximum=500, distinct=D, first=[3, 5]
)
READY = Configured(
    time=3.0, algorithm="EAGLE3", steps=3, topk=1, draft_tokens=4, target="t", drafter="d",
    use_aux_hidden_state=None, target_vocab_size=V,
)  # fmt: skip
CAPTURED = Captured(time=3.0, chain=["LlamaForCausalLM"], given=None, layers=[2, 4, 5])


def boundary(width: int) -> Boundary:
    return Boundary(
        time=4.0, step=0, phase="extend", hidden_shape=[7, width], embeds_shape=[7, H], fc_ran=width != H,
        hidden_norm=1.0, embeds_norm=1.0,
    )  # fmt: skip


def counters(*positions: int, steps: int = 100) -> Counters:
    return Counters(
        time=9.0, verify_steps=steps, accepted=sum(positions), per_position=list(positions), draft_tokens=4,
        boundaries={}, widths={},
    )  # fmt: skip


HEALTHY = (BUILT, LOADED, MAP, CAPTURED, boundary(3 * H), counters(80, 60, 40))


def written(folder: Path, *events: Event, rank: int = 0, dp: int | None = None) -> Path:
    writer = EventWriter(rank_file(folder, rank, 100 + rank + 10 * (dp or 0)))
    writer.write(
        Attached(
            time=0.0, schema_version=SCHEMA_VERSION, release="0.5.9", pid=1, tp_rank=rank, tp_size=2, dp_rank=dp,
            ways=[], missing=[],
        )
    )  # fmt: skip
    for event in events:
        writer.write(event)
    writer.close()
    return folder


def faults(found: Diagnosis) -> list[str]:
    return [one.fault for one in found.findings]


def test_healthy_events_say_so(tmp_path: Path) -> None:
    found = diagnose(events=written(tmp_path / "events", *HEALTHY))
    assert found.verdict is Verdict.HEALTHY and not found.findings
    assert found.observed is not None and found.observed.accept_length == pytest.approx(2.8)
    assert found.observed.per_position == (0.8, 0.6, 0.4)


def test_replicas_are_added_and_ranks_of_one_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    for dp in (0, 1):
        for rank in (0, 1):
            written(folder, counters(50, 25, steps=50), rank=rank, dp=dp)
    found = diagnose(events=folder)
    assert found.observed is not None and "150 of 300 drafts" in found.observed.reason


def test_unwritten_parameters(tmp_path: Path) -> None:
    loaded = Loaded(
        time=2.0, offered=16, placed={}, dropped=["layers.0.\x1b[31mx"], never_written=["midlayer.self_attn.qkv_proj"]
    )  # fmt: skip
    found = diagnose(events=written(tmp_path / "events", BUILT, loaded, MAP, CAPTURED, counters(0, 0, 0)))
    assert faults(found) == ["names.dropped"] and found.verdict is Verdict.BROKEN
    assert "\x1b" not in json.dumps(found.as_json(), ensure_ascii=False)


def test_a_parameter_without_a_tensor(tmp_path: Path) -> None:
    loaded = Loaded(time=2.0, offered=16, placed={}, dropped=[], never_written=["fc.weight"])
    assert faults(diagnose(events=written(tmp_path / "events", BUILT, loaded))) == ["names.missing"]


@pytest.mark.parametrize(("asked", "fault"), [((), "capture.algorithm"), ((CAPTURED,), "capture.width")])
def test_one_state_at_the_boundary(tmp_path: Path, asked: tuple[Event, ...], fault: str) -> None:
    events = (BUILT, LOADED, MAP, *asked, boundary(H), counters(3, 0, 0))
    found = diagnose(events=written(tmp_path / "events", *events))
    assert faults(found) == [fault]
    assert "promoted" in found.findings[0].ranking


@pytest.mark.parametrize(
    ("token_map", "fault"),
    [
        (TokenMap(time=2.0, present=True, rows=D, minimum=3, maximum=900, distinct=D, out_of_range=40), "vocab.range"),
        (TokenMap(time=2.0, present=True, rows=D, minimum=3, maximum=400, distinct=D - 1), "vocab.range"),
        (TokenMap(time=2.0, present=True, rows=D, minimum=0, maximum=D - 1, distinct=D, first=[0, 1]), "vocab.zero"),
        (TokenMap(time=2.0, present=False), "vocab.missing"),
    ],
)  # fmt: skip
def test_the_served_map(tmp_path: Path, token_map: TokenMap, fault: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"vocab_size": V, "num_hidden_layers": 8}))
    found = diagnose(target=target, events=written(tmp_path / "events", BUILT, LOADED, token_map))
    assert faults(found) == [fault]


def loaded(**fields: object) -> Loaded:
    return msgspec.structs.replace(LOADED, **fields)


def kinds(kind: str, **fields: object) -> TokenMap:
    return msgspec.structs.replace(MAP, kind=kind, **fields)


QKV = "model.midlayer.self_attn.qkv_proj.weight"
EAGLE = msgspec.structs.replace(READY, algorithm="EAGLE")
DISABLED = msgspec.structs.replace(READY, use_aux_hidden_state=False)
NEXTN = msgspec.structs.replace(BUILT, cls="DeepseekV3ForCausalLMNextN", module="m")
FAULTY: list[tuple[tuple[Event, ...], list[str]]] = [
    ((loaded(partly_written=[QKV]), CAPTURED, MAP), ["names.missing"]),
    ((loaded(partly_written=[QKV], dropped=["k"]), CAPTURED, MAP), ["names.dropped"]),
    ((loaded(never_written=["model.midlayer.x"], dropped=["t2d"]), CAPTURED, MAP), ["names.missing"]),
    ((loaded(dropped=["fc.bias"]), CAPTURED, MAP), ["names.unsupported-tensor"]),
    ((LOADED, CAPTURED, kinds("absolute")), ["vocab.absolute"]),
    ((LOADED, CAPTURED, kinds("absolute", out_of_range=9)), ["vocab.absolute"]),
    ((LOADED, CAPTURED, kinds("double-offset")), ["vocab.double-offset"]),
    ((LOADED, CAPTURED, kinds("zero-by-mistake")), ["vocab.zero"]),
    ((LOADED, CAPTURED, kinds("wrong-dtype")), ["vocab.dtype"]),
    ((LOADED, CAPTURED, kinds("repeating")), ["vocab.range"]),
    ((LOADED, CAPTURED, kinds("", distinct=D - 1)), ["vocab.range"]),
    ((LOADED, CAPTURED, kinds("missing", present=False)), ["vocab.missing"]),
    # The checkpoint's map is sound, and the engine has none.
    ((LOADED, CAPTURED, kinds("offsets", present=False)), ["vocab.missing"]),
    ((LOADED, MAP, EAGLE), ["capture.algorithm"]),
    ((loaded(placed={}, untraced=["fc.weight"]), MAP, EAGLE), ["capture.algorithm"]),
    ((LOADED, MAP, DISABLED), ["capture.disabled"]),
    (
        (loaded(never_written=["model.norm.weight"]), EAGLE, kinds("absolute")),
        ["capture.algorithm", "names.missing", "vocab.absolute"],
    ),
]
SOUND: list[tuple[Event, ...]] = [
    (LOADED, CAPTURED, MAP),
    (loaded(dropped=["t2d", "midlayer.rotary_emb.inv_freq"]), CAPTURED, MAP),
    (loaded(dropped=["embed_tokens.weight"]), Shared(time=2.5, call="set_embed", embed=True, head=False), CAPTURED),
    (loaded(never_written=["model.midlayer.k_scale"]), CAPTURED, MAP),
    (loaded(partly_written=["lm_head.weight"]), CAPTURED, MAP),
    (loaded(untraced=["a", "b"]), CAPTURED, MAP),
    # A head without fc, that takes the one state it gets.
    (loaded(placed={}, never_written=["model.fc.weight"]), MAP, DISABLED, boundary(H)),
    *((LOADED, CAPTURED, kinds(kind)) for kind in ("offsets", "undecided", "disagrees-with-t2d", "of-a-later-one")),
    # The map is of the option, not of the checkpoint, and can be used.
    (LOADED, CAPTURED, kinds("missing")),
    (LOADED, CAPTURED, kinds("zero-by-right", minimum=0, maximum=D - 1, first=[0, 1])),
    (LOADED, CAPTURED, kinds("not-needed", present=False)),
    # Another method's drafter drops almost everything by design.
    (NEXTN, loaded(placed={}, dropped=["a"] * 50, never_written=["b"]), kinds("absolute"), EAGLE),
]  # fmt: skip


def at_start(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """With what every server reports, unless the events say otherwise."""
    built = () if any(isinstance(event, Built) for event in events) else (BUILT,)
    ready = () if any(isinstance(event, Configured) for event in events) else (READY,)
    return (*built, *events, *ready)


@pytest.mark.parametrize(("events", "expected"), [*FAULTY, *((events, []) for events in SOUND)])
def test_the_diagnosis_sees_what_the_guard_sees(
    events: tuple[Event, ...], expected: list[str], tmp_path: Path
) -> None:
    events = at_start(events)
    assert sorted(fault.code for fault in judge_start(events)) == expected
    found = diagnose(events=written(tmp_path / "events", *events))
    assert sorted(faults(found)) == expected
    assert not any(BROKE in one.reason for one in found.skipped)


def test_what_was_seen_is_told(tmp_path: Path) -> None:
    parts = loaded(never_written=["model.norm.weight"], partly_written=[QKV], dropped=["k_proj", "t2d"])
    events = at_start((parts, CAPTURED, kinds("double-offset", evidence=["one", "two"])))
    names, token_map = diagnose(events=written(tmp_path / "events", *events)).findings
    assert names.title == "The server left 2 parameter(s) of the drafter unwritten"
    assert [item.text for item in names.evidence] == [
        "nothing wrote model.norm.weight",
        f"written in part: {QKV}",
        "1 of 16 names were dropped: k_proj",
    ]
    assert "arange was subtracted twice" in token_map.title
    assert [item.text for item in token_map.evidence[1:]] == ["one", "two"]


def test_a_dropped_tensor_alone_is_a_note_where_no_file_says_more(tmp_path: Path) -> None:
    events = at_start((loaded(dropped=["fc.bias"]), CAPTURED, MAP, boundary(3 * H), counters(80, 60, 40)))
    found = diagnose(events=written(tmp_path / "events", *events))
    assert [one.severity for one in found.findings] == [Severity.NOTE] and found.verdict is Verdict.HEALTHY


def test_passes_in_which_fc_ran_clear_a_head_whatever_the_start_said(tmp_path: Path) -> None:
    events = at_start((LOADED, MAP, EAGLE, boundary(3 * H)))
    assert not diagnose(events=written(tmp_path / "events", *events)).findings


def test_replayed_graphs_are_judged_by_the_width_that_arrives(tmp_path: Path) -> None:
    for width, expected in ((3 * H, []), (H, ["capture.width"]), (2 * H, [])):
        replayed = msgspec.structs.replace(boundary(width), fc_ran=None, embeds_shape=[])
        events = (BUILT, LOADED, MAP, CAPTURED, READY, replayed)
        assert faults(diagnose(events=written(tmp_path / str(width), *events))) == expected


def test_layers_that_were_replaced_after_they_were_asked_for(tmp_path: Path) -> None:
    asked = msgspec.structs.replace(CAPTURED, given=[1, 2, 6], layers=[2, 3, 7])
    events = (BUILT, LOADED, MAP, asked, CAPTURED, READY, boundary(3 * H))
    found = diagnose(events=written(tmp_path / "replaced", *events))
    assert faults(found) == ["capture.graph-defaults"]
    assert [item.text for item in found.findings[0].evidence] == [
        "asked for: the inputs of layers [2, 3, 7]", "held in the end: [2, 4, 5]",
    ]  # fmt: skip
    again = (BUILT, LOADED, MAP, asked, asked, READY, boundary(3 * H))
    assert not diagnose(events=written(tmp_path / "kept", *again)).findings


def test_a_square_fc_that_is_skipped_is_a_fault_unless_the_config_asks_for_one_state(tmp_path: Path) -> None:
    square = msgspec.structs.replace(BUILT, fc_in=H)
    asked = diagnose(events=written(tmp_path / "a", square, LOADED, MAP, CAPTURED, READY, boundary(H)))
    assert faults(asked) == ["capture.width"]
    assert not diagnose(events=written(tmp_path / "b", square, LOADED, MAP, DISABLED, boundary(H))).findings


def test_a_folder_that_holds_no_events_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        diagnose(events=tmp_path / "absent")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "rank-0-1.jsonl").write_text("no event\n")
    with pytest.raises(InputError):
        diagnose(events=tmp_path / "events")


def test_a_run_folder_gives_what_is_not_given(tmp_path: Path) -> None:
    run = tmp_path / "run"
    written(run / "events", BUILT, LOADED, MAP, boundary(H), counters(0, 0, 0))
    plan = {"model": str(tmp_path / "gone"), "drafter": None, "algorithm": "EAGLE"}
    (run / "plan.json").write_text(json.dumps({"engine": {"release": "0.5.9"}, "plan": plan}))
    (run / "command.sh").write_text(
        "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE\n"
    )
    found = diagnose(run=run)
    assert found.inputs["engine"] == "sglang==0.5.9" and found.inputs["launch"] == "EAGLE"
    assert faults(found)[0] == "capture.algorithm"
    assert diagnose(run=run, engine="sglang==0.5.23").inputs["engine"] == "sglang==0.5.23"
    with pytest.raises(InputError, match=r"plan\.json"):
        diagnose(run=tmp_path)
