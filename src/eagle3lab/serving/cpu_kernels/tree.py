"""The draft tree: built from the drafter's candidates, verified greedily along the target's own choices.

A request's tree has D nodes. Node 0 is the last accepted token; nodes 1 to D - 1 are the selected candidates,
parents before children. Candidates are numbered over the whole draft: the first `topk` continue the root, every
later step adds `topk * topk`.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK = 0
"""Mask layout: for each request a `[D, length + D]` block, flattened, one request after another."""

QLEN_ONLY = 1
"""Mask layout: for each request a `[D, D]` block, flattened; the cached tokens are visible to all nodes."""


def _parents(parent_list: Tensor, selected: Tensor, topk: int) -> Tensor:
    """Node of each candidate's parent, int64 `[B, D - 1]`; -1 if its parent was not itself selected."""
    group = selected.to(torch.int64) // topk
    if parent_list.shape[1] == 0:  # one draft step: every candidate continues the root
        return torch.zeros_like(group)
    # Candidates of group g continue the candidate whose number is parent_list[g]; group 0 is the root's.
    number = parent_list.to(torch.int64).gather(1, group)
    same = selected.to(torch.int64)[:, None, :] == number[:, :, None]
    node = torch.where(same.any(-1), same.to(torch.int8).argmax(-1) + 1, -1)
    return torch.where(group == 0, 0, node)


def build_tree(
    parent_list: Tensor,
    selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    first_child: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_layout: int,
) -> None:
    """Lay out the tree of every request: who may attend to whom, positions, and the links to walk it by.

    Args:
        parent_list: Integer `[B, G]`: entry g is the number of the candidate that group g continues; G may be 0.
        selected: Integer `[B, D - 1]`, the numbers of the selected candidates, ascending.
        lengths: Integer `[B]`, tokens before the root.
        mask: Boolean, flat, in `mask_layout`, written: node i sees itself, its ancestors and the root. The
            columns of cached tokens in FULL_MASK are left as they are.
        positions: int64 `[B * D]`, written: `lengths[b]` plus the node's depth.
        index: int64 `[B, D]`, written: the node's place in the flattened batch.
        first_child: int64 `[B, D]`, written: the child with the smallest node number, or -1.
        next_sibling: int64 `[B, D]`, written: the next child of the same parent, or -1.
        topk: Candidates that continue one node.
        depth: Draft steps.
        nodes: D.
        mask_layout: `FULL_MASK` or `QLEN_ONLY`.

    Raises:
        NotImplementedError: Bit-packed masks.
    """
    if mask_layout not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(
            f"tree mask layout {int(mask_layout)}: bit-packed masks are for CUDA kernels only"
        )
    batch = lengths.numel()
    parents = _parents(parent_list, selected, topk)
    node = torch.arange(nodes)
    index.copy_(node + torch.arange(batch)[:, None] * nodes)

    # child[b, p, i]: node i continues node p. The first child of p is its smallest i; siblings follow in order.
    child = torch.zeros(batch, nodes, nodes, dtype=torch.bool)
    child[:, :, 1:] = parents[:, None, :] == node[:, None]
    first_child.copy_(_smallest(child, node))
    siblings = torch.zeros_like(child)
    siblings[:, 1:, 1:] = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    next_sibling.copy_(_smallest(siblings & (node[None, :] > node[:, None]), node))

    sees = torch.eye(nodes, dtype=torch.bool).repeat(batch, 1, 1)
    above = torch.cat((torch.zeros(batch, 1, dtype=torch.int64), parents), dim=1)
    current, level = above.clone(), (node > 0).to(torch.int64).repeat(batch, 1)
    for _ in range(depth):
        sees |= node[None, None, :] == current[:, :, None]
        level += current > 0
        current = torch.where(current > 0, above.gather(1, current.clamp(min=0)), current)
    sees[:, :, 0] = True
    positions.copy_((level + lengths.to(torch.int64)[:, None]).reshape(-1))

    if mask_layout == QLEN_ONLY:
        mask[: sees.numel()] = sees.reshape(-1).to(mask.dtype)
        return
    width = lengths.to(torch.int64) + nodes
    block = (torch.cumsum(width, 0) - width) * nodes
    row = block[:, None] + width[:, None] * node + lengths.to(torch.int64)[:, None]
    mask[row[:, :, None] + node] = sees.to(mask.dtype)


def _smallest(where: Tensor, node: Tensor) -> Tensor:
    """The smallest node number that is true along the last dimension, or -1."""
    nodes = node.numel()
    least = torch.where(where, node, nodes).amin(-1)
    return torch.where(least == nodes, -1, least)


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each request's tree from the root along the target's arg-max tokens, as far as they were drafted.

    The names are those of SGLang's call, which passes them by keyword.

    Args:
        predicts: int32 `[B * D]`, written at the nodes on the path: the target's token after that node.
        accept_index: int32 `[B, steps + 1]`, filled with -1 by the caller; the path's nodes are written from the
            front as places in the flattened batch, the root first.
        accept_token_num: int32 `[B]`, written: accepted draft tokens, the target's own last token not counted.
        candidates: Integer `[B, D]`, the token of each node.
        retrive_index: int64 `[B, D]`, each node's place in the flattened batch.
        retrive_next_token: int64 `[B, D]`, first child or -1.
        retrive_next_sibling: int64 `[B, D]`, next sibling or -1.
        target_predict: Integer `[B, D]`, the target's arg-max after each node.
    """
    batch, steps = candidates.shape[0], accept_index.shape[1] - 1
    rows = torch.arange(batch)
    chosen = target_predict.reshape(-1)
    last = retrive_index[:, 0].to(torch.int64)
    accept_index[:, 0] = last.to(accept_index.dtype)
    accepted = torch.zeros(batch, dtype=torch.int64)
    parent = torch.zeros(batch, dtype=torch.int64)
    walking = torch.ones(batch, dtype=torch.bool)
    for _ in range(steps):
        wanted = chosen[last]
        node = torch.where(walking, retrive_next_token[rows, parent], -1)
        while True:  # along the siblings until each request has found its token or run out of them
            wrong = (node >= 0) & (candidates[rows, node.clamp(min=0)] != wanted)
            if not bool(wrong.any()):
                break
            node = torch.where(wrong, retrive_next_sibling[rows, node.clamp(min=0)], node)
        walking = node >= 0
        if not bool(walking.any()):
            break
        on = rows[walking]
        predicts[last[on]] = wanted[on].to(predicts.dtype)
        accepted[on] += 1
        parent[on] = node[on]
        last[on] = retrive_index[on, node[on]].to(torch.int64)
        accept_index[on, accepted[on]] = last[on].to(accept_index.dtype)
    accept_token_num.copy_(accepted)
    predicts[last] = chosen[last].to(predicts.dtype)
