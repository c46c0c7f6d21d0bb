"""Grouped-query attention over the paged key/value cache, for prompts, verification and decoding.

Shapes: Hq query heads share Hk key heads (Hq a multiple of Hk, one for absorbed MLA); Dk and Dv are the widths of
a key and a value, which differ under MLA. Buffers are `[locations, Hk, D]`. Scores and sums are float32.
`table`, `slots` and *location* as in `cache_locations`. Features that no EAGLE-3 server on a CPU uses are refused.

`extend_attention` and `decode_attention` find a request's tokens in the table, as newer releases ask for it; the two
that end in `_fwd` have the names and arguments of SGLang 0.5.8's and 0.5.9's Triton kernels, under whose interpreter
one verification takes a second. They are given flat lists: the locations of sequence b are
`kv_indices[kv_indptr[b] : kv_indptr[b + 1]]`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def refuse(**used: bool) -> None:
    """Raise NotImplementedError for the first feature, named by keyword, that is in use."""
    for feature, present in used.items():
        if present:
            raise NotImplementedError(f"eagle3lab's CPU attention does not know {feature.replace('_', ' ')}")


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, logit_cap: float
) -> Tensor:
    """Softmax attention of `query [..., Tq, Hq, Dk]` over `key [..., Tk, Hk, Dk]` and `value [..., Tk, Hk, Dv]`.

    `visible` is Boolean `[..., Tq, Tk]`, with at least one true in each row. Returns float32 `[..., Tq, Hq, Dv]`.
    """
    heads, key_heads = query.shape[-2], key.shape[-2]
    grouped = query.float().unflatten(-2, (key_heads, heads // key_heads))
    scores = torch.einsum("...qhgd,...khd->...hgqk", grouped, key.float()) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~visible[..., None, None, :, :], float("-inf"))
    result = torch.einsum("...hgqk,...khd->...qhgd", torch.softmax(scores, -1), value.float())
    return result.flatten(-3, -2)


def extend_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    out: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    new_lengths: Tensor,
    new_start: Tensor,
    max_new: int,
    scale: float,
    logit_cap: float,
    cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    causal: bool,
) -> None:
    """Attention of each request's new tokens over its cached ones and over each other.

    The new tokens' keys and values are taken from the arguments, since under MLA a prompt's are wider than the
    cache's rows; only the tokens before them are read from the cache. Where `key` is None (a layer that shares
    another's cache) everything is.

    Args:
        query: `[T, Hq, Dk]`, the new tokens of all requests.
        key: `[T, Hk, Dk]` or None.
        value: `[T, Hk, Dv]` or None.
        out: `[T, Hq, Dv]`, written.
        key_buffer: `[locations, Hk, ·]`.
        value_buffer: `[locations, Hk, ·]`.
        key_scale: 1.0; others belong to quantised caches.
        value_scale: 1.0.
        table: int32 `[requests, width]`.
        slots: int64 `[B]`.
        lengths: int64 `[B]`, tokens of each request, the new ones included.
        new_lengths: Integer `[B]`.
        new_start: Integer `[B]`, where each request's new tokens begin in `query`.
        max_new: Largest of `new_lengths`, unused.
        scale: Factor of the scores.
        logit_cap: Scores are bounded by `cap * tanh(score / cap)`; 0 for none.
        cross: Cross-attention; refused.
        window: Tokens that a token sees, itself included; 0 for all.
        encoder_lens: Unused without cross-attention.
        sinks: Refused.
        tree_mask: Boolean, for each request a flat `[D, D]` block over its D new tokens, which then see all
            cached tokens; None for the causal order.
        causal: Whether a new token sees only those before it.
    """
    refuse(
        cross_attention=cross,
        attention_sinks=sinks is not None,
        quantised_caches=key_scale != 1.0 or value_scale != 1.0,
        a_sliding_window_over_a_draft_tree=tree_mask is not None and window > 0,
    )
    block = 0
    for slot, total, new, start in zip(
        slots.tolist(), lengths.tolist(), new_lengths.tolist(), new_start.tolist(), strict=True
    ):
        if new == 0:
            continue
        cached = total if key is None else total - new
        rows = table[slot, :cached].to(torch.int64)
        keys, values = key_buffer[rows], value_buffer[rows]
        if key is not None and value is not None:
            fresh = slice(start, start + new)
            keys = torch.cat((keys, key[fresh])) if cached else key[fresh]
            values = torch.cat((values, value[fresh])) if cached else value[fresh]
        if tree_mask is not None:
            visible = torch.ones(new, total, dtype=torch.bool)
            visible[:, total - new :] = tree_mask[block : block + new * new].view(new, new).bool()
            block += new * new
        else:
            ahead = torch.arange(total)[None, :] - torch.arange(total - new, total)[:, None]
            visible = ahead <= 0 if causal else torch.ones(new, total, dtype=torch.bool)
            if window > 0:
                visible = visible & (ahead > -window)
        out[start : start + new] = attend(
            query[start : start + new], keys, values, visible, scale, logit_cap
        ).to(out.dtype)


def decode_attention(
    query: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    out: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    location: Tensor,
    workspace: Tensor,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    logit_cap: float,
    cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Attention of one new token for each sequence over its cached tokens, after storing the new one.

    Args:
        query: `[B, Hq, Dk]`.
        key_buffer: `[locations, Hk, Dk]`, written at `location` unless `key` is None.
        value_buffer: `[locations, Hk, Dv]`, likewise; under MLA it is a view of the key buffer.
        key_scale: 1.0; others belong to quantised caches.
        value_scale: 1.0.
        out: `[B, Hq, Dv]`, written.
        key: `[B, Hk, Dk]`, or None if the cache already holds it.
        value: `[B, Hk, Dv]` or None.
        location: int64 `[B]`, where the new tokens are stored.
        workspace: Unused; the compiled kernel's scratch space.
        table: int32 `[rows, width]`.
        slots: int64 `[B]`.
        lengths: int64 `[B]`, tokens of each sequence, the new one included.
        scale: Factor of the scores.
        logit_cap: As in `extend_attention`.
        cross: Refused.
        window: As in `extend_attention`.
        encoder_lens: Unused.
        sinks: Refused.
    """
    refuse(
        cross_attention=cross,
        attention_sinks=sinks is not None,
        quantised_caches=key_scale != 1.0 or value_scale != 1.0,
    )
    if key is not None and value is not None:
        key_buffer[location] = key.view(-1, *key_buffer.shape[1:]).to(key_buffer.dtype)
        value_buffer[location] = value.view(-1, *value_buffer.shape[1:]).to(value_buffer.dtype)
    if lengths.numel() == 0:
        return
    column = torch.arange(int(lengths.max()))
    visible = column < lengths[:, None]
    if window > 0:
        visible &= column >= lengths[:, None] - window
    rows = table[slots, : column.numel()].to(torch.int64)
    # Past its end a row of the table is stale: read the first location instead, or a NaN left there would spread.
    rows = torch.where(column < lengths[:, None], rows, rows[:, :1])
    result = attend(query[:, None], key_buffer[rows], value_buffer[rows], visible[:, None], scale, logit_cap)
    out.copy_(result[:, 0])


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
