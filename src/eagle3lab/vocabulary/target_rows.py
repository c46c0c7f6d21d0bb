"""The drafter's output head and embeddings held against the target's rows.

A trainer starts the drafter's `lm_head` from the target's rows of the draft vocabulary (speculators freezes them
there), so row j should resemble the target's row `hot_token_id[j]`. Where it resembles another row, the head and the
token map come from different runs or one of them was reordered; where it resembles none, the head was trained from
scratch or never loaded. The embeddings are compared row by row in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint import Checkpoint
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows compared at a time: 1,024 rows of width 7,168 in float32 are 28 MB.
_BLOCK = 1024

# Where targets keep them: a plain causal model, a wrapper such as Kimi-K2.5 around a language model.
_PREFIXES = ("", "language_model.", "model.language_model.")


@dataclass(frozen=True, slots=True)
class RowComparison:
    """One matrix of the drafter held against rows of the target, row by row.

    Attributes:
        drafter_tensor: The drafter's tensor, [rows, width].
        target_tensor: The target's tensor, [target rows, width].
        cosine: Cosine between each drafter row and the target row that it stands for, float32 [rows]; NaN where
            either row is zero or not finite.
        identical: How many rows are equal in every element after decoding to float32.
        nearest_is_own: Of the sampled rows, the share whose most similar target row, among all rows that the
            draft vocabulary maps to, is its own: 1.0 when the order is right, about 1 / rows when it is shuffled.
        sampled: How many rows `nearest_is_own` rests on.
    """

    drafter_tensor: str
    target_tensor: str
    cosine: NDArray[Any]
    identical: int
    nearest_is_own: float
    sampled: int

    @property
    def rows(self) -> int:
        """Number of rows compared."""
        return len(self.cosine)

    @property
    def median_cosine(self) -> float:
        """Median of `cosine` over the rows where it is defined; NaN when there is none."""
        import numpy as np

        finite = self.cosine[np.isfinite(self.cosine)]
        return float(np.median(finite)) if len(finite) else float("nan")


def target_tensor(target: Checkpoint, kind: str) -> str:
    """The name of the target's output head (`kind="lm_head"`) or embeddings (`kind="embed_tokens"`).

    A target with tied embeddings stores no head of its own; its embeddings are the head then.

    Raises:
        InputError: The target's folder has no such tensor (a folder with only a config.json has none at all).
    """
    stem = {"lm_head": "lm_head.weight", "embed_tokens": "model.embed_tokens.weight"}[kind]
    for prefix in _PREFIXES:
        name = f"{prefix}{stem}"
        if name in target.tensors:
            return name
    if kind == "lm_head" and target.has_config and target.raw_config.get("tie_word_embeddings"):
        return target_tensor(target, "embed_tokens")
    raise InputError(
        f"has no tensor for {kind} ({stem}, with or without a wrapper's prefix)",
        path=target.path,
        advice="Give a folder that holds the target's weights; the shard with embeddings and head is enough.",
    )


def compare_head(drafter: Checkpoint, target: Checkpoint, hot_token_id: NDArray[Any]) -> RowComparison:
    """The drafter's `lm_head.weight` against the target rows that the token map assigns to it.

    Args:
        drafter: Has `lm_head.weight`, [D, H].
        target: Has the output head, [V, H].
        hot_token_id: Target id of each draft id, integer [D].

    Raises:
        InputError: A tensor is missing, shapes do not fit, or an id lies outside the target's vocabulary.
    """
    return compare_rows(drafter, "lm_head.weight", target, target_tensor(target, "lm_head"), hot_token_id)


def compare_embeddings(drafter: Checkpoint, target: Checkpoint) -> RowComparison:
    """The drafter's `embed_tokens.weight` against the target's, [V, H] each, row by row.

    Raises:
        InputError: A tensor is missing or shapes do not fit.
    """
    import numpy as np

    name = "embed_tokens.weight"
    rows = drafter.info(name).shape[0]
    return compare_rows(drafter, name, target, target_tensor(target, "embed_tokens"), np.arange(rows))


def compare_rows(
    drafter: Checkpoint, name: str, target: Checkpoint, target_name: str, ids: NDArray[Any], sample: int = 256
) -> RowComparison:
    """Rows of one drafter matrix against the rows `ids` of one target matrix, in bounded memory.

    Args:
        drafter: Holds `name`, [rows, width].
        name: The drafter's tensor.
        target: Holds `target_name`, [target rows, width].
        target_name: The target's tensor.
        ids: The target row that each drafter row stands for, integer [rows].
        sample: How many evenly spaced rows the search for the nearest target row takes.

    Raises:
        InputError: A tensor is missing, widths or counts differ, or an id lies outside the target's rows.
    """
    import numpy as np

    own, other = drafter.info(name), target.info(target_name)
    if len(own.shape) != 2 or len(other.shape) != 2 or own.shape[1] != other.shape[1]:
        raise InputError(
            f"has shape {list(own.shape)}, which does not fit the target's {target_name} {list(other.shape)}",
            path=drafter.path,
            tensor=name,
        )
    if len(ids) != own.shape[0]:
        raise InputError(
            f"has {own.shape[0]} rows, but the token map names {len(ids)}", path=drafter.path, tensor=name
        )
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < other.shape[0]):
        raise InputError(
            f"stands for target ids {int(ids.min())} to {int(ids.max())}, outside the target's {other.shape[0]} rows",
            path=drafter.path,
            tensor=name,
            advice="Look at the token map first: eagle3lab vocab.",
        )
    picked = np.unique(np.linspace(0, len(ids) - 1, min(sample, len(ids))).astype(np.int64))
    sampled_rows = _unit(np.concatenate([drafter.read_rows(name, i, i + 1) for i in picked]))
    best = np.full(len(picked), -np.inf, np.float32)
    best_row = np.full(len(picked), -1)
    cosine = np.empty(len(ids), np.float32)
    identical = 0
    for start in range(0, len(ids), _BLOCK):
        stop = min(start + _BLOCK, len(ids))
        mine = np.asarray(drafter.read_rows(name, start, stop), np.float32)
        theirs = np.asarray(target.read_selected(target_name, ids[start:stop]), np.float32)
        identical += int((mine == theirs).all(axis=1).sum())
        unit = _unit(theirs)
        cosine[start:stop] = np.einsum("ij,ij->i", _unit(mine), unit)
        similarity = np.nan_to_num(sampled_rows @ unit.T, nan=-np.inf)
        row = similarity.argmax(axis=1)
        value = similarity[np.arange(len(picked)), row]
        better = value > best
        best[better], best_row[better] = value[better], row[better] + start
    # Two draft ids may stand for equal target rows (padding): the id then decides, not the row number.
    own_is_best = ids[best_row] == ids[picked]
    return RowComparison(name, target_name, cosine, identical, float(own_is_best.mean()), len(picked))


def _unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows scaled to length one, float32; NaN where the length is zero or not finite."""
    import numpy as np

    rows = np.asarray(rows, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: NDArray[Any] = rows / np.where((length > 0) & np.isfinite(length), length, np.float32(np.nan))
    return unit
