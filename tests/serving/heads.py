"""The heads that the server tests serve, made from the specimen's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from lab.specimen.paths import specimen_dir
from lab.specimen.permutation import cycles, permutation, prompts
from lab.specimen.variant import write_flat, write_variant


def _open(*parts: str) -> Checkpoint:
    return open_checkpoint(specimen_dir().joinpath(*parts))


def continuation(prompt: Sequence[int], tokens: int) -> tuple[int, ...]:
    """What a permutation target says after the prompt, with any drafter."""
    following, out = permutation(), [prompt[-1]]
    for _ in range(tokens):
        out.append(following[out[-1]])
    return tuple(out[1:])


def with_layer_names(out: Path) -> Path:
    """`uses-every-tensor` under the names that speculators writes."""
    source = _open("permutation", "uses-every-tensor")
    return write_variant(source, out, rename=lambda name: name.replace("midlayer.", "layers.0."))


def with_absolute_d2t(out: Path) -> Path:
    """`copies-one-state` over the twelve tokens of the uncovered cycle, its d2t holding target ids for offsets.

    The head is right about the next token on that cycle, and each id is then pushed away by its own row. Rows are
    ordered so that no id leaves the vocabulary: the engine would index past its embedding.
    """
    ids = [0, *sorted(cycles()[1], reverse=True)]
    wrong = [token + row for row, token in enumerate(ids)]
    assert max(wrong) < len(permutation())
    assert all(token != other for token, other in zip(ids[1:], wrong[1:], strict=True))
    source = _open("permutation", "copies-one-state")
    rows = np.asarray(source.read("lm_head.weight"), dtype=np.float32)[ids]
    return write_variant(
        source,
        out,
        replace={"lm_head.weight": rows, "d2t": np.asarray(ids, dtype=np.int64)},
        config={"draft_vocab_size": len(ids)},
    )


UNCOVERED = prompts()["uncovered-cycle"]
COVERED = prompts()["covered-cycle"]


def trained_drafter(out: Path) -> Path:
    """The specimen's trained drafter with the config and names that every release reads."""
    return write_flat(_open("drafter"), out, rename=lambda name: name.replace("layers.0.", "midlayer."))


def with_narrow_fc(out: Path) -> Path:
    """`copies-one-state` whose fc is a column too narrow: the engine refuses it while loading."""
    source = _open("permutation", "copies-one-state")
    narrow = np.asarray(source.read("fc.weight"), dtype=np.float32)[:, :-1]
    return write_variant(source, out, replace={"fc.weight": np.ascontiguousarray(narrow)})


def with_planted_crash(out: Path) -> Path:
    """`copies-one-state` that drafts an id beyond the vocabulary as soon as it sees the uncovered cycle.

    The engine looks its embedding up, and the rank dies.
    """
    source = _open("permutation", "copies-one-state")
    offsets = np.zeros(len(permutation()), dtype=np.int64)
    offsets[cycles()[1]] = 1_000_000
    return write_variant(source, out, replace={"d2t": offsets})
