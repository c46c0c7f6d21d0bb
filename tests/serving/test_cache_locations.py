from __future__ import annotations

import random

import pytest
import torch

from eagle3lab.serving.cpu_kernels import cache_locations as kernels

WIDTH, REQUESTS = 24, 6


def table(seed: int = 0) -> torch.Tensor:
    return torch.arange(REQUESTS * WIDTH, dtype=torch.int32).view(REQUESTS, WIDTH) + 1000 * seed


@pytest.mark.parametrize("seed", range(5))
def test_locations_are_written_and_read_back(seed: int) -> None:
    rng = random.Random(seed)
    slots = rng.sample(range(REQUESTS), 4)
    start = [rng.randrange(WIDTH) for _ in slots]
    end = [rng.randint(first, WIDTH) for first in start]
    locations = [rng.randrange(10_000) for _ in range(sum(e - s for s, e in zip(start, end, strict=True)))]
    expected, rest = table().tolist(), list(locations)
    for slot, first, last in zip(slots, start, end, strict=True):
        for column in range(first, last):
            expected[slot][column] = rest.pop(0)
    ours = table()
    bounds = torch.tensor(start), torch.tensor(end, dtype=torch.int32)
    kernels.assign_req_to_token_pool(
        torch.tensor(slots), ours, *bounds, torch.tensor(locations, dtype=torch.int64), WIDTH
    )
    assert ours.tolist() == expected
    longer = torch.full((len(locations) + 3,), -7)
    kernels.assign_extend_cache_locs(torch.tensor(slots), ours, *bounds, longer, WIDTH)
    assert longer.tolist() == [*locations, -7, -7, -7]


def test_draft_locations_follow_each_requests_tokens() -> None:
    out = torch.empty(2 * 3 * 2, dtype=torch.int64)
    kernels.assign_draft_cache_locs_contiguous(
        torch.tensor([4, 1]), table(), torch.tensor([5, 0], dtype=torch.int32), out, WIDTH, 3, 2
    )
    assert out.tolist() == [4 * WIDTH + 5 + i for i in range(6)] + [WIDTH + i for i in range(6)]


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    accepted = torch.tensor([[11, 12, 13], [21, 22, 23], [31, 32, 33]], dtype=torch.int32)
    bonus = torch.empty(3, dtype=torch.int32)
    kernels.fill_bonus_tokens(accepted, torch.tensor([1, 3, 2], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [11, 23, 32]


def test_locations_of_accepted_tokens_are_packed() -> None:
    out = torch.zeros(6, dtype=torch.int64)
    index = torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32)
    kernels.fill_accept_out_cache_loc(index, torch.tensor([70, 71, 72, 73]), out)
    assert out.tolist() == [70, 72, 73, 0, 0, 0]


def test_ids_are_rotated_within_each_request() -> None:
    start, lengths = torch.tensor([0, 3, 3, 4]), torch.tensor([3, 0, 1, 2], dtype=torch.int32)
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    kernels.rotate_input_ids(ids, start, lengths, torch.tensor([70, 71, 72, 73]))
    assert ids.tolist() == [2, 3, 70, 72, 6, 73]
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    select = torch.tensor([1, 0, 3, 5])
    kernels.rotate_input_ids(ids, start, lengths, torch.tensor([[70], [71], [72], [73]]), select)
    assert ids.tolist() == [2, 70, 3, 72, 6, 73]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_cache_rows_are_copied_in_every_layer(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [torch.randint(0, 200, (10, 2, width)).to(dtype) for width in (4, 4, 3)]
    before = [layer.clone() for layer in layers]
    target, source = (
        torch.tensor([1, 2, 0, 0]),
        torch.tensor([2, 9, 0, 0]),
    )  # overlapping, padded as by SGLang
    kernels.copy_all_layer_kv_cache(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer[0].numel() * layer.element_size() for layer in layers]),
        target,
        source,
    )
    for layer, old in zip(layers, before, strict=True):
        expected = {row: old[row] for row in range(10)} | {1: old[2], 2: old[9]}
        assert all(torch.equal(layer[row], expected[row]) for row in range(10))
    kernels.copy_all_layer_kv_cache(torch.tensor([0]), torch.tensor([8]), target[:0], source[:0])


@pytest.mark.parametrize(("topk", "steps"), [(1, 3), (2, 3), (4, 1)])
def test_each_branch_sees_the_prefix_and_its_own_steps(topk: int, steps: int) -> None:
    slots, lengths = [3, 0], [5, 9]
    out = kernels.build_draft_decode_metadata(
        table(), torch.tensor(slots), torch.tensor(lengths, dtype=torch.int32), topk, steps, WIDTH
    )
    rows = table().tolist()
    for request, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        for branch in range(topk):
            own = [rows[slot][length + branch * steps + step] for step in range(steps)]
            expected = rows[slot][:length] + own
            found = out[request * topk + branch].tolist()
            assert found[: len(expected)] == expected
            assert not any(found[len(expected) :])
    assert out.dtype == torch.int32
