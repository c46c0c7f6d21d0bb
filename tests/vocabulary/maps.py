"""Token maps for tests: drawn like a trainer's, stored rightly and in every wrong way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def kept_tokens(
    rng: np.random.Generator, vocab: int, draft: int, *, order: str = "sorted"
) -> NDArray[np.int64]:
    """`draft` distinct ids below `vocab`, low ones likelier, the last token among them (a special token)."""
    weight = 1.0 / (np.arange(vocab) + 0.15 * vocab)
    ids = rng.choice(vocab, size=draft, replace=False, p=weight / weight.sum())
    if vocab - 1 not in ids:
        ids[-1] = vocab - 1
    return np.sort(ids) if order == "sorted" else rng.permutation(ids)


def mask(ids: NDArray[Any], vocab: int) -> NDArray[np.bool_]:
    """The t2d that marks `ids`."""
    marks = np.zeros(vocab, dtype=bool)
    marks[ids] = True
    return marks


def stored(ids: NDArray[np.int64], mode: str) -> NDArray[np.int64]:
    """d2t for `ids` as one of the common mistakes leaves it."""
    rows = np.arange(ids.size)
    return {
        "offsets": ids - rows,
        "absolute": ids.copy(),
        "double-offset": ids - 2 * rows,
        "zeros": np.zeros(ids.size, dtype=np.int64),
    }[mode]


def with_repeats(rng: np.random.Generator, ids: NDArray[np.int64], share: float = 0.05) -> NDArray[np.int64]:
    """`ids` with some rows standing for their predecessor's token."""
    at = rng.choice(np.arange(1, ids.size), size=max(1, int(ids.size * share)), replace=False)
    repeated = ids.copy()
    repeated[at] = repeated[at - 1]
    return repeated
