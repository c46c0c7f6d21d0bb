"""The tiny Kimi-K2.5 served by the real engines: theory's lengths, the boundary, two ranks, exact text."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.runs.events import Boundary, Captured, Shared, read_events
from eagle3lab.serving.client import ServerDied
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.profiles import cpu
from lab.kimi import SERVE_WITH, expected, kimi_dir
from lab.kimi.delegation import KIMI_DELEGATION
from lab.kimi.model import LAYERS
from lab.specimen.permutation import HIDDEN, cycles
from tests.kimi.random_target import transformers_model, write_random_target
from tests.serving.engines import serve
from tests.serving.greedy import greedy
from tests.serving.heads import continuation

pytestmark = [pytest.mark.engine, pytest.mark.server]

CHAIN = ["KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"]


def plan(release: str, head: str, algorithm: str = "EAGLE3", tp: int = 1) -> LaunchPlan:
    return cpu(
        str(kimi_dir("target")),
        str(kimi_dir(head)),
        release=release,
        algorithm=algorithm,
        tp=tp,
        extra=SERVE_WITH,
    )


def accept_length(run: Path, launch: LaunchPlan, release: str, overlay: Overlay) -> float:
    """Serve, check the text on the cycle, and return the accept length of the request."""
    events = probe_overlay(events=run / "events")
    with serve(release, run, launch, overlay | events) as server:
        prompt = expected(kimi_dir())["prompt"]
        # One token from the prompt, sixty from verifications: the last of them is cut short for no length.
        [answer] = server.generate([prompt], 61)
    assert answer.token_ids == continuation(prompt, 61)
    return 60 / int(answer.meta["spec_verify_ct"])


# With EAGLE3 the length that theory gives the head; with EAGLE one token a step: nothing is accepted.
@pytest.mark.parametrize(
    ("release", "head", "algorithm"),
    [
        ("0.5.23", "copies-one-state", "EAGLE3"),
        ("0.5.23", "mla", "EAGLE"),
        ("0.5.9", "copies-one-state", "EAGLE3"),
        ("0.5.9", "copies-one-state", "EAGLE"),
    ],
)
def test_lengths_and_boundary(release: str, head: str, algorithm: str, tmp_path: Path) -> None:
    overlay = KIMI_DELEGATION if release == "0.5.9" else Overlay()
    run = tmp_path / "run"
    length = accept_length(run, plan(release, head, algorithm), release, overlay)
    [rank] = read_events(run / "events")
    widths = {(event.phase, event.hidden_shape[-1], event.fc_ran) for event in rank.of(Boundary)}
    captured = rank.of(Captured)
    shared = {event.call for event in rank.of(Shared)}
    if algorithm == "EAGLE3":
        assert length == expected(kimi_dir())["accept_length"][head]
        assert [event.layers for event in captured] == [[2, LAYERS // 2, LAYERS - 3]]
        assert captured[0].chain == CHAIN
        assert widths == {
            ("extend", 3 * HIDDEN, True),
            ("draft_extend", 3 * HIDDEN, True),
            ("decode", HIDDEN, False),
        }
        assert shared == {"set_embed"}
    else:
        assert length == 1
        assert captured == ()
        assert widths == {(phase, HIDDEN, False) for phase in ("extend", "draft_extend", "decode")}
        assert shared == {"set_embed_and_head"}


def test_two_ranks_write_a_file_each_and_agree(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert accept_length(run, plan("0.5.23", "mla", tp=2), "0.5.23", Overlay()) == 4
    ranks = read_events(run / "events")
    assert [(rank.attached.tp_rank, rank.attached.tp_size) for rank in ranks] == [(0, 2), (1, 2)]
    for rank in ranks:
        assert [event.layers for event in rank.of(Captured)] == [[2, LAYERS // 2, LAYERS - 3]]
        assert {event.hidden_shape[-1] for event in rank.of(Boundary)} == {HIDDEN, 3 * HIDDEN}


def test_random_weights_give_the_text_that_transformers_gives(tmp_path: Path) -> None:
    """Multi-head latent attention by our kernels: over prompts, drafted trees and decoding, together and alone."""
    covered, uncovered, fixed = cycles()
    prompts = [covered[:9], uncovered[:3], fixed[:5], covered]
    reference = greedy(transformers_model(write_random_target(tmp_path / "target")), prompts, 48)
    assert len(set(reference)) == len(prompts)
    # Two branches: trees, not chains. The drafter guesses for another target, and is refused nearly always.
    launch = cpu(
        str(tmp_path / "target"),
        str(kimi_dir("mla")),
        release="0.5.23",
        topk=2,
        draft_tokens=6,
        extra=SERVE_WITH,
    )
    with serve("0.5.23", tmp_path / "run", launch) as server:
        together = server.generate(prompts, 48, concurrency=len(prompts))
        assert [answer.token_ids for answer in together] == reference
        [alone] = server.generate(prompts[-1:], 48)
        assert alone.token_ids == reference[-1]


def test_the_older_release_as_published_does_not_serve_it(tmp_path: Path) -> None:
    """EAGLE, as in the case study's command; what EAGLE3 would miss, `test_real_classes` shows without a server."""
    with pytest.raises(ServerDied) as caught:
        serve("0.5.9", tmp_path / "run", plan("0.5.9", "copies-one-state", "EAGLE"))
    last = caught.value.traceback.splitlines()[-1]
    assert (
        last
        == "AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute 'get_embed_and_head'"
    )
