"""Bookkeeping of the key/value cache for speculative decoding: which token of which request lives where.

Words used throughout: *location*, a row of the key and value buffers; *table* (`req_to_token`, int32
`[requests, width]`), whose row r lists the locations of request r's tokens in order; *slots*
(`req_pool_indices`, int64 `[B]`), the table rows of the B requests of a batch. Outputs are written in place.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def _ragged(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Batch index and column of every element of the ranges `[start[b], end[b])`, one request after another."""
    lengths = (end - start).to(torch.int64)
    batch = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    columns = torch.arange(batch.numel()) - first[batch] + start.to(torch.int64)[batch]
    return batch, columns


def assign_req_to_token_pool(
    slots: Tensor, table: Tensor, start: Tensor, end: Tensor, locations: Tensor, width: int
) -> None:
    """Write `locations` into the table: request b's columns `[start[b], end[b])`, one request after another.

    Args:
        slots: int64 `[B]`.
        table: int32 `[requests, width]`, written.
        start: Integer `[B]`, first column of each request.
        end: Integer `[B]`, one past the last column.
        locations: int64, at least `sum(end - start)` of them.
        width: `table.shape[1]`; the compiled kernel needs it, torch does not.
    """
    batch, columns = _ragged(start, end)
    table[slots[batch], columns] = locations[: batch.numel()].to(table.dtype)


def assign_extend_cache_locs(
    slots: Tensor, table: Tensor, start: Tensor, end: Tensor, locations: Tensor, width: int
) -> None:
    """The reverse: read request b's columns `[start[b], end[b])` into `locations`, which may be longer.

    Arguments as in `assign_req_to_token_pool`, with `locations` (int64) written and the table read.
    """
    batch, columns = _ragged(start, end)
    locations[: batch.numel()] = table[slots[batch], columns].to(locations.dtype)


def assign_draft_cache_locs_contiguous(
    slots: Tensor, table: Tensor, lengths: Tensor, locations: Tensor, width: int, topk: int, steps: int
) -> None:
    """The `topk * steps` locations that follow each request's tokens: room for its draft branches.

    Args:
        slots: int64 `[B]`.
        table: int32 `[requests, width]`.
        lengths: Integer `[B]`, tokens of each request that are already in the cache.
        locations: int64 `[B * topk * steps]`, written; branch k's step s of request b at `(b * topk + k) * steps + s`.
        width: `table.shape[1]`, unused.
        topk: Branches.
        steps: Draft steps.
    """
    columns = lengths.to(torch.int64)[:, None] + torch.arange(topk * steps)
    locations.copy_(table[slots[:, None], columns].reshape(-1))


def fill_bonus_tokens(accepted: Tensor, counts: Tensor, bonus: Tensor, stride: int) -> None:
    """Each request's last accepted token, which the target chose itself and which starts the next draft.

    Args:
        accepted: Integer, `[B, stride]` or flat: the accepted tokens of each request, first ones first.
        counts: Integer `[B]`, how many of them are valid, at least one.
        bonus: int32 `[B]`, written.
        stride: Width of a row of `accepted`.
    """
    last = torch.arange(counts.numel()) * stride + counts.to(torch.int64) - 1
    bonus.copy_(accepted.reshape(-1)[last])


def fill_accept_out_cache_loc(accept_index: Tensor, locations: Tensor, accepted: Tensor) -> None:
    """Locations of the accepted draft tokens alone, in order.

    Args:
        accept_index: Integer, any shape: indices into `locations`, -1 where nothing was accepted.
        locations: int64, the location of each draft token of the batch.
        accepted: int64, at least as long as the number of accepted tokens, written from the front.
    """
    chosen = accept_index.reshape(-1)
    chosen = chosen[chosen >= 0].to(torch.int64)
    accepted[: chosen.numel()] = locations[chosen].to(accepted.dtype)


def rotate_input_ids(
    ids: Tensor, start: Tensor, lengths: Tensor, newest: Tensor, select: Tensor | None = None
) -> None:
    """Shift each request's ids left by one, in place, and put its newly chosen token last.

    Args:
        ids: Integer `[T]`, the ids of all requests one after another, written.
        start: Integer `[B]`, where each request begins.
        lengths: Integer `[B]`, its number of ids; a request of none is left alone.
        newest: Integer `[B]` (or `[B, 1]`), the token each request gained.
        select: Integer `[B]`: write the newest token at this index of `ids` instead of at the request's last.
    """
    start, lengths, newest = start.to(torch.int64), lengths.to(torch.int64), newest.reshape(-1).to(ids.dtype)
    _, columns = _ragged(start, start + (lengths - 1).clamp(min=0))
    ids[columns] = ids[columns + 1]
    kept = lengths > 0
    last = start + lengths - 1 if select is None else select.reshape(-1).to(torch.int64)
    ids[last[kept]] = newest[kept]


def copy_all_layer_kv_cache(pointers: Tensor, strides: Tensor, target: Tensor, source: Tensor) -> None:
    """Copy cache rows from `source` to `target` locations in every layer's buffer; rows may overlap.

    Args:
        pointers: uint64 or int64 `[buffers]`, the address of each contiguous key or value buffer.
        strides: int64 `[buffers]`, bytes of one row of that buffer.
        target: int64 `[N]`, rows to write.
        source: int64 `[N]`, rows to read; all are read before any is written.
    """
    if target.numel() == 0:
        return
    rows = int(torch.maximum(target.max(), source.max())) + 1
    for address, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(rows, stride)
        buffer[target] = buffer[source]


def build_draft_decode_metadata(
    table: Tensor, slots: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """A table of one row for each request and branch: the request's tokens, then the branch's own draft steps.

    Args:
        table: int32 `[requests, width]`.
        slots: int64 `[B]`.
        lengths: Integer `[B]`, tokens in the cache.
        topk: Branches; branch k's step s lies in the table at column `lengths[b] + k * steps + s`.
        steps: Draft steps.
        width: `table.shape[1]`, unused.

    Returns:
        Of the table's dtype, `[B * topk, max(lengths) + steps]`; zero past a row's `lengths[b] + steps`.
    """
    lengths = lengths.to(torch.int64).repeat_interleave(topk)[:, None]
    branch = torch.arange(topk).repeat(slots.numel())[:, None]
    columns = torch.arange(int(lengths.max()) + steps if lengths.numel() else steps)[None, :]
    own = columns - lengths
    source = torch.where(own < 0, columns, columns + branch * steps)
    inside = own < steps
    rows = slots.repeat_interleave(topk)[:, None]
    return table[rows, source.masked_fill(~inside, 0)].masked_fill(~inside, 0)
