"""Small drafters and targets on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.make_case import safetensors_bytes

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "draft_vocab_size": 6,
}
IDS = np.array([0, 1, 3, 7, 20, 39])
# What a token's text may hold: a terminal escape, a line break, a right-to-left override, a NUL.
HOSTILE = ["\x1b[31mred", "two\nlines", "\u202eevil", "nul\x00", "é"]


def drafter(folder: Path, tensors: dict[str, tuple[np.ndarray, str]], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    tensors = {"fc.weight": (np.zeros((8, 24)), "F32"), **tensors}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def plain_drafter(folder: Path, **config: Any) -> Path:
    """V = 40, D = 6, offsets, with t2d and a head."""
    marks = np.zeros(40, dtype=bool)
    marks[IDS] = True
    return drafter(
        folder,
        {
            "d2t": (IDS - np.arange(6), "I64"),
            "t2d": (marks, "BOOL"),
            "lm_head.weight": (np.zeros((6, 8)), "F32"),
        },
        **config,
    )


def target(folder: Path, words: list[str] | None = None, vocab_size: int = 40) -> Path:
    """A target's folder with config.json and a word-level tokenizer of 40 words, the first ones hostile."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": vocab_size}))
    words = words or [*HOSTILE, *(f"w{i}" for i in range(len(HOSTILE), 40))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
