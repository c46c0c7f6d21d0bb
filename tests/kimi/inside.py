"""Run inside an engine release: its own Kimi-K2.5 class built on the tiny folder. Prints one JSON object.

python -m tests.kimi.inside TARGET_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from eagle3lab.engines.ground_truth import worker
from lab.kimi.delegation import MISSING, add_delegation

# What a drafter's eagle_config may say; None is a config that says nothing.
IDS: tuple[list[int] | None, ...] = (None, [1, 5, 8], [2, 6, 9], [0, 5, 8])


def main(folder: Path) -> dict[str, Any]:
    worker.stand_in_for_missing_packages()
    import torch

    worker.initialise_layout(1, 0)
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.models import kimi_k25

    torch.set_default_dtype(torch.float32)
    wrapper = kimi_k25.KimiK25ForConditionalGeneration(ModelConfig(str(folder), dtype="float32").hf_config)
    language_model = wrapper.language_model
    found = {
        "classes": [type(wrapper).__name__, type(language_model).__name__],
        "lacking": [name for name in MISSING if not hasattr(type(wrapper), name)],
        "unwritten": load(wrapper, folder / "model.safetensors"),
        "as published": [captured(wrapper, ids) for ids in IDS],
    }
    add_delegation(kimi_k25)
    return found | {
        "delegated": [captured(wrapper, ids) for ids in IDS],
        "flags": [getattr(model, "capture_aux_hidden_states", None) for model in (wrapper, language_model)],
        "same_head": wrapper.lm_head is language_model.lm_head,
        "same_embedding": wrapper.get_embed_and_head()[0] is language_model.model.embed_tokens.weight,
    }


def load(wrapper: Any, weights: Path) -> list[str]:
    """Names of the parameters that the release's `load_weights` leaves as they were."""
    import torch
    from safetensors.torch import load_file

    parameters = dict(wrapper.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.fill_(float("nan"))
    wrapper.load_weights(iter(load_file(weights).items()))
    return sorted(name for name, parameter in parameters.items() if bool(parameter.isnan().any()))


def captured(wrapper: Any, ids: list[int] | None) -> list[int] | str:
    """The layers whose inputs the model then captures, or the exception."""
    try:
        wrapper.set_eagle3_layers_to_capture(ids)
    except AttributeError as error:
        return str(error)
    layers: list[int] = wrapper.language_model.model.layers_to_capture
    return layers


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
