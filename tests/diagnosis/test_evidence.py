"""The pieces of evidence that checks rest on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3lab.diagnosis import diagnose
from eagle3lab.diagnosis.framework import Missing
from eagle3lab.diagnosis.log import read_log
from eagle3lab.diagnosis.releases import first_release, takes_name
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.capture import can_capture, points_of
from eagle3lab.engines.release import Release
from eagle3lab.engines.target import derived_context, read_target
from eagle3lab.errors import InputError
from tests.diagnosis.corpus import inputs, load
from tests.support.make_case import materialise


@pytest.mark.parametrize(("layers", "points"), [(32, (2, 16, 29)), (61, (2, 30, 58)), (5, (2, 2, 2))])
def test_default_points(layers: int, points: tuple[int, ...]) -> None:
    assert points_of(("2", "n//2", "n-3"), layers) == points


def test_points_of_other_expressions() -> None:
    assert points_of(("3", "n//2+1", "n-2", "n"), 10) == (3, 6, 8, 10)


def test_hooks() -> None:
    assert not can_capture(release_facts("0.5.9"), "KimiK25ForConditionalGeneration")
    kimi = "KimiK25ForConditionalGeneration"
    assert first_release("0.5.9", lambda facts: can_capture(facts, kimi)) == "0.5.10"


def test_releases_that_know_a_name() -> None:
    name = "layers.0.mlp.down_proj.weight"
    assert first_release("0.5.9", lambda facts: takes_name(facts, name)) == "0.5.12"
    assert takes_name(release_facts("0.5.9"), "midlayer.mlp.down_proj.weight")
    assert first_release("not a release", lambda facts: True) is None


@pytest.mark.parametrize(
    ("release", "expected"),
    [("0.5.9", False), ("0.5.10", True), ("0.5.23", True), ("", False), ("nonsense", False)],
)
def test_rules(release: str, expected: bool) -> None:
    assert Release("sglang", release).holds("reads rope_parameters") is expected
    assert Release("sglang").since("reads rope_parameters") == "0.5.10"
    assert not Release("sglang", "0.5.9").holds("no such rule")


@pytest.mark.parametrize(
    ("positions", "scaling", "context"),
    [
        (2048, None, 2048),
        (4096, {"factor": 4.0, "rope_type": "linear"}, 16384),
        (4096, {"factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        (4096, {"factor": 8.0, "rope_type": "llama3"}, 4096),
        (None, {"factor": 2.0}, None),
    ],
)
def test_derived_context(positions: int | None, scaling: object, context: int | None) -> None:
    assert derived_context(positions, scaling) == context


def test_wrapped_target() -> None:
    target = read_target(load("capture-kimi-k25-0.5.9")["target"]["config"])
    assert target.architectures == ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM")
    assert (target.layers, target.dtype) == (61, "bfloat16")


@pytest.mark.parametrize("spec", ["sglang==0.4.2", "sglang", "vllm", "vllm==0.20.2"])
def test_engines_without_facts_are_known_by_name(spec: str) -> None:
    case = inputs(engine=spec)
    assert str(case.get("Engine")) == spec
    assert isinstance(case.get("EngineFacts"), Missing) and case.get("EngineFacts").reason


@pytest.mark.parametrize("spec", ["foo", "sglang==x.y", "vllm==?", "no/such/tree"])
def test_engines_that_cannot_be_understood(spec: str) -> None:
    with pytest.raises(InputError):
        diagnose(engine=spec)


def test_a_later_release_borrows_the_facts_of_its_neighbour() -> None:
    case = inputs(engine="sglang==0.5.99")
    assert case.get("EngineFacts").release == "0.5.23"
    assert "0.5.23" in case.get("Resolved").note


def test_last_server_of_a_log_counts(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    decode = (
        "Decode batch, #running-req: 1, #token: 900, token usage: 0.01, accept len: {}, accept rate: 0.30, "
    )
    lines = [
        "[2026-03-11 09:00:00] server_args=ServerArgs(model_path='a', speculative_algorithm='EAGLE')",
        "[2026-03-11 09:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "KeyError: 'model.layers.0.mlp.gate_up_proj.weight'",
        "[2026-03-11 10:00:00] server_args=ServerArgs(model_path='a', speculative_algorithm='EAGLE3')",
        *(f"[2026-03-11 10:02:1{i} TP0] {decode.format('2.40')}cuda graph: True" for i in range(4)),
    ]
    log.write_text("\n".join(lines) + "\n")
    read = read_log(str(log), "sglang==0.5.9", None, None)
    assert read.death is None and read.served
    assert read.server is not None and read.server.arguments["speculative_algorithm"] == "EAGLE3"
    assert any("2 server runs" in note for note in read.notes)


def test_damaged_target_weights_leave_its_config(tmp_path: Path) -> None:
    case = load("ok-specforge-llama-0.5.9")
    materialise(case, tmp_path)
    (tmp_path / "target" / "model.safetensors").write_bytes(b"broken")
    seen = inputs(drafter=tmp_path / "drafter", target=tmp_path / "target")
    assert seen.get("Target").layers == 32
    assert seen.get("TargetFolder").error is not None


def test_target_weights_prove_the_row_order(tmp_path: Path) -> None:
    """The head is rows of the target in the wrong order; only the target's own weights show it."""
    import numpy as np

    from eagle3lab.checkpoint import open_checkpoint
    from tests.support.make_case import safetensors_bytes

    case = load("head-rows-resorted")
    materialise(case, tmp_path)
    drafter = open_checkpoint(tmp_path / "drafter")
    rows = np.array(drafter.read("embed_tokens.weight"))
    (tmp_path / "target" / "model.safetensors").write_bytes(
        safetensors_bytes({"model.embed_tokens.weight": (rows, "BF16"), "lm_head.weight": (rows, "BF16")})
    )
    config = json.loads((tmp_path / "target" / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tmp_path / "target" / "config.json").write_text(json.dumps(config))
    tensors = {
        name: (np.array(drafter.read(name)), info.dtype)
        for name, info in drafter.tensors.items()
        if name != "embed_tokens.weight"
    }
    (tmp_path / "drafter" / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    without = diagnose(tmp_path / "drafter", engine="sglang==0.5.15")
    assert "head.row-order" not in {one.fault for one in without.findings}
    found = diagnose(tmp_path / "drafter", target=tmp_path / "target", engine="sglang==0.5.15")
    assert found.findings[0].fault == "head.row-order"
    assert "the target's head" in found.findings[0].title


@pytest.mark.parametrize(("change", "fault"), [(0.0, None), (0.05, "training.pairing"), (50.0, None)])
def test_embeddings_tell_the_target(change: float, fault: str | None, tmp_path: Path) -> None:
    """Equal embeddings are the target's, alike ones a relative's; unlike ones say nothing."""
    import numpy as np

    from eagle3lab.checkpoint import open_checkpoint
    from tests.support.make_case import safetensors_bytes

    case = load("ok-speculators-rewritten-0.5.15")
    materialise(case, tmp_path)
    rows = np.array(open_checkpoint(tmp_path / "drafter").read("embed_tokens.weight"))
    noise = np.random.default_rng(0).normal(size=rows.shape) * rows.std() * change
    (tmp_path / "target" / "model.safetensors").write_bytes(
        safetensors_bytes({"model.embed_tokens.weight": (rows + noise.astype(np.float32), "BF16")})
    )
    found = diagnose(tmp_path / "drafter", target=tmp_path / "target", engine="sglang==0.5.15")
    assert [one.fault for one in found.findings] == ([fault] if fault else [])


HARMLESS = [
    "[2026-03-11 09:58:02] server_args=ServerArgs(model_path='t', speculative_num_draft_tokens=4)",
    "[2026-03-11 10:01:39] Can not initialize OpenAIServingResponses, error: Traceback (most recent call last):",
    '  File "sglang/srt/entrypoints/http_server.py", line 323, in lifespan',
    "ModuleNotFoundError: No module named 'openai_harmony'",
    "",
    "[2026-03-11 10:01:40] The server is fired up and ready to roll!",
]
DECODE = "[2026-03-11 10:02:11] Decode batch, #running-req: 1, #token: 9, token usage: 0.01, accept len: 1.00, accept rate: 0.25, cuda graph: True, gen throughput (token/s): 61.20, #queue-req: 0"  # noqa: E501
DEADLY = [
    "[2026-03-11 10:03:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "sglang/srt/managers/scheduler.py", line 1, in run',
    "torch.OutOfMemoryError: CUDA out of memory.",
]


@pytest.mark.parametrize(
    ("lines", "died_of"),
    [
        ([*HARMLESS, DECODE], None),
        ([*HARMLESS, DECODE, *DEADLY], "torch.OutOfMemoryError: CUDA out of memory."),
        (HARMLESS[:5], "ModuleNotFoundError: No module named 'openai_harmony'"),
    ],
)
def test_a_server_died_of_a_traceback_only_if_it_served_no_more(
    tmp_path: Path, lines: list[str], died_of: str | None
) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    crash = read_log(str(log), "sglang==0.5.9", 4, 3).death
    assert (crash.error if crash else None) == died_of
