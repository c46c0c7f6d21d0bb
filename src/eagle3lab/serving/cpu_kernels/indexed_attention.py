"""Attention over flat lists of cache locations: what SGLang 0.5.8 and 0.5.9 ask of their Triton backend.

Under Triton's interpreter one verification takes a second, nearly all of it in these two functions. Names and
order of the arguments are the release's, which passes some by keyword. Shapes as in `attention`; the locations of
sequence b are `kv_indices[kv_indptr[b] : kv_indptr[b + 1]]`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from eagle3lab.serving.cpu_kernels.attention import attend, refuse


def extend_attention_fwd(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    is_causal: bool,
    mask_indptr: Tensor | None,
    max_len_extend: int,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    skip_prefix_custom_mask: bool = True,
    sliding_window_size: int = -1,
    sinks: Tensor | None = None,
    window_kv_offsets: Tensor | None = None,
    xai_temperature_len: int = -1,
) -> None:
    """Attention of each sequence's new tokens over its cached ones and over each other.

    Args:
        q_extend: `[T, Hq, Dk]`, the new tokens of all sequences.
        k_extend: `[T, Hk, Dk]`, their keys.
        v_extend: `[T, Hk, Dv]`, their values.
        o_extend: `[T, Hq, Dv]`, written.
        k_buffer: `[locations, Hk, Dk]`.
        v_buffer: `[locations, Hk, Dv]`.
        qo_indptr: Integer `[B + 1]`, where each sequence's new tokens begin and end.
        kv_indptr: Integer `[B + 1]`, the same for its cached tokens in `kv_indices`.
        kv_indices: int64, locations of the cached tokens.
        custom_mask: Boolean, for each sequence a flat block of a row for each new token over all its tokens, of
            which the cached ones' columns are not read; None for the causal order.
        is_causal: Whether a new token sees only those before it.
        mask_indptr: Integer `[B + 1]`, where each sequence's block of `custom_mask` begins.
        max_len_extend: Unused.
        sm_scale: Factor of the scores; None for one over the root of Dk.
        logit_cap: Bound of the scores; 0 for none.
        skip_prefix_custom_mask: True.
        sliding_window_size: Refused unless -1.
        sinks: Refused.
        window_kv_offsets: Unused without a window.
        xai_temperature_len: Refused unless -1.
    """
    refuse(
        attention_sinks=sinks is not None,
        sliding_windows=sliding_window_size > -1,
        scores_scaled_by_position=xai_temperature_len > 0,
        masks_over_the_prefix=not skip_prefix_custom_mask,
    )
    scale = sm_scale or q_extend.shape[-1] ** -0.5
    starts, cached = qo_indptr.tolist(), kv_indptr.tolist()
    for sequence, (start, end) in enumerate(pairwise(starts)):
        new = end - start
        if new == 0:
            continue
        rows = kv_indices[cached[sequence] : cached[sequence + 1]].to(torch.int64)
        visible = torch.ones(new, rows.numel() + new, dtype=torch.bool)
        own = visible[:, rows.numel() :]
        if custom_mask is not None and mask_indptr is not None:
            block = int(mask_indptr[sequence])
            own.copy_(custom_mask[block : block + visible.numel()].view_as(visible)[:, rows.numel() :])
        elif is_causal:
            own.copy_(own.tril())
        keys, values = k_extend[start:end], v_extend[start:end]
        if (
            rows.numel()
        ):  # under MLA a prompt's keys are wider than the cache's rows, of which it then reads none
            keys, values = torch.cat((k_buffer[rows], keys)), torch.cat((v_buffer[rows], values))
        o_extend[start:end] = attend(q_extend[start:end], keys, values, visible, scale, logit_cap).to(
            o_extend.dtype
        )


def decode_attention_fwd(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    xai_temperature_len: int = -1,
) -> None:
    """Attention of one token for each sequence over its cached tokens, itself among them.

    Args:
        q: `[B, Hq, Dk]`.
        k_buffer: `[locations, Hk, Dk]`.
        v_buffer: `[locations, Hk, Dv]`.
        o: `[B, Hq, Dv]`, written.
        kv_indptr: Integer, at least `[B + 1]`.
        kv_indices: Integer, locations of the cached tokens.
        attn_logits: Scratch space, unused; so are the next three.
        attn_lse: Unused.
        num_kv_splits: Unused.
        max_kv_splits: Unused.
        sm_scale: Factor of the scores.
        logit_cap: Bound of the scores; 0 for none.
        sinks: Refused.
        xai_temperature_len: Refused unless -1.
    """
    refuse(attention_sinks=sinks is not None, scores_scaled_by_position=xai_temperature_len > 0)
    if q.shape[0] == 0:
        return
    bounds = kv_indptr[: q.shape[0] + 1].to(torch.int64)
    start, lengths = bounds[:-1, None], (bounds[1:] - bounds[:-1])[:, None]
    column = torch.arange(int(lengths.max()))
    visible = column < lengths
    rows = kv_indices[torch.where(visible, start + column, start)].to(torch.int64)
    o.copy_(attend(q[:, None], k_buffer[rows], v_buffer[rows], visible[:, None], sm_scale, logit_cap)[:, 0])
