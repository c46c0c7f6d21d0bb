"""hot_token_id as the engine holds it, and what the d2t it came from is found to hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from eagle3lab.runs.events import TokenMap
from eagle3lab.serving.probe.recorder import now

_FIRST = 8


def summary(
    hot: torch.Tensor | None,
    maps: Mapping[str, torch.Tensor],
    vocab_size: int | None,
    draft_vocab_size: int | None,
    whole: bool,
) -> TokenMap:
    """The event about a drafter's token map.

    Args:
        hot: The drafter's hot_token_id, None without one.
        maps: d2t and t2d as the checkpoint had them, where it had them.
        vocab_size: V of the target; None leaves ranges unjudged.
        draft_vocab_size: D of the drafter's config; None takes the map's length.
        whole: Whether the drafter's own config says that its vocabulary is not reduced.
    """
    kind, evidence = _judge(maps, vocab_size, draft_vocab_size, whole)
    if hot is None:
        return TokenMap(time=now(), present=False, kind=kind, evidence=evidence)
    ids = hot.detach().reshape(-1).cpu()
    whole_ids = torch.nan_to_num(ids.double()).round().long() if ids.is_floating_point() else ids.long()
    outside = (whole_ids < 0) | (whole_ids >= vocab_size) if vocab_size is not None else whole_ids < 0
    return TokenMap(
        time=now(),
        present=True,
        dtype=str(hot.dtype),
        rows=len(ids),
        minimum=int(whole_ids.min()) if len(ids) else None,
        maximum=int(whole_ids.max()) if len(ids) else None,
        distinct=len(torch.unique(whole_ids)),
        out_of_range=int(outside.sum()),
        first=whole_ids[:_FIRST].tolist(),
        kind=kind,
        evidence=evidence,
    )


def _judge(
    maps: Mapping[str, torch.Tensor], vocab_size: int | None, draft_vocab_size: int | None, whole: bool
) -> tuple[str, list[str]]:
    if vocab_size is None:
        return "", []
    from eagle3lab.vocabulary import MapKind, analyse_token_map

    arrays = {name: _array(tensor) for name, tensor in maps.items()}
    dtype = "BF16" if "d2t" in maps and maps["d2t"].dtype == torch.bfloat16 else None
    report = analyse_token_map(
        arrays.get("d2t"), arrays.get("t2d"), vocab_size, draft_vocab_size, d2t_dtype=dtype
    )
    if whole and report.kind in (MapKind.MISSING, MapKind.ZERO_BY_MISTAKE):
        # A target whose vocabulary is padded is larger than that of a drafter that has all of it.
        return str(MapKind.NOT_NEEDED), []
    return str(report.kind), list(report.evidence)


def _array(tensor: torch.Tensor) -> Any:
    """As numpy; bfloat16, which it has not, widened."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
