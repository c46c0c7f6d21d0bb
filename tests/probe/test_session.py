"""The whole probe through the life of a server of a few lines; the real ones are in test_servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3lab.runs.events import (
    Attached,
    Boundary,
    Built,
    Captured,
    Configured,
    Counters,
    Guarded,
    Loaded,
    Quiet,
    RankEvents,
    Shared,
    TokenMap,
    Verified,
    read_events,
)
from eagle3lab.runs.judgement import Start, fused, judge_states
from eagle3lab.serving.hooks import Refused
from eagle3lab.serving.probe import Settings
from eagle3lab.serving.probe.session import Probe
from tests.probe import fake_sglang
from tests.probe.fake_sglang import DraftGraph, H, Mode, PrefillGraph, Request, weights


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Call it for a probe that waits in a process with the fake SGLang; afterwards nothing is left of either."""
    probes: list[Probe] = []

    def install(settings: Settings, without: tuple[str, ...] = ()) -> Any:
        made = fake_sglang.modules(without)
        for name, module in made.items():
            monkeypatch.setitem(sys.modules, name, module)
        runner = made["sglang.srt.model_executor.model_runner"].ModelRunner
        monkeypatch.setattr(fake_sglang, "ModelRunner", runner)
        probe = Probe(settings)
        probe.install()
        probes.append(probe)
        return made["sglang.srt.managers.scheduler"].Scheduler

    yield install
    for probe in probes:
        for hook in probe.hooks:
            hook.remove()


def serve(scheduler: Any) -> None:
    """One prompt, two verify steps for two requests, done."""
    first, second = Request("a"), Request("b")
    scheduler.run(Mode.EXTEND, 5, 3 * H)
    for step, accepted in enumerate(([3, 0], [1, 0])):
        scheduler.run(Mode.DECODE, 2, H)
        scheduler.run(Mode.IDLE, 0, H)
        scheduler.verify([first, second], accepted, last=step == 1)
        scheduler.run(Mode.DRAFT_EXTEND_V2, 4, 3 * H)


def events(folder: Path) -> RankEvents:
    [rank] = read_events(folder)
    return rank


def test_a_healthy_head_from_loading_to_its_last_request(
    live: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = live(Settings(tmp_path, "refuse", tensors=2))(weights())
    serve(scheduler)
    rank = events(tmp_path)
    assert rank.attached.release == "9.9.9" and rank.attached.missing == [] and len(rank.attached.ways) == 4
    target, drafter = rank.of(Built)
    assert (target.role, target.cls, target.hidden_size) == ("target", "Target", H)
    assert (drafter.role, drafter.cls, drafter.fc_in, drafter.fc_out) == ("drafter", "FakeEagle3", 3 * H, H)
    [loaded] = rank.of(Loaded)
    assert loaded.placed == {
        "fc.weight": ["model.fc.weight"], "midlayer.weight": ["model.midlayer.weight"],
        "lm_head.weight": ["lm_head.weight"], "d2t": ["hot_token_id"],
    }  # fmt: skip
    assert loaded.dropped == ["t2d"] and loaded.never_written == [], "the embedding is the target's"
    [shared] = rank.of(Shared)
    assert (shared.call, shared.embed, shared.head) == ("set_embed", True, False)
    [captured] = rank.of(Captured)
    assert captured.chain == ["Target", "TargetInner"] and captured.given == [1, 5, 8]
    assert captured.layers == [2, 6, 9]
    [token_map] = rank.of(TokenMap)
    assert token_map.kind == "offsets" and token_map.rows == 16 and token_map.maximum == 30
    [configured] = rank.of(Configured)
    assert (configured.algorithm, configured.draft_tokens, configured.target_vocab_size) == ("EAGLE3", 4, 32)

    rehearsal, *passes = rank.of(Boundary)
    assert rehearsal.rehearsal and rehearsal.step == -1 and rehearsal.hidden_norm is None
    assert [(one.phase, one.hidden_shape, one.fc_ran) for one in passes] == [
        ("extend", [5, 3 * H], True), ("decode", [2, H], False), ("draft_extend", [4, 3 * H], True),
        ("decode", [2, H], False), ("draft_extend", [4, 3 * H], True),
    ]  # fmt: skip
    assert passes[0].hidden_norm == pytest.approx((3 * H) ** 0.5) and passes[0].embeds_shape == [5, H]
    assert [one.tensors is not None for one in passes] == [True, True, False, False, False]
    kept = load_file(tmp_path / str(passes[0].tensors))
    assert kept["hidden_states"].shape == (5, 3 * H) and kept["logits"].shape == (5, 16)
    assert kept["input_ids"].tolist() == kept["positions"].tolist() == [0, 1, 2, 3, 4]
    assert set(kept) == {"hidden_states", "input_ids", "positions", "embeds", "logits", "output_states"}

    assert [(one.accepted, one.requests) for one in rank.of(Verified)] == [
        ([3, 0], ["a", "b"]), ([1, 0], ["a", "b"]),
    ]  # fmt: skip
    counters = rank.last(Counters)
    assert counters is not None
    assert (counters.verify_steps, counters.accepted, counters.per_position) == (4, 4, [2, 1, 1])
    assert counters.boundaries == {"extend": 1, "decode": 2, "draft_extend": 1}
    assert counters.widths == {f"extend:{3 * H}": 1, f"decode:{H}": 2, f"draft_extend:{3 * H}": 1}
    assert not rank.of(Quiet) and not rank.of(Guarded) and capsys.readouterr().err == ""


def test_later_steps_are_only_counted(live: Any, tmp_path: Path) -> None:
    scheduler = live(Settings(tmp_path, full_steps=1))(weights())
    serve(scheduler)
    rank = events(tmp_path)
    assert len([one for one in rank.of(Boundary) if not one.rehearsal]) == 1 and len(rank.of(Verified)) == 1
    counters = rank.last(Counters)
    assert counters is not None and counters.verify_steps == 4 and sum(counters.boundaries.values()) == 4
    assert not scheduler.drafter.model.fc._forward_hooks, "nothing is left to run"


def test_while_a_graph_is_captured_nothing_is_read_from_the_device_and_nothing_counted(
    live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3lab.serving.probe import boundary

    scheduler = live(Settings(tmp_path, tensors=5))(weights())
    monkeypatch.setattr(boundary, "_capturing", lambda: True)
    monkeypatch.setattr(boundary, "_norms", lambda *given: pytest.fail("a norm during capture"))
    for _ in range(3):
        scheduler.run(Mode.DRAFT_EXTEND_V2, 4, 3 * H)
    monkeypatch.undo()
    passes = events(tmp_path).of(Boundary)
    assert [(one.phase, one.rehearsal, one.fc_ran, one.tensors) for one in passes] == [
        ("decode", True, False, None), ("draft_extend", True, True, None),
    ]  # fmt: skip


def test_the_first_pass_of_each_kind_is_looked_into(live: Any, tmp_path: Path) -> None:
    scheduler = live(Settings(tmp_path))(weights())
    serve(scheduler)
    first, decode, extend, *later = [one for one in events(tmp_path).of(Boundary) if not one.rehearsal]
    assert first.aux_norms == pytest.approx([H**0.5] * 3) and first.fc_norm is not None
    assert len(first.drafts) == 4 and first.tokens == [2 * draft for draft in first.drafts], (
        "ids of the target"
    )
    assert decode.aux_norms == [] and decode.fc_norm is None and len(decode.drafts) == 4
    assert extend.aux_norms and not any(one.aux_norms or one.drafts for one in later)


def test_a_prompt_over_a_replayed_graph_says_that_fc_is_not_known(live: Any, tmp_path: Path) -> None:
    """0.5.23 on CUDA: the outer forward runs, the inner one is a replay, the buffer is padded."""
    made = live(Settings(tmp_path))
    graphs: list[PrefillGraph] = []

    def warm_up(scheduler: Any) -> None:
        graphs.append(PrefillGraph(scheduler.drafter, 8))
        graphs[0].capture()

    made.warm_up = warm_up
    made(weights())
    graphs[0].replay(5)
    graphs[0].replay(3)
    rank = events(tmp_path)
    assert [(one.phase, one.rehearsal, one.hidden_shape, one.fc_ran) for one in rank.of(Boundary)] == [
        ("extend", True, [8, 3 * H], True),
        ("extend", False, [5, 3 * H], None), ("extend", False, [3, 3 * H], None),
    ]  # fmt: skip
    passes = rank.of(Boundary)[1:]
    assert all(one.hidden_norm == pytest.approx((3 * H) ** 0.5) for one in passes), "without the padding"
    [drafter] = [one for one in rank.of(Built) if one.role == "drafter"]
    assert [fused(one.fc_ran, one.hidden_shape[-1], drafter) for one in passes] == [True, True], (
        "the width tells"
    )
    assert judge_states(Start.of(rank.events), passes) is None
    graphs[0].capture()
    assert len(events(tmp_path).of(Boundary)) == 3, "a call past the outer model is no pass"


def test_replays_of_whole_graphs_are_invisible_and_their_capture_is_a_rehearsal(
    live: Any, tmp_path: Path
) -> None:
    made = live(Settings(tmp_path))
    graphs: list[DraftGraph] = []

    def warm_up(scheduler: Any) -> None:
        graphs.append(DraftGraph(scheduler.drafter, Mode.DECODE, 2, H))
        graphs.append(DraftGraph(scheduler.drafter, Mode.DRAFT_EXTEND_V2, 4, 3 * H))
        for graph in graphs:
            graph.capture()

    made.warm_up = warm_up
    scheduler = made(weights())
    scheduler.run(Mode.EXTEND, 5, 3 * H)
    for graph in graphs * 3:
        graph.replay()
    request = Request("a")
    scheduler.verify([request], [2], last=True)
    rank = events(tmp_path)
    assert [(one.phase, one.rehearsal, one.fc_ran) for one in rank.of(Boundary)] == [
        ("decode", True, False), ("draft_extend", True, True), ("extend", False, True),
    ]  # fmt: skip
    counters = rank.last(Counters)
    assert counters is not None and counters.boundaries == {"extend": 1}, "rehearsals are not counted"


def test_layers_that_a_graph_runner_replaces_are_told(
    live: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.4.9 to 0.5.10: `cuda_graph_runner.py` calls the target once more, without the drafter's layers."""
    made = live(Settings(tmp_path, "refuse"))
    made.warm_up = lambda scheduler: scheduler.target.model.set_eagle3_layers_to_capture()
    made(weights(), layers=[1, 5, 7])
    assert [(one.given, one.layers) for one in events(tmp_path).of(Captured)] == [
        ([1, 5, 7], [2, 6, 8]), (None, [2, 6, 9]),
    ]  # fmt: skip
    said = capsys.readouterr().err
    assert "[capture.graph-defaults]" in said and "asked for the inputs of layers 2, 6, 8" in said
    assert "captured in the end: 2, 6, 9" in said and "The server goes on." in said


@pytest.mark.parametrize(("dp", "rank"), [((None, 1), None), ((0, 2), 0), ((1, 2), 1)])
def test_the_replica_is_known_where_the_runner_does_not_know_it(
    live: Any,
    tmp_path: Path,
    dp: tuple[int | None, int],
    rank: int | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live(Settings(tmp_path, "warn"))(weights("layers.0."), dp=dp)
    assert events(tmp_path).attached.dp_rank == rank
    assert ("eagle3lab guard:" in capsys.readouterr().err) == (rank != 1), "one replica speaks for all"


def test_dropped_names_and_a_target_that_captures_nothing(
    live: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The guard alone: no folder, no events, one block."""
    scheduler = live(Settings(None, "warn"))(weights("layers.0."), "EAGLE")
    said = capsys.readouterr().err
    assert "[capture.algorithm]" in said and "[names.dropped]" in said and said.count("eagle3lab guard:") == 1
    assert "never written (1): model.midlayer.weight" in said and "layers.0.midlayer.weight" in said
    requests = [Request(str(number)) for number in range(10)]
    for _ in range(12):
        scheduler.verify(requests, [0] * 10)
    said = capsys.readouterr().err
    assert said.count("[none-accepted]") == 1
    assert not hasattr(type(scheduler).process_batch_result, "__wrapped__"), "it costs nothing any more"
    assert "forward" not in vars(scheduler.drafter)


def test_refuse_ends_the_start_as_soon_as_the_drafter_is_loaded(
    live: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = live(Settings(None, "refuse"))
    shared: list[str] = []
    original = fake_sglang.FakeEagle3.set_embed
    fake_sglang.FakeEagle3.set_embed = lambda self, embed: shared.append("embed")  # type: ignore[method-assign]
    try:
        with pytest.raises(Refused, match="no trained values"):
            scheduler(weights("layers.0."))
    finally:
        fake_sglang.FakeEagle3.set_embed = original  # type: ignore[method-assign]
    assert shared == [], "nothing was done after the load"
    said = capsys.readouterr().err
    assert "The server is stopped." in said and said.count("eagle3lab guard:") == 1
    assert "embed_tokens" not in said, "the target provides it later"


def test_what_only_a_ready_server_shows_is_refused_before_it_serves(
    live: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """An embedding that neither the checkpoint nor the target provides."""
    made = live(Settings(None, "refuse"))
    original = fake_sglang.FakeEagle3.set_embed
    fake_sglang.FakeEagle3.set_embed = lambda self, embed: None  # type: ignore[method-assign]
    try:
        with pytest.raises(Refused):
            made(weights())
    finally:
        fake_sglang.FakeEagle3.set_embed = original  # type: ignore[method-assign]
    assert "never written (1): model.embed_tokens.weight" in capsys.readouterr().err


def test_a_server_that_serves_is_never_stopped(live: Any, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = live(Settings(None, "refuse"))(weights())
    requests = [Request(str(number)) for number in range(10)]
    for _ in range(12):
        scheduler.verify(requests, [0] * 10)
    said = capsys.readouterr().err
    assert said.count("[none-accepted]") == 1 and "The server goes on." in said


def test_a_map_that_is_padded_with_zeros_is_told_and_refuses_nothing(
    live: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    padded = weights() | {"d2t": torch.cat([torch.arange(12) + 4, torch.zeros(4, dtype=torch.int64)])}
    live(Settings(None, "refuse"))(padded)
    said = capsys.readouterr().err
    assert "[vocab.range]" in said and "The server goes on." in said


@pytest.mark.parametrize(
    ("without", "kinds"),
    [
        (("ModelRunner.load_model",), {Built, Loaded, Configured, Verified}),
        (("_initialize_model",), {Configured, Verified}),
        (("Scheduler.process_batch_result",), {Built, Loaded, Configured}),
    ],
)
def test_an_unknown_release_is_served_and_what_is_missing_is_told(
    live: Any, tmp_path: Path, without: tuple[str, ...], kinds: set[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = live(Settings(tmp_path, "warn"), without)
    if without == ("ModelRunner.load_model",):
        renamed = fake_sglang.ModelRunner
        renamed.load_model = lambda self: ORIGINAL_LOAD(self)  # type: ignore[method-assign]
    if without == ("_initialize_model",):
        loader = sys.modules["sglang.srt.model_loader.loader"]
        loader._initialize_model = fake_sglang._initialize_model  # type: ignore[attr-defined]
    if without == ("Scheduler.process_batch_result",):
        made.process_batch_result = lambda self, batch, result: "processed"
    serve(made(weights()))
    rank = events(tmp_path)
    assert len(rank.attached.missing) == 1 and rank.attached.missing[0].endswith(
        without[0].rpartition(".")[2]
    )
    assert {type(event) for event in rank.events} & {Built, Loaded, Configured, Verified} == kinds


ORIGINAL_LOAD = fake_sglang.ModelRunner.load_model


def test_a_failure_in_the_probe_is_an_event_and_the_server_goes_on(
    live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from eagle3lab.serving.probe import boundary

    monkeypatch.setattr(boundary, "_norms", lambda *given: 1 / 0)
    serve(live(Settings(tmp_path))(weights()))
    rank = events(tmp_path)
    [quiet] = rank.of(Quiet)
    assert quiet.where == "boundary" and "ZeroDivisionError" in quiet.problem
    assert len(rank.of(Verified)) == 2 and capsys.readouterr().err.count("is switched off") == 1


def test_a_full_disk_ends_the_events_and_nothing_else(
    live: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events").write_text("a file where a folder should be")
    serve(live(Settings(tmp_path / "events"))(weights()))
    assert "eagle3lab probe" in capsys.readouterr().err


def test_a_server_without_speculation_is_left_alone(live: Any, tmp_path: Path) -> None:
    made = live(Settings(tmp_path, "refuse"))
    scheduler = made(weights(), "")
    serve(scheduler)
    rank = events(tmp_path)
    assert isinstance(rank.events[0], Attached) and not rank.of(Verified) and not rank.of(Guarded)
