"""The token map of a drafter on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eagle3lab.errors import InputError
from eagle3lab.vocabulary.readings import Ids
from eagle3lab.vocabulary.token_map import TokenMapReport, analyse_token_map

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, TensorInfo

# Far beyond any vocabulary; it keeps a header that lies from filling the memory.
_LARGEST = 2**24


@dataclass(frozen=True)
class TokenMap:
    """Where a drafter's token map stands; its values are read when asked for.

    Attributes:
        checkpoint: The drafter.
        d2t: The map's tensor, or None.
        t2d: The mask of kept tokens, or None.
        lm_head_rows: Rows of lm_head.weight, or None without one.
        vocab_size: V, of the target if it was given, else of the drafter's config.
        draft_vocab_size: D of the drafter's config; None where it states none.
    """

    checkpoint: Checkpoint
    d2t: TensorInfo | None
    t2d: TensorInfo | None
    lm_head_rows: int | None
    vocab_size: int
    draft_vocab_size: int | None

    @cached_property
    def d2t_values(self) -> NDArray[Any] | None:
        """[D] as stored (BF16 widened to float32), or None.

        Raises:
            InputError: The tensor is larger than any token map, or cannot be decoded.
        """
        return self._read(self.d2t)

    @cached_property
    def t2d_values(self) -> NDArray[Any] | None:
        """[V] as stored, or None.

        Raises:
            InputError: The tensor is larger than any token map, or cannot be decoded.
        """
        return self._read(self.t2d)

    @cached_property
    def report(self) -> TokenMapReport:
        """What the map holds, see `analyse_token_map`."""
        return analyse_token_map(
            self.d2t_values,
            self.t2d_values,
            self.vocab_size,
            self.draft_vocab_size,
            self.lm_head_rows,
            None if self.d2t is None else self.d2t.dtype,
        )

    @property
    def served_ids(self) -> Ids:
        """int64 [D]: the target id an engine takes each draft id for.

        `hot_token_id` where there is a map of integers; 0 … D−1 where there is none. A map that engines
        cannot add arange to serves no ids, and the result is empty.
        """
        if self.report.hot_token_id is not None:
            return self.report.hot_token_id
        return np.arange(0 if self.d2t is not None else self.report.draft_vocab_size, dtype=np.int64)

    def _read(self, tensor: TensorInfo | None) -> NDArray[Any] | None:
        if tensor is None:
            return None
        if tensor.numel > _LARGEST or tensor.dtype == "C64":
            raise InputError(
                f"has dtype {tensor.dtype} and shape {list(tensor.shape)}, no token map",
                path=self.checkpoint.file_path(tensor),
                tensor=tensor.name,
                advice="d2t has an integer for each row of lm_head, t2d a bool for each token of the target.",
            )
        return self.checkpoint.read(tensor.name)


def read_token_map(checkpoint: Checkpoint, vocab_size: int | None = None) -> TokenMap:
    """Find a drafter's token map; reads headers only.

    Args:
        checkpoint: The drafter.
        vocab_size: V of the target; None takes the drafter's config.

    Raises:
        InputError: The config is unreadable, or several tensors could be the map.
    """
    head = _find(checkpoint, "lm_head.weight")
    return TokenMap(
        checkpoint=checkpoint,
        d2t=_find(checkpoint, "d2t"),
        t2d=_find(checkpoint, "t2d"),
        lm_head_rows=head.shape[0] if head is not None and head.shape else None,
        vocab_size=checkpoint.config.vocab_size if vocab_size is None else vocab_size,
        draft_vocab_size=checkpoint.config.draft_vocab_size,
    )


def _find(checkpoint: Checkpoint, name: str) -> TensorInfo | None:
    """The tensor of exactly this name, else the one that has it behind a prefix."""
    if name in checkpoint.tensors:
        return checkpoint.tensors[name]
    found = [tensor for key, tensor in checkpoint.tensors.items() if key.endswith(f".{name}")]
    if len(found) > 1:
        raise InputError(
            f"has {len(found)} tensors that end in '.{name}' ('{found[0].name}' and '{found[1].name}')",
            path=checkpoint.path,
            advice="Keep one drafter in the folder.",
        )
    return found[0] if found else None


def target_vocab_size(folder: Path) -> int | None:
    """V of a target's config.json, at the top level or in `text_config`; None if there is none in the folder.

    Raises:
        InputError: The folder does not exist, or the config is unreadable or states no vocabulary size.
    """
    if not folder.is_dir():
        raise InputError("is not a folder", path=folder, advice="Give the folder of the target model.")
    path = folder / "config.json"
    if not path.is_file():
        return None
    from eagle3lab.checkpoint.json_input import read_json_object

    raw, _ = read_json_object(path)
    nested = raw.get("text_config")
    for place in (raw, nested if isinstance(nested, dict) else {}):
        size = place.get("vocab_size")
        if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _LARGEST:
            return size
    raise InputError(
        f"states no vocab_size between 1 and {_LARGEST}",
        path=path,
        advice="Give the folder of the target model.",
    )
