"""The probe and the guard in real servers of two releases, attached as users do it: everything asked of five starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.runs.events import (
    Boundary,
    Built,
    Captured,
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
from eagle3lab.serving.client import Generation, ServerDied
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.probe import guard_environment, probe_overlay
from eagle3lab.serving.profiles import cpu
from eagle3lab.serving.server import Server
from lab.specimen.paths import permutation_dir
from lab.specimen.variant import write_variant
from tests.serving import heads
from tests.serving.engines import RELEASES, serve

pytestmark = [pytest.mark.engine, pytest.mark.server]

TARGET = str(permutation_dir("target"))
H = 64
# How the guard comes into a user's server: by the plugin, or by the folder that `eagle3lab guard` puts on the path.
GUARDS = {
    "0.5.23": Overlay(plugins={"eagle3lab-guard": "eagle3lab.serving.guard:plugin"}),
    "0.5.9": Overlay(),
}


def guarded(release: str, mode: str) -> Overlay:
    wanted = guard_environment(mode, {})  # type: ignore[arg-type]
    if release == "0.5.23":
        del wanted["PYTHONPATH"]
    return GUARDS[release] | Overlay(environment=wanted)


def start(release: str, drafter: Path, run: Path, overlay: Overlay, algorithm: str = "EAGLE3") -> Server:
    plan = cpu(TARGET, str(drafter), release=release, algorithm=algorithm)
    return serve(release, run, plan, overlay)


@pytest.fixture(scope="module", params=RELEASES)
def healthy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RankEvents, list[Generation], str]]:
    """A sound head watched by probe and guard: its events, its answers, its log."""
    run = tmp_path_factory.mktemp("healthy") / "run"
    overlay = probe_overlay(events=run / "events", full_steps=60, tensors=4, guard="refuse")
    head = permutation_dir("copies-one-state-reduced")
    with start(request.param, head, run, overlay) as server:
        answers = server.generate([heads.COVERED] * 3, 41, concurrency=3)
    [rank] = read_events(run / "events")
    yield request.param, rank, answers, (run / "server.log").read_text()


Healthy = tuple[str, RankEvents, list[Generation], str]


def test_events_count_what_the_server_tells_its_clients(healthy: Healthy) -> None:
    _, rank, answers, _ = healthy
    counters = rank.last(Counters)
    assert counters is not None
    verified = sum(answer.meta["spec_verify_ct"] for answer in answers)
    accepted = sum(
        round(answer.meta["spec_accept_rate"] * answer.meta["spec_verify_ct"] * 3) for answer in answers
    )
    assert (counters.verify_steps, counters.accepted) == (verified, accepted) == (60, 60)
    assert counters.per_position == [60], "the head knows one token ahead"
    by_request: dict[str, list[int]] = {}
    for step in rank.of(Verified):
        assert step.draft_tokens == 4
        for request, count in zip(step.requests, step.accepted, strict=True):
            by_request.setdefault(request, []).append(count)
    assert by_request == {answer.meta["id"]: [1] * 20 for answer in answers}


def test_the_boundary_of_a_healthy_head(healthy: Healthy) -> None:
    _, rank, _, _ = healthy
    passes = rank.of(Boundary)
    assert {one.phase for one in passes} == {"extend", "draft_extend", "decode"}
    for one in passes:
        fused = one.phase != "decode"
        assert one.hidden_shape[1] == (3 * H if fused else H) and one.fc_ran == fused
        assert one.embeds_shape == [one.hidden_shape[0], H]
        assert one.hidden_norm is not None and one.hidden_norm > 0 and not one.rehearsal
    counters = rank.last(Counters)
    assert counters is not None and len(passes) == 60 < sum(counters.boundaries.values())
    assert set(counters.widths) == {f"extend:{3 * H}", f"draft_extend:{3 * H}", f"decode:{H}"}


def test_the_tensors_kept_are_those_of_the_pass(healthy: Healthy) -> None:
    _, rank, _, _ = healthy
    kept = [one for one in rank.of(Boundary) if one.tensors is not None]
    assert [one.step for one in kept] == [0, 1, 2, 3]
    for one in kept:
        tensors = load_file(rank.path.with_name(str(one.tensors)))
        assert list(tensors["hidden_states"].shape) == one.hidden_shape
        assert list(tensors["embeds"].shape) == one.embeds_shape
        norm = float(np.linalg.norm(tensors["hidden_states"], axis=-1).mean())
        assert norm == pytest.approx(one.hidden_norm, rel=1e-4)
        assert len(tensors["input_ids"]) == len(tensors["positions"]) == one.hidden_shape[0]
        assert tensors["output_states"].shape[-1] == H and tensors["logits"].shape[-1] == 48


def test_what_was_built_loaded_shared_and_captured(healthy: Healthy) -> None:
    release, rank, _, log = healthy
    assert rank.attached.release == release and rank.attached.missing == []
    assert len(rank.attached.ways) == 4
    target, drafter = rank.of(Built)
    assert (target.role, target.cls) == ("target", "LlamaForCausalLM")
    assert (drafter.role, drafter.cls) == ("drafter", "LlamaForCausalLMEagle3")
    assert (drafter.fc_in, drafter.fc_out, drafter.draft_vocab_size) == (3 * H, H, 48)
    [loaded] = rank.of(Loaded)
    layer = "midlayer" if release == "0.5.9" else "layers.0"
    assert loaded.offered == 15 and len(loaded.placed) == 14 and loaded.dropped == ["t2d"]
    assert loaded.placed["midlayer.self_attn.k_proj.weight"] == [f"model.{layer}.self_attn.qkv_proj.weight"]
    assert loaded.placed["d2t"] == ["hot_token_id"]
    assert loaded.never_written == [] == loaded.partly_written, "the embedding comes from the target"
    assert [(one.call, one.embed, one.head) for one in rank.of(Shared)] == [("set_embed", True, False)]
    [captured] = rank.of(Captured)
    assert captured.chain == ["LlamaForCausalLM"] and captured.given is not None
    assert captured.layers == [layer + 1 for layer in captured.given]
    [token_map] = rank.of(TokenMap)
    assert (token_map.kind, token_map.rows, token_map.distinct) == ("offsets", 48, 48)
    assert not rank.of(Quiet) and not rank.of(Guarded)
    assert "eagle3lab guard" not in log and "eagle3lab probe" not in log


def test_the_guard_names_dropped_weights_and_then_that_nothing_is_accepted(tmp_path: Path) -> None:
    """0.5.9, no folder and no events, as `eagle3lab guard` starts it."""
    head = heads.with_layer_names(tmp_path / "head")
    with start("0.5.9", head, tmp_path / "run", guarded("0.5.9", "warn")) as server:
        server.generate([heads.COVERED] * 6, 20, concurrency=6)
        log = "\n".join(server.log_lines())
    assert log.count("eagle3lab guard:") == 2
    assert log.count("[names.dropped]") == 1 and "never written (7): model.midlayer." in log
    assert "dropped from the checkpoint (10): layers.0." in log
    assert log.count("[none-accepted]") == 1 and log.index("[names.dropped]") < log.index("[none-accepted]")
    assert "eagle3lab probe" not in log


@pytest.mark.parametrize("release", RELEASES)
def test_refuse_ends_a_server_with_every_fault_named(release: str, tmp_path: Path) -> None:
    """An EAGLE-3 head served as EAGLE whose d2t holds absolute ids."""
    source = open_checkpoint(permutation_dir("copies-one-state-reduced"))
    ids = np.asarray(source.read("d2t")) + np.arange(48)
    head = write_variant(source, tmp_path / "head", replace={"d2t": ids})
    with pytest.raises(ServerDied) as caught:
        start(release, head, tmp_path / "run", guarded(release, "refuse"), "EAGLE")
    assert "eagle3lab guard stops this server" in caught.value.traceback
    log = (tmp_path / "run" / "server.log").read_text()
    assert log.count("eagle3lab guard:") == 1 and "The server is stopped." in log
    assert "[capture.algorithm]" in log and "fc takes 192 values, 64 will arrive" in log
    assert "[vocab.absolute]" in log and "start the server with --speculative-algorithm EAGLE3" in log
