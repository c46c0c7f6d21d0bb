"""The tiny Kimi-K2.5 with random weights, whose text depends on everything, and the same in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lab.kimi.model import target_config, target_weights, write_companions
from lab.specimen.permutation import write_model

_PREFIX = "language_model."


def write_random_target(folder: Path) -> dict[str, torch.Tensor]:
    """Write it, and return the language model's weights as transformers names them, rounded as they are stored."""
    generator = torch.Generator().manual_seed(7)
    weights = target_weights()
    for name, tensor in weights.items():
        if name.startswith(_PREFIX):
            noise = torch.randn(tensor.shape, generator=generator)
            # Sharp enough that no two tokens come close, whatever the order of the sums.
            weights[name] = 1 + 0.1 * noise if tensor.dim() == 1 else 2.0 * noise / tensor.shape[-1] ** 0.5
    write_model(folder, target_config(), weights)
    write_companions(folder)
    return {
        name.removeprefix(_PREFIX): tensor.to(torch.bfloat16).float()
        for name, tensor in weights.items()
        if name.startswith(_PREFIX)
    }


def transformers_model(weights: dict[str, torch.Tensor]) -> Any:
    """The language model with these weights as transformers' own DeepseekV3ForCausalLM, in float32."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    text = {name: value for name, value in target_config()["text_config"].items() if name != "torch_dtype"}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**text | {"model_type": "deepseek_v3"})).float().eval()
    model.load_state_dict(weights)
    return model
