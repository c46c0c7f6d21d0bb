"""What transformers generates from a model by itself: the text that a server must give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def greedy(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
    """`tokens` ids for each prompt, always the likeliest, computed one prompt at a time with a cache."""
    answers = []
    with torch.inference_mode():
        for prompt in prompts:
            ids, cache, out = torch.tensor([list(prompt)]), None, []
            for _ in range(tokens):
                result = model(ids, past_key_values=cache, use_cache=True)
                cache, ids = result.past_key_values, result.logits[:, -1:].argmax(-1)
                out.append(int(ids))
            answers.append(tuple(out))
    return answers
