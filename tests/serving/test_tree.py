from __future__ import annotations

import random

import pytest
import torch

from eagle3lab.serving.cpu_kernels.tree import FULL_MASK, QLEN_ONLY, build_tree, verify_tree_greedy
from tests.serving.trees import Tree, laid_out, random_tree, walked

SHAPES = [(1, 1, 2), (1, 3, 4), (2, 1, 3), (2, 3, 6), (3, 4, 12), (4, 2, 5), (8, 5, 32)]


def forest(seed: int, shape: tuple[int, int, int], batch: int) -> list[Tree]:
    rng = random.Random(seed)
    return [tree for tree in (random_tree(rng, *shape) for _ in range(batch)) if tree is not None]


def built(
    trees: list[Tree], lengths: list[int], shape: tuple[int, int, int], layout: int
) -> dict[str, torch.Tensor]:
    topk, depth, nodes = shape
    batch = len(trees)
    size = nodes * (sum(lengths) + nodes * batch) if layout == FULL_MASK else nodes * nodes * batch
    out = {
        "mask": torch.ones(size, dtype=torch.bool),
        "positions": torch.empty(batch * nodes, dtype=torch.int64),
        "index": torch.full((batch, nodes), -1),
        "first": torch.full((batch, nodes), -1),
        "sibling": torch.full((batch, nodes), -1),
    }
    build_tree(
        torch.tensor([tree.parent_list for tree in trees], dtype=torch.int64).reshape(batch, -1),
        torch.tensor([tree.selected for tree in trees]),
        torch.tensor(lengths),
        *out.values(),
        topk,
        depth,
        nodes,
        layout,
    )
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", [FULL_MASK, QLEN_ONLY])
def test_trees_are_laid_out_as_by_hand(shape: tuple[int, int, int], layout: int) -> None:
    nodes = shape[2]
    for seed in range(10):
        trees = forest(seed, shape, 3)
        lengths = [5 + 7 * number for number in range(len(trees))]
        out = built(trees, lengths, shape, layout)
        at = 0
        for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            sees, depths, first, sibling = laid_out(tree)
            width = nodes + (length if layout == FULL_MASK else 0)
            block = out["mask"][at : at + nodes * width].view(nodes, width)
            at += nodes * width
            assert block[:, width - nodes :].tolist() == sees
            assert bool(block[:, : width - nodes].all())
            assert out["positions"][row * nodes : (row + 1) * nodes].tolist() == [length + d for d in depths]
            assert out["index"][row].tolist() == list(range(row * nodes, (row + 1) * nodes))
            assert out["first"][row].tolist() == first
            assert out["sibling"][row].tolist() == sibling


def test_a_node_without_its_parent_is_reached_by_nobody() -> None:
    # Node 2's candidate continues candidate 1, which was not selected.
    orphaned = Tree([-1, 0, 1], [0, 4], [-1, 0, -1])
    out = built([orphaned], [3], (2, 2, 3), QLEN_ONLY)
    assert out["first"].tolist() == [[1, -1, -1]]
    assert out["sibling"].tolist() == [[-1, -1, -1]]
    assert out["mask"].view(3, 3).tolist() == [[True, False, False], [True, True, False], [True, False, True]]


def test_bit_packed_masks_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="bit-packed"):
        built(forest(0, (2, 3, 6), 1), [4], (2, 3, 6), 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_verification_walks_as_by_hand(shape: tuple[int, int, int]) -> None:
    _, depth, nodes = shape
    accepted_by_length: set[int] = set()
    for seed in range(20):
        rng = random.Random(seed)
        trees = forest(seed, shape, 4)
        batch = len(trees)
        links = built(trees, [1] * batch, shape, QLEN_ONLY)
        # Few tokens, so that targets are often among the candidates; siblings have different ones.
        tokens = [[rng.randrange(100)] + [number % 7 for number in range(1, nodes)] for _ in trees]
        target = [[rng.randrange(7) for _ in range(nodes)] for _ in trees]
        predicts = torch.full((batch * nodes,), -5, dtype=torch.int32)
        accept_index = torch.full((batch, depth + 1), -1, dtype=torch.int32)
        count = torch.empty(batch, dtype=torch.int32)
        verify_tree_greedy(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=count,
            candidates=torch.tensor(tokens),
            retrive_index=links["index"],
            retrive_next_token=links["first"],
            retrive_next_sibling=links["sibling"],
            target_predict=torch.tensor(target),
        )
        for row, tree in enumerate(trees):
            path = walked(tree, tokens[row], target[row], depth)
            padded = [row * nodes + node for node in path] + [-1] * (depth + 1 - len(path))
            assert accept_index[row].tolist() == padded
            assert int(count[row]) == len(path) - 1
            written = {node: int(predicts[row * nodes + node]) for node in range(nodes)}
            assert written == {node: target[row][node] if node in path else -5 for node in range(nodes)}
            accepted_by_length.add(len(path))
    assert len(accepted_by_length) > 1, "the case never varies, so it tests nothing"
