"""What a probe saw inside a server leads to the fault, alone and beside the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3lab.diagnosis import Diagnosis, Verdict, diagnose
from eagle3lab.errors import InputError
from eagle3lab.runs.events import (
    SCHEMA_VERSION,
    Attached,
    Boundary,
    Built,
    Captured,
    Counters,
    Event,
    EventWriter,
    Loaded,
    TokenMap,
    rank_file,
)

H, D, V = 64, 128, 512
BUILT = Built(
    time=1.0, role="drafter", cls="LlamaForCausalLMEagle3", module="m", architectures=["LlamaForCausalLMEagle3"],
    hidden_size=H, fc_in=3 * H, fc_out=H, draft_vocab_size=D, parameters=14,
)  # fmt: skip
LOADED = Loaded(time=2.0, offered=16, placed={"fc.weight": ["fc.weight"]}, dropped=[], never_written=[])
MAP = TokenMap(
    time=2.0, present=True, dtype="torch.int64", rows=D, minimum=3, maximum=500, distinct=D, first=[3, 5]
)
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
