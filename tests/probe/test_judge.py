"""What the guard finds in the events of a start, and how it says it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.runs.events import (
    SCHEMA_VERSION,
    Attached,
    Built,
    Captured,
    Configured,
    Event,
    Guarded,
    Loaded,
    Shared,
    TokenMap,
)
from eagle3lab.serving.guard.judge import announce, judge_start, judge_steps
from eagle3lab.serving.hooks import Refused
from eagle3lab.serving.probe import Settings
from eagle3lab.serving.probe.recorder import Recorder
from eagle3lab.vocabulary.kinds import MapKind

ATTACHED = Attached(
    time=0, schema_version=SCHEMA_VERSION, release="0.5.9", pid=1, tp_rank=0, tp_size=1, dp_rank=None, ways=[],
    missing=[],
)  # fmt: skip
TARGET_CALL = Captured(time=0, chain=["A"], given=None, layers=[2, 6, 9])
FC = {"fc.weight": ["model.fc.weight"]}


def start(*others: Event, cls: str = "LlamaForCausalLMEagle3", **configured: Any) -> list[Event]:
    settings = {
        "algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4, "target": "/models/t", "drafter": "/models/d",
        "use_aux_hidden_state": None, "target_vocab_size": 512,
    } | configured  # fmt: skip
    drafter = Built(
        time=0, role="drafter", cls=cls, module="m", architectures=[], hidden_size=64, fc_in=192, fc_out=64,
        draft_vocab_size=None, parameters=11,
    )  # fmt: skip
    return [drafter, Configured(time=0, **settings), *others]


def loaded(**fields: Any) -> Loaded:
    whole: dict[str, Any] = {"offered": 1, "placed": FC, "dropped": [], "never_written": []} | fields
    return Loaded(time=0, **whole)


def codes(events: list[Event]) -> list[str]:
    return [fault.code for fault in judge_start(events)]


# Of those that a map can have, the ones that are sure to keep drafts from being accepted.
FAULTS_OF_A_MAP = (
    "vocab.absolute", "vocab.double-offset", "vocab.zero", "vocab.range", "vocab.dtype", "vocab.missing",
)  # fmt: skip
SHARED = Shared(time=0, call="set_embed", embed=True, head=False)
HEALTHY_MAP = TokenMap(time=0, present=True, kind="offsets")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (start(loaded(), TARGET_CALL, HEALTHY_MAP), []),
        (start(loaded(dropped=["t2d", "x.inv_freq"]), TARGET_CALL, HEALTHY_MAP), []),
        (start(loaded(dropped=["embed_tokens.weight"]), SHARED, TARGET_CALL), []),
        (start(loaded(never_written=["model.l.k_scale"]), TARGET_CALL), []),
        (start(loaded(untraced=["a"]), TARGET_CALL), []),
        (start(loaded(dropped=["layers.0.x"], never_written=["model.midlayer.x"]), TARGET_CALL), ["names.dropped"]),
        (start(loaded(never_written=["model.midlayer.x"]), TARGET_CALL), ["names.missing"]),
        (start(loaded(partly_written=["model.midlayer.qkv_proj.weight"]), TARGET_CALL), ["names.missing"]),
        (start(loaded(dropped=["fc.bias"]), TARGET_CALL), ["names.unsupported-tensor"]),
        (start(loaded(dropped=["lm_head.weight"]), SHARED, TARGET_CALL), ["names.unsupported-tensor"]),
        (start(loaded(), algorithm="EAGLE"), ["capture.algorithm"]),
        (start(loaded(), algorithm="NEXTN"), ["capture.algorithm"]),
        (start(loaded(), use_aux_hidden_state=False), ["capture.disabled"]),
        # A head without fc, served without auxiliary states, is as it should be.
        (start(loaded(placed={}, never_written=["model.fc.weight"]), use_aux_hidden_state=False), []),
        (start(loaded(), TARGET_CALL, TokenMap(time=0, present=True, kind="absolute")), ["vocab.absolute"]),
        (start(loaded(), TARGET_CALL, TokenMap(time=0, present=True, kind="zero-by-mistake")), ["vocab.zero"]),
        (start(loaded(), TARGET_CALL, TokenMap(time=0, present=True, out_of_range=3)), ["vocab.range"]),
        (start(loaded(), TARGET_CALL, TokenMap(time=0, present=False, kind="missing")), ["vocab.missing"]),
        (start(loaded(), TARGET_CALL, TokenMap(time=0, present=True, kind="disagrees-with-t2d")), []),
        (start(loaded(), TARGET_CALL, TokenMap(time=0, present=True, kind="undecided")), []),
        # Another method's drafter drops almost everything by design.
        (start(loaded(dropped=["a"] * 50, never_written=["b"]), cls="DeepseekV3ForCausalLMNextN"), []),
        ([], []),
    ],
)  # fmt: skip
def test_what_is_a_fault_and_what_is_not(events: list[Event], expected: list[str]) -> None:
    assert codes(events) == expected


@pytest.mark.parametrize("kind", [kind for kind in MapKind if kind.fault in FAULTS_OF_A_MAP])
def test_a_map_s_fault_is_told_in_the_words_of_its_kind(kind: MapKind) -> None:
    held = TokenMap(
        time=0, present=kind is not MapKind.MISSING, kind=kind, evidence=["one", "two", "three", "four"]
    )
    [fault] = judge_start(start(loaded(), TARGET_CALL, held))
    assert fault.title.lower() == f"drafts are translated to wrong tokens: {kind.meaning[:-1]}".lower()
    assert (fault.code, fault.lines, fault.certain) == (
        kind.fault, ("one", "two", "three"), kind is not MapKind.REPEATING,
    )  # fmt: skip


def test_several_faults_are_all_named_the_states_first() -> None:
    events = start(
        loaded(dropped=["layers.0.x"], never_written=["model.x"]),
        TokenMap(time=0, present=True, kind="absolute"),
        algorithm="EAGLE",
    )
    assert codes(events) == ["capture.algorithm", "names.dropped", "vocab.absolute"]


def test_the_first_hundred_verifications() -> None:
    assert judge_steps(99, 0) is None
    faults = judge_steps(100, 0)
    assert faults is not None and [fault.code for fault in faults] == ["none-accepted"]
    assert judge_steps(3, 1) == []


def recorded() -> Recorder:
    recorder = Recorder(Settings(guard="warn"))
    for event in start():
        recorder.emit(event)
    return recorder


HOSTILE = "layers.0.\x1b[2J\u202eevil\n-- \r" + "x" * 5000
FAULTY = start(loaded(dropped=[HOSTILE] * 9, never_written=["model.norm.weight"]), TARGET_CALL)


def test_the_block_is_plain_and_short_whatever_the_names_hold(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = recorded()
    announce(judge_start(FAULTY), "start", ATTACHED, recorder, "warn")
    said = capsys.readouterr().err
    assert all(line.isprintable() for line in said.split("\n"))
    assert len(said) < 3000
    assert "\\x1b[2J\\u202eevil\\n" in said and "and 3 more" in said
    assert "never written (1): model.norm.weight" in said and "The server goes on." in said
    guarded = recorder.last(Guarded)
    assert guarded is not None and guarded.faults == ["names.dropped"] and guarded.text in said


def test_only_the_first_rank_announces(capsys: pytest.CaptureFixture[str]) -> None:
    import msgspec

    for other in ({"tp_rank": 1}, {"dp_rank": 1}):
        announce(
            judge_start(FAULTY), "start", msgspec.structs.replace(ATTACHED, **other), recorded(), "refuse"
        )
    announce([], "start", ATTACHED, recorded(), "refuse")
    assert capsys.readouterr().err == ""


def test_refuse_stops_for_what_is_certain_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match="hold"):
        announce(judge_start(FAULTY), "start", ATTACHED, recorded(), "refuse")
    assert "The server is stopped." in capsys.readouterr().err
    odd = judge_start(start(loaded(dropped=["fc.bias"]), TARGET_CALL))
    announce(odd, "start", ATTACHED, recorded(), "refuse")
    assert "The server goes on." in capsys.readouterr().err


def test_without_its_variable_the_plugin_imports_nothing() -> None:
    """The entry point is announced to every SGLang in whose environment eagle3lab is installed."""
    program = (
        "import sys; before = set(sys.modules); from eagle3lab.serving.guard import plugin; plugin(); "
        "new = set(sys.modules) - before; "
        "import json; print(json.dumps([name for name in new if not name.startswith('eagle3lab.serving')]))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE3LAB")}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert set(json.loads(said.stdout)) <= {"__future__", "eagle3lab"}


def test_the_entry_point_is_announced() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [target] = project["entry-points"]["sglang.srt.plugins"].values()
    module, _, function = target.partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))
