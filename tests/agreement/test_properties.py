"""Heads made by hypothesis: any names, map, ids, class and release."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.engines.atlas.resolve import known_engines
from tests.agreement.heads import ask, check
from tests.repair.heads import specforge
from tests.support.make_case import materialise

LAYERS = 32
IDS = st.one_of(
    st.none(),
    st.sampled_from([[1, 15, 28], [2, 16, 29], [2, 16, 32]]),
    st.lists(st.integers(0, LAYERS), min_size=3, max_size=3, unique=True).map(sorted),
)
CLASSES = [
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
    "NoSuchModel",
]

HEADS = st.fixed_dictionaries(
    {
        "prefix": st.sampled_from(["midlayer.", "layers.0.", "midlayer.0.", "model.layers.0."]),
        "outer": st.sampled_from([None, "module.*", "model.*"]),
        "d2t": st.sampled_from(["offset", "absolute", "double", "zeros"]),
        "lm_head": st.booleans(),
        "tied": st.booleans(),
        "architecture": st.sampled_from(["LlamaForCausalLMEagle3", "LlamaForCausalLM"]),
        "nested": IDS,
        "top": IDS,
        "target": st.sampled_from(CLASSES),
        "with_target": st.booleans(),
    }
)


def made(chosen: dict[str, Any], folder: Path) -> tuple[Path, Path | None]:
    case = specforge(
        template__prefix=chosen["prefix"],
        template__d2t=chosen["d2t"],
        template__lm_head=chosen["lm_head"],
        config__tie_word_embeddings=chosen["tied"],
        config__architectures=[chosen["architecture"]],
        edits={} if chosen["outer"] is None else {"rename": {"*": chosen["outer"]}},
    )
    config = case["drafter"]["config"]
    config["eagle_config"] = {"use_aux_hidden_state": True}
    if chosen["nested"] is not None:
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = chosen["nested"]
    if chosen["top"] is not None:
        config["eagle_aux_hidden_state_layer_ids"] = chosen["top"]
    source = materialise(case, folder)
    place = source / "target" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"architectures": [chosen["target"]]}))
    return source / "drafter", source / "target" if chosen["with_target"] else None


@settings(max_examples=100, deadline=None)
@given(chosen=HEADS, engine=st.sampled_from([*known_engines(), *known_engines("vllm")]))
def test_of_any_head_all_say_the_same(chosen: dict[str, Any], engine: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drafter, target = made(chosen, folder / "case")
        check(ask(drafter, engine, target), folder / "out")
