"""Random draft trees in SGLang's numbering, and the slow, plain way to lay them out and walk them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Tree:
    """One request's tree: `parent_list` and `selected` as the engine gives them, and each node's parent."""

    parent_list: list[int]
    selected: list[int]
    parents: list[int]  # by node; the root's is -1


def random_tree(rng: random.Random, topk: int, depth: int, nodes: int) -> Tree | None:
    """A tree of `nodes` nodes, the root included; None if this draft has too few candidates."""
    kept = list(range(topk))  # numbers of the candidates that the next step continues
    parent_of = dict.fromkeys(kept, -1)
    groups = [
        -1,
        *kept,
    ]  # parent_list: the candidate that each group of topk continues; group 0 is the root's
    offset = topk
    for step in range(1, depth):
        for position, number in enumerate(kept):
            for child in range(topk):
                parent_of[offset + position * topk + child] = number
        kept = sorted(rng.sample(range(offset, offset + topk * topk), topk))
        if step < depth - 1:
            groups += kept
        offset += topk * topk
    if depth == 1:
        groups = []
    chosen: list[int] = []
    while len(chosen) < nodes - 1:
        ready = [
            n for n, parent in parent_of.items() if n not in chosen and (parent == -1 or parent in chosen)
        ]
        if not ready:
            return None
        chosen.append(rng.choice(ready))
    chosen.sort()
    parents = [-1] + [0 if parent_of[n] == -1 else chosen.index(parent_of[n]) + 1 for n in chosen]
    return Tree(groups, chosen, parents)


def laid_out(tree: Tree) -> tuple[list[list[bool]], list[int], list[int], list[int]]:
    """Who sees whom, depth, first child and next sibling of each node."""
    nodes = range(len(tree.parents))
    sees, depths = [], []
    for node in nodes:
        path, at = {0, node}, node
        depth = 0
        while tree.parents[at] != -1:
            at = tree.parents[at]
            path.add(at)
            depth += 1
        sees.append([other in path for other in nodes])
        depths.append(depth)
    children = {node: [other for other in nodes if tree.parents[other] == node] for node in nodes}
    first = [children[node][0] if children[node] else -1 for node in nodes]
    sibling = [-1] * len(tree.parents)
    for family in children.values():
        for one, other in pairwise(family):
            sibling[one] = other
    return sees, depths, first, sibling


def walked(tree: Tree, tokens: list[int], target: list[int], steps: int) -> list[int]:
    """The accepted nodes, the root first."""
    path = [0]
    while len(path) <= steps:
        right = [
            node
            for node in range(len(tokens))
            if tree.parents[node] == path[-1] and tokens[node] == target[path[-1]]
        ]
        if not right:
            break
        path.append(right[0])
    return path
