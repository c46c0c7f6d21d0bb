"""Real refusals: SGLang's own argument checks, drafter classes and targets made to stop themselves, and diagnosed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.acceptance.lines import Unwrapper
from eagle3lab.acceptance.tracebacks import death_in
from eagle3lab.diagnosis.crash import Known, crash_of
from eagle3lab.engines.ground_truth.process import ask_release
from eagle3lab.engines.release import Release
from eagle3lab.errors import InputError
from tests.engines.drafters import raw_config

pytestmark = pytest.mark.engine
WORKER = Path(__file__).parents[1] / "engines" / "raising_worker.py"
RELEASES = ("0.5.9", "0.5.23")
TREE = (
    "--speculative-eagle-topk",
    "4",
    "--speculative-num-steps",
    "3",
    "--speculative-num-draft-tokens",
    "8",
)
HEAD = ("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3")

# What is tried, and the slug that its traceback is named by; "" in a release that does not refuse it.
COMMANDS = [
    (("--enable-lora", "--lora-paths", "a=/x"), ("flags.incompatible", "")),
    (("--pp-size", "2"), ("flags.incompatible", "flags.incompatible")),
    (("--speculative-num-steps", "3"), ("flags.draft-tokens", "flags.draft-tokens")),
    ((*TREE, "--attention-backend", "trtllm_mha"), ("flags.backend", "flags.backend")),
    ((*TREE, "--page-size", "16"), ("flags.backend", "flags.backend")),
    (("--speculative-algorithm", "EAGLE9"), ("flags.method", "flags.method")),
]
DRAFTERS: list[tuple[dict[str, Any], dict[str, list[int]], tuple[str, str]]] = [
    ({"num_hidden_layers": 2}, {}, ("head-kind.layer-count", "")),
    ({"hidden_act": "gelu"}, {}, ("layer.activation", "layer.activation")),
    ({}, {"lm_head.weight": [256, 64]}, ("head.lm-head-rows", "head.lm-head-rows")),
    ({}, {"midlayer.mlp.down_proj.weight": [32, 128]}, ("names.shape", "names.shape")),
]
ASKED = [
    (("gemma2", "Gemma2ForCausalLM", "set_eagle3_layers_to_capture"), "capture.target-unsupported"),
    (("gemma2", "Gemma2ForCausalLM", "get_embed_and_head"), "capture.target-incomplete"),
    (("gemma2", "Gemma2ForCausalLM", "set_embed"), "flags.draft-path"),
    (("llama_eagle", "LlamaForCausalLMEagle", "hot_token_id"), "head-kind.not-eagle3"),
]
TRIED = [
    *((f"command {' '.join(words)}", slugs) for words, slugs in COMMANDS),
    *((f"drafter {changes or list(tensors)}", slugs) for changes, tensors, slugs in DRAFTERS),
    *((f"{cls}.{name}", (slug, slug)) for (_, cls, name), slug in ASKED),
]


@cache
def _raised(release: str, folder: Path) -> tuple[str, ...]:
    """What each attempt printed, in the order of `TRIED`."""
    (folder / "config.json").write_text(json.dumps(raw_config(architectures=["LlamaForCausalLM"])))
    start = ("--model-path", str(folder), "--device", "cpu", "--speculative-draft-model-path", str(folder))
    named = ("--speculative-algorithm", "EAGLE3")
    request = {
        "commands": [
            [*start, *(() if "--speculative-algorithm" in words else named), *words] for words, _ in COMMANDS
        ],
        "drafters": [
            {"module": HEAD[0], "class": HEAD[1], "config": raw_config(**changes), "tensors": tensors}
            for changes, tensors, _ in DRAFTERS
        ],
        "asked": [[f"sglang.srt.models.{module}", cls, name] for (module, cls, name), _ in ASKED],
    }
    try:
        reply = ask_release(release, WORKER, request)
    except InputError as error:
        pytest.skip(str(error))
    return (*reply["commands"], *reply["drafters"], *reply["asked"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("target")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("number", range(len(TRIED)), ids=[name for name, _ in TRIED])
def test_a_real_refusal_is_named(release: str, number: int, folder: Path) -> None:
    printed, expected = _raised(release, folder)[number], TRIED[number][1][RELEASES.index(release)]
    unwrapper = Unwrapper()
    lines = printed.replace("raising_worker.py:", "launch_server.py:").split("\n")
    death = death_in(line for n, raw in enumerate(lines, 1) for line in unwrapper.unwrap(raw, n))
    if not expected:
        assert printed == "" and death is None
        return
    assert death is not None, printed
    found = crash_of(death, Known(Release("sglang", release)))
    assert found.explains[0] == expected, (printed[-600:], found)
    if "raise ValueError" in printed.rpartition("File")[2]:  # a statement of the engine's own
        source = printed.rpartition('File "')[2]
        line = int(source.partition("line ")[2].partition(",")[0])
        assert f":{line} " in found.seen[0] and f"SGLang {release} raises it" in found.seen[0]
