"""Run inside an engine release: our kernels against the release's own Triton kernels, under Triton's interpreter.

Prints one JSON object: the number of comparisons by kernel. Raises where they differ.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter

import torch

from eagle3lab.serving.cpu_kernels import attention, cache_locations, tree
from tests.serving.trees import random_tree

done: Counter[str] = Counter()


def same(kernel: str, *pairs: tuple[torch.Tensor, torch.Tensor]) -> None:
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
    done[kernel] += 1


def trees() -> None:
    from sglang.kernels.ops.speculative import spec_tree

    for seed in range(12):
        rng = random.Random(seed)
        topk, depth, nodes = rng.choice([(1, 3, 4), (2, 3, 6), (3, 2, 7), (4, 3, 12)])
        forest = [t for t in (random_tree(rng, topk, depth, nodes) for _ in range(3)) if t is not None]
        batch, lengths = len(forest), torch.tensor([rng.randrange(1, 9) for _ in forest])
        parents = torch.tensor([t.parent_list for t in forest])
        selected = torch.tensor([t.selected for t in forest])
        for layout in (tree.FULL_MASK, tree.QLEN_ONLY):
            size = nodes * nodes * batch + (nodes * int(lengths.sum()) if layout == tree.FULL_MASK else 0)
            out = [
                [torch.ones(size, dtype=torch.bool), torch.empty(batch * nodes, dtype=torch.int64)]
                + [torch.full((batch, nodes), -1) for _ in range(3)]
                for _ in range(2)
            ]
            for build, buffers in (
                (tree.build_tree, out[0]),
                (spec_tree.sgl_build_tree_kernel_triton, out[1]),
            ):
                build(
                    parents, selected, lengths, *buffers, topk, depth, nodes, spec_tree.TreeMaskMode(layout)
                )
            same("build_tree", *zip(*out, strict=True))
        # The release's greedy verification is left out: the interpreter takes a Boolean's True for -1 in its sums.


def locations() -> None:
    from sglang.kernels.ops.kvcache import cache_move
    from sglang.kernels.ops.speculative import cache_locs, eagle, multi_layer_eagle
    from sglang.srt.mem_cache import allocation

    for seed in range(8):
        torch.manual_seed(seed)
        table = torch.randint(0, 900, (6, 40), dtype=torch.int32)
        slots = torch.randperm(6)[:3]
        start = torch.randint(0, 20, (3,))
        end = start + torch.randint(0, 20, (3,))
        total = int((end - start).sum())
        ours, theirs = (torch.full((total + 1,), -1) for _ in range(2))
        cache_locations.assign_extend_cache_locs(slots, table, start, end, ours, 40)
        cache_locs.assign_extend_cache_locs[(3,)](slots, table, start, end, theirs, 40, 4)
        same("assign_extend_cache_locs", (ours, theirs))
        written = [table.clone(), table.clone()]
        fresh = torch.randint(1000, 2000, (total,))
        cache_locations.assign_req_to_token_pool(slots, written[0], start, end, fresh, 40)
        allocation.assign_req_to_token_pool[(3,)](slots, written[1], start, end, fresh, 40, 4)
        same("assign_req_to_token_pool", (written[0], written[1]))
        ours, theirs = (torch.full((3 * 6,), -1) for _ in range(2))
        cache_locations.assign_draft_cache_locs_contiguous(slots, table, start, ours, 40, 2, 3)
        cache_locs.assign_draft_cache_locs_contiguous[(3,)](slots, table, start, theirs, 40, 2, 3)
        same("assign_draft_cache_locs_contiguous", (ours, theirs))
        tokens, counts = (
            torch.randint(0, 99, (12,), dtype=torch.int32),
            torch.randint(1, 5, (3,), dtype=torch.int32),
        )
        ours, theirs = (torch.zeros(3, dtype=torch.int32) for _ in range(2))
        cache_locations.fill_bonus_tokens(tokens, counts, ours, 4)
        eagle.fill_bonus_tokens[(3,)](tokens, counts, theirs, 4)
        same("fill_bonus_tokens", (ours, theirs))
        index = torch.where(torch.rand(3, 4) < 0.5, torch.randint(0, 12, (3, 4)), -1)
        places = torch.randint(0, 900, (12,))
        ours, theirs = (torch.zeros(12, dtype=torch.int64) for _ in range(2))
        cache_locations.fill_accept_out_cache_loc(index, places, ours)
        eagle.fill_accept_out_cache_loc[(12,)](index, places, theirs, 16)
        same("fill_accept_out_cache_loc", (ours, theirs))
        lengths = torch.tensor([4, 1, 9])
        firsts, newest = torch.tensor([0, 4, 5]), torch.randint(0, 99, (3,))
        for select in (None, torch.tensor([2, 4, 9])):
            ids = [torch.arange(14), torch.arange(14)]
            cache_locations.rotate_input_ids(ids[0], firsts, lengths, newest, select)
            multi_layer_eagle.rotate_input_ids_kernel[(3,)](
                ids[1], firsts, lengths, newest, select, BLOCK_SIZE=16
            )
            same("rotate_input_ids", (ids[0], ids[1]))
        layers = [[torch.arange(60.0).view(10, 6) + layer for layer in range(3)] for _ in range(2)]
        target, source = torch.randperm(10)[:4], torch.randint(0, 10, (4,))
        pointers = [torch.tensor([t.data_ptr() for t in group], dtype=torch.uint64) for group in layers]
        strides = torch.full((3,), 24)
        cache_locations.copy_all_layer_kv_cache(pointers[0], strides, target, source)
        cache_move.copy_all_layer_kv_cache_tiled[(3, 1)](
            pointers[1], strides, target, source, 4, 8, BYTES_PER_TILE=128
        )
        same("copy_all_layer_kv_cache", *zip(*layers, strict=True))


def triton_attention() -> None:
    from sglang.srt.layers.attention.triton_ops import decode_attention, extend_attention

    for seed, (heads, key_heads) in enumerate([(2, 2), (4, 1), (4, 2)]):
        torch.manual_seed(seed)
        width, new, cached = 16, 4, torch.tensor([5, 0, 11])
        buffers = [torch.randn(64, key_heads, width) for _ in range(2)]
        query = torch.randn(3 * new, heads, width)
        fresh = [torch.randn(3 * new, key_heads, width) for _ in range(2)]
        bounds = torch.tensor([0, *cached.cumsum(0).tolist()], dtype=torch.int32)
        places = torch.randperm(64)[: int(cached.sum())]
        sizes = [new * (int(length) + new) for length in cached]
        masks = torch.cat(
            [
                (torch.rand(new, new) < 0.5).logical_or(torch.eye(new, dtype=torch.bool)).tril()
                if part
                else torch.ones(new, int(length), dtype=torch.bool)
                for length in cached
                for part in (0, 1)
            ],
            dim=1,
        )
        blocks, at = [], 0
        for length in cached.tolist():
            blocks.append(masks[:, at : at + length + new].flatten())
            at += length + new
        mask_bounds = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
        starts = torch.arange(0, 3 * new + 1, new, dtype=torch.int32)
        for mask in (None, torch.cat(blocks)):
            out = [torch.empty(3 * new, heads, width) for _ in range(2)]
            for function, result in (
                (attention.extend_attention_fwd, out[0]),
                (extend_attention.extend_attention_fwd, out[1]),
            ):
                function(
                    query, *fresh, result, *buffers, starts, bounds, places, mask, True,
                    None if mask is None else mask_bounds, new, 0.25, logit_cap=0.0,
                )  # fmt: skip
            same("extend_attention_fwd", (out[0], out[1]))
        out = [torch.empty(2, heads, width) for _ in range(2)]
        rows = torch.tensor([0, 5, 16], dtype=torch.int32)
        for function, result in (
            (attention.decode_attention_fwd, out[0]),
            (decode_attention.decode_attention_fwd, out[1]),
        ):
            function(
                query[:2], *buffers, result, rows, places, torch.empty(2, heads, 8, width), torch.empty(2, heads, 8),
                torch.full((2,), 8, dtype=torch.int32), 8, 0.25, logit_cap=0.0,
            )  # fmt: skip
        same("decode_attention_fwd", (out[0], out[1]))


if __name__ == "__main__":
    for part in sys.argv[1:]:
        {"trees": trees, "locations": locations, "attention": triton_attention}[part]()
    print(json.dumps(done))
