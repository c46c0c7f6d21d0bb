from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from eagle3lab.serving.cpu_kernels.attention import (
    decode_attention,
    decode_attention_fwd,
    extend_attention,
    extend_attention_fwd,
)

LOCATIONS, WIDTH = 64, 20
# query heads, key heads, key width, value width: plain, grouped, MLA's prompt, MLA absorbed
HEADS = [(2, 2, 8, 8), (6, 2, 4, 4), (4, 4, 12, 8), (4, 1, 10, 6)]


def by_hand(
    query: list[float],
    keys: Sequence[list[float]],
    values: Sequence[list[float]],
    scale: float,
    cap: float = 0.0,
) -> list[float]:
    """Attention of one query head over keys, in plain Python."""
    scores = [scale * sum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    if cap:
        scores = [cap * math.tanh(score / cap) for score in scores]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = sum(weights)
    return [
        sum(w * v[i] for w, v in zip(weights, values, strict=True)) / total for i in range(len(values[0]))
    ]


class Cache:
    """Buffers, a table, and requests of the given lengths at shuffled locations; unused rows are NaN."""

    def __init__(self, heads: tuple[int, int, int, int], lengths: list[int]) -> None:
        torch.manual_seed(sum(lengths))
        _, key_heads, key_width, value_width = heads
        self.lengths = lengths
        self.keys = torch.full((LOCATIONS, key_heads, key_width), float("nan"))
        self.values = torch.full((LOCATIONS, key_heads, value_width), float("nan"))
        self.table = torch.zeros(len(lengths) + 2, WIDTH, dtype=torch.int32)
        self.slots = torch.randperm(len(lengths) + 2)[: len(lengths)]
        free = torch.randperm(LOCATIONS - 1) + 1
        for slot, length in zip(self.slots.tolist(), lengths, strict=True):
            own, free = free[:length], free[length:]
            self.table[slot, :length] = own.to(torch.int32)
            self.keys[own] = torch.randn(length, key_heads, key_width)
            self.values[own] = torch.randn(length, key_heads, value_width)

    def rows(self, request: int) -> torch.Tensor:
        return self.table[self.slots[request], : self.lengths[request]].to(torch.int64)


def expected_extend(
    cache: Cache,
    query: torch.Tensor,
    new: list[int],
    visible: list[list[list[bool]]],
    scale: float,
    cap: float,
) -> torch.Tensor:
    heads, out, at = query.shape[1], [], 0
    group = heads // cache.keys.shape[1]
    for request, count in enumerate(new):
        rows = cache.rows(request)
        for token in range(count):
            seen = [row for row, may in zip(rows.tolist(), visible[request][token], strict=True) if may]
            out.append(
                [
                    by_hand(
                        query[at, head].tolist(),
                        cache.keys[seen, head // group].tolist(),
                        cache.values[seen, head // group].tolist(),
                        scale,
                        cap,
                    )
                    for head in range(heads)
                ]
            )
            at += 1
    return torch.tensor(out)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(
    ("mode", "window", "cap"),
    [("causal", 0, 0.0), ("causal", 3, 0.0), ("causal", 0, 2.0), ("tree", 0, 0.0), ("all", 0, 0.0)],
)
@pytest.mark.parametrize("given", [True, False])
def test_extend_is_attention_by_hand(
    heads: tuple[int, int, int, int], mode: str, window: int, cap: float, given: bool
) -> None:
    new = [3, 3, 3] if mode == "tree" else [4, 0, 1]
    lengths = [7, 3, 9]
    cache = Cache(heads, lengths)
    query = torch.randn(sum(new), heads[0], heads[2])
    visible, masks = [], []
    for length, count in zip(lengths, new, strict=True):
        mask = torch.ones(count, count, dtype=torch.bool).tril()
        if mode == "tree":
            mask[2, 1] = False  # two branches from the root
        masks.append(mask)
        seen = torch.ones(count, length, dtype=torch.bool)
        if mode != "all":
            seen[:, length - count :] = mask
        if window:
            distance = torch.arange(length - count, length)[:, None] - torch.arange(length)
            seen &= distance < window
        visible.append(seen.tolist())
    scale = 0.4
    expected = expected_extend(cache, query, new, visible, scale, cap)
    keys = values = None
    if given:  # the new tokens come by argument alone: the cache need not hold them
        latest = torch.cat([cache.rows(r)[cache.lengths[r] - n :] for r, n in enumerate(new)])
        keys, values = cache.keys[latest], cache.values[latest]
        cache.keys[latest], cache.values[latest] = float("nan"), float("nan")
    out = torch.empty(sum(new), heads[0], heads[3])
    start = torch.tensor([0, *new[:-1]]).cumsum(0)
    tree_mask = torch.cat([mask.flatten() for mask in masks]) if mode == "tree" else None
    extend_attention(
        query, keys, values, out, cache.keys, cache.values, 1.0, 1.0, cache.table, cache.slots,
        torch.tensor(lengths), torch.tensor(new, dtype=torch.int32), start, max(new), scale, cap, False, window,
        None, None, tree_mask, mode != "all",
    )  # fmt: skip
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (4, 0.0), (0, 1.5)])
def test_decode_stores_the_token_and_attends(
    heads: tuple[int, int, int, int], window: int, cap: float
) -> None:
    lengths = [1, 6, 13]
    cache = Cache(heads, lengths)
    query = torch.randn(len(lengths), heads[0], heads[2])
    visible = [[[not window or place >= length - window for place in range(length)]] for length in lengths]
    expected = expected_extend(cache, query, [1, 1, 1], visible, 0.3, cap)
    latest = torch.stack([cache.rows(request)[-1] for request in range(len(lengths))])
    key, value = cache.keys[latest].clone(), cache.values[latest].clone()
    cache.keys[latest] = cache.values[latest] = float("nan")
    out = torch.empty(len(lengths), heads[0], heads[3])
    decode_attention(
        query, cache.keys, cache.values, 1.0, 1.0, out, key, value, latest, torch.empty(0), cache.table, cache.slots,
        torch.tensor(lengths), 0.3, cap, False, window, None, None,
    )  # fmt: skip
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(cache.keys[latest], key)
    assert torch.equal(cache.values[latest], value)
    again = torch.empty_like(out)
    decode_attention(
        query, cache.keys, cache.values, 1.0, 1.0, again, None, None, latest, torch.empty(0), cache.table, cache.slots,
        torch.tensor(lengths), 0.3, cap, False, window, None, None,
    )  # fmt: skip
    assert torch.equal(out, again)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("tree", [True, False])
def test_indexed_attention_agrees_with_the_table_s(heads: tuple[int, int, int, int], tree: bool) -> None:
    new, lengths = [3, 3], [7, 12]
    cache = Cache(heads, lengths)
    query = torch.randn(sum(new), heads[0], heads[2])
    latest = torch.cat([cache.rows(r)[cache.lengths[r] - n :] for r, n in enumerate(new)])
    keys, values = cache.keys[latest], cache.values[latest]
    mask = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    out, other = (torch.empty(sum(new), heads[0], heads[3]) for _ in range(2))
    extend_attention(
        query, keys, values, out, cache.keys, cache.values, 1.0, 1.0, cache.table, cache.slots, torch.tensor(lengths),
        torch.tensor(new), torch.tensor([0, 3]), 3, 0.3, 0.0, False, 0, None, None,
        mask.flatten().repeat(2) if tree else None, True,
    )  # fmt: skip
    # A prefix column of the custom mask is not read: false there changes nothing.
    blocks = [
        torch.cat((torch.zeros(3, length - 3, dtype=torch.bool), mask), 1).flatten() for length in lengths
    ]
    extend_attention_fwd(
        query, keys, values, other, cache.keys, cache.values, torch.tensor([0, 3, 6]), torch.tensor([0, 4, 13]),
        torch.cat([cache.rows(0)[:4], cache.rows(1)[:9]]), torch.cat(blocks) if tree else None, True,
        torch.tensor([0, blocks[0].numel()]) if tree else None, 3, 0.3, logit_cap=0.0,
    )  # fmt: skip
    torch.testing.assert_close(out, other)
    single, many = (torch.empty(2, heads[0], heads[3]) for _ in range(2))
    decode_attention(
        query[:2], cache.keys, cache.values, 1.0, 1.0, single, None, None, latest, torch.empty(0), cache.table,
        cache.slots, torch.tensor(lengths), 0.3, 0.0, False, 0, None, None,
    )  # fmt: skip
    decode_attention_fwd(
        query[:2], cache.keys, cache.values, many, torch.tensor([0, 7, 19, 99]),
        torch.cat([cache.rows(0), cache.rows(1)]), torch.empty(0), torch.empty(0), torch.empty(0), 8, 0.3,
    )  # fmt: skip
    torch.testing.assert_close(single, many)


def test_a_prompt_may_be_wider_than_the_cache() -> None:
    """MLA's prompt pass: four heads of 24 and 16, while the cache holds one row of 72 for all of them."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 24), torch.randn(3, 4, 24), torch.randn(3, 4, 16)
    buffer, out = torch.full((LOCATIONS, 1, 72), float("nan")), torch.empty(3, 4, 16)
    extend_attention(
        query, key, value, out, buffer, buffer[..., :64], 1.0, 1.0, torch.zeros(2, WIDTH, dtype=torch.int32),
        torch.tensor([1]), torch.tensor([3]), torch.tensor([3]), torch.tensor([0]), 3, 0.2, 0.0, False, 0, None, None,
        None, True,
    )  # fmt: skip
    indexed, nothing = torch.empty(3, 4, 16), torch.tensor([0, 0])
    extend_attention_fwd(
        query, key, value, indexed, buffer, buffer[..., :64], torch.tensor([0, 3]), nothing, nothing[:0], None, True,
        None, 3, 0.2,
    )  # fmt: skip
    for token in range(3):
        for head in range(4):
            keys, values = key[: token + 1, head].tolist(), value[: token + 1, head].tolist()
            expected = torch.tensor(by_hand(query[token, head].tolist(), keys, values, 0.2))
            torch.testing.assert_close(out[token, head], expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(indexed[token, head], expected, atol=1e-5, rtol=1e-5)


def test_what_is_not_known_is_refused() -> None:
    cache = Cache(HEADS[0], [2])
    query = torch.randn(1, 2, 8)
    ready = (query, cache.keys, cache.values, 1.0, 1.0, torch.empty(1, 2, 8), None, None, cache.slots, query)
    where = (cache.table, cache.slots, torch.tensor([2]), 1.0, 0.0)
    with pytest.raises(NotImplementedError, match="cross attention"):
        decode_attention(*ready, *where, True, 0, None, None)
    with pytest.raises(NotImplementedError, match="sinks"):
        decode_attention(*ready, *where, False, 0, None, torch.ones(2))
