"""States made here: the target run over prompts, what the trainer takes of it and what the engine captures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from eagle3lab.errors import InputError
from lab.parity.recording import Given, Pass
from lab.reference import Target
from lab.reference.llama import Place, Shape

_RANDOM_TOKENS = 48


def made_by(
    target: Target,
    prompts: Sequence[Sequence[int]],
    trained: tuple[int, ...] | None,
    served: tuple[int, ...] | None,
) -> tuple[Given, ...]:
    """A sequence for each prompt, the last token of which has no state.

    Args:
        target: The target.
        prompts: Token ids, at least two each.
        trained: Layers whose input the head was trained on; None for the state behind the final norm.
        served: The same for what the engine captures.

    Raises:
        InputError: A prompt is too short, or has a token that the target does not have.
    """
    found = []
    for prompt in prompts:
        if len(prompt) < 2 or min(prompt) < 0 or max(prompt) >= len(target.embedding):
            raise InputError(
                f"a prompt of {len(prompt)} tokens is too short, or has a token beyond the target's vocabulary of "
                f"{len(target.embedding)}"
            )
    with torch.inference_mode():
        for prompt in prompts:
            tokens = torch.tensor([list(prompt)])
            place, states = Place.after(torch.zeros(1, dtype=torch.int64), tokens.shape[1]), {}
            for capture in {trained, served}:
                caches = target.caches(1, tokens.shape[1])
                states[capture] = target.forward(tokens, place, caches, capture)[1][0, :-1]
            found.append(Given(tokens[0, 1:], states[trained], states[served], None))
    return tuple(found)


def default_prompts(target: Target, count: int) -> list[list[int]]:
    """The specimen's held-out prompts for a target of its vocabulary, seeded random ids for another."""
    from lab.specimen import build, regenerate, tokenizer
    from lab.specimen.paths import prompts_file, target_dir
    from lab.specimen.quiet import quiet

    quiet()
    tok = tokenizer.load_tokenizer(target_dir())
    size = len(target.embedding)
    if len(tok) != size:
        chance = torch.Generator().manual_seed(0)
        return [list(map(int, row)) for row in torch.randint(size, (count, _RANDOM_TOKENS), generator=chance)]
    return [
        regenerate.prompt_ids(tok, one["prompt"]) for one in islice(build.read_prompts(prompts_file()), count)
    ]


def only_matrices(folder: Path) -> Target:
    """A target of any kind without its layers: config, embedding and head, all that a recording leaves to need.

    Raises:
        InputError: The folder has no config.json, or no tensors for embedding and head.
    """
    from eagle3lab.checkpoint import open_checkpoint
    from eagle3lab.vocabulary.target_rows import target_tensor

    checkpoint = open_checkpoint(folder)
    config = checkpoint.raw_config
    embedding, head = (
        torch.from_numpy(checkpoint.read(target_tensor(checkpoint, kind)).copy()).to(torch.float32)
        for kind in ("embed_tokens", "lm_head")
    )
    if embedding.ndim != 2 or head.ndim != 2:
        raise InputError("embedding and head are no matrices", path=folder)
    width = embedding.shape[1]
    shape = Shape(1, 1, width, 1e-6)
    return Target(shape, (), embedding, torch.ones(width), head, config)


def check_tokens(passes: Sequence[Pass], target: Target) -> None:
    """See that the target has every token of a recording.

    Raises:
        InputError: A token id is outside the vocabulary: the recording is of another target.
    """
    size = len(target.embedding)
    for one in passes:
        if len(one.tokens) and not 0 <= int(one.tokens.min()) <= int(one.tokens.max()) < size:
            raise InputError(
                f"a token id is outside the target's vocabulary of {size}",
                path=one.path,
                tensor="input_ids",
                advice="Give the target that was served.",
            )
