"""Greedy speculation: draft a tree, have the target verify it, count. A chain is the tree of one branch.

Follows SGLang's worker, whose records are counted in the same way: a verification counts with all drafts it accepts,
be they behind the end of the answer. All prompts go on together; each has its own length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lab.reference.forward import Drafter, Place, Target


@dataclass(frozen=True, slots=True)
class Speculation:
    """What happened over one or more prompts.

    Attributes:
        steps: Draft steps before each verification (SGLang's draft tokens less one, for a chain).
        rounds: For each prompt, the drafts accepted at each verification.
        outputs: The generated token ids of each prompt.
    """

    steps: int
    rounds: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]

    @property
    def verify_steps(self) -> int:
        """Verifications by the target, over all prompts."""
        return sum(map(len, self.rounds))

    @property
    def accepted(self) -> tuple[int, ...]:
        """`accepted[k - 1]` is the number of verifications that accepted the draft at position `k`."""
        counts = [count for rounds in self.rounds for count in rounds]
        return tuple(sum(count >= position for count in counts) for position in range(1, self.steps + 1))

    @property
    def accept_length(self) -> float:
        """Tokens per verification, bonus included, at least 1: 1 + accepted drafts / verifications."""
        return 1 + sum(self.accepted) / self.verify_steps

    @property
    def accept_rate(self) -> float:
        """Accepted drafts / (verifications × draft steps), between 0 and 1."""
        return sum(self.accepted) / (self.verify_steps * self.steps)

    @property
    def position_rates(self) -> tuple[float, ...]:
        """For each draft position, the share of all verifications that accepted it (and those before it)."""
        return tuple(count / self.verify_steps for count in self.accepted)


def generate(
    target: Target, prompts: Iterable[Sequence[int]], max_new_tokens: int, stop_ids: Collection[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """Plain greedy decoding without a drafter: up to `max_new_tokens` ids for each prompt, a stop id included."""
    with one_thread(), torch.inference_mode():
        batch = _Batch(target, None, prompts, max_new_tokens, stop_ids, room=1)
        while batch.going:
            batch.verify(
                _Tree.of(batch.last[:, None], torch.zeros(len(batch.going), 1, dtype=torch.int64), 0)
            )
        return tuple(map(tuple, batch.outputs))


def speculate(
    target: Target,
    drafter: Drafter,
    prompts: Iterable[Sequence[int]],
    *,
    steps: int = 3,
    topk: int = 1,
    draft_tokens: int | None = None,
    max_new_tokens: int = 64,
    stop_ids: Collection[int] = (),
) -> Speculation:
    """Greedy decoding with a tree of drafts a round, counted over all `prompts`.

    The output of each prompt is token for token that of `generate`.

    Args:
        target: The target.
        drafter: The drafter.
        prompts: Token ids of each prompt.
        steps: Draft steps.
        topk: Candidates that continue each node.
        draft_tokens: D, the root included; `steps + 1` if None, and always for a chain.
        max_new_tokens: Length at which an answer is cut.
        stop_ids: Ids that end an answer.

    Raises:
        EngineStops: An engine would stop at these inputs.
    """
    nodes = steps + 1 if topk == 1 or draft_tokens is None else draft_tokens
    with one_thread(), torch.inference_mode():
        batch = _Batch(target, drafter, prompts, max_new_tokens, stop_ids, room=max(nodes, topk * steps))
        while batch.going:
            batch.verify(batch.draft(drafter, steps, topk, nodes))
        return Speculation(steps, tuple(map(tuple, batch.rounds)), tuple(map(tuple, batch.outputs)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors are tiny: more threads would spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class _Tree:
    """Drafts of one round.

    Attributes:
        tokens: `[B, D]` target ids, the root (the last token there is) first, parents before children.
        parents: `[B, D]`, each node's parent; the root's and a stray node's is itself.
        depths: `[B, D]`, 0 for the root.
        above: `[B, D, D]` bool: above[b, i, j] where j is i or one of its ancestors.
        steps: Longest path.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    above: Tensor
    steps: int

    @classmethod
    def of(cls, tokens: Tensor, parents: Tensor, steps: int) -> Self:
        """From tokens and parents alone."""
        above = torch.eye(tokens.shape[1], dtype=torch.bool).repeat(len(tokens), 1, 1)
        climbing = parents
        for _ in range(steps):
            above = above.scatter(2, climbing[:, :, None], True)
            climbing = parents.gather(1, climbing)
        return cls(tokens, parents, above.sum(-1) - 1, above, steps)


class _Batch:
    """The sequences under way: what is cached, what was generated, what the next draft starts from.

    Attributes:
        going: Numbers of the prompts whose answers have not ended, one a row of every tensor.
        last: `[B]`, the newest token of each; the target has not been fed it.
        rounds: For each prompt, the drafts accepted at each verification.
        outputs: For each prompt, its answer so far.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        prompts: Iterable[Sequence[int]],
        max_new_tokens: int,
        stop_ids: Collection[int],
        room: int,
    ) -> None:
        ids = [torch.tensor(list(prompt)) for prompt in prompts]
        self._target, self._drafter = target, drafter
        self._max_new_tokens, self._stop_ids = max_new_tokens, frozenset(stop_ids)
        self._capture = drafter.wiring.capture if drafter else None
        self.going = list(range(len(ids)))
        self.rounds: list[list[int]] = [[] for _ in ids]
        self.outputs: list[list[int]] = [[] for _ in ids]
        tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        slots = tokens.shape[1] + max_new_tokens + 2 * room
        self._caches = target.caches(len(ids), slots)
        self._draft_caches = drafter.caches(len(ids), slots) if drafter else []
        self._lengths, counts = torch.zeros(len(ids), dtype=torch.int64), torch.tensor([len(i) for i in ids])
        place = Place.after(self._lengths, tokens.shape[1])
        following, states = target.forward(tokens, place, self._caches, self._capture)
        newest = following.gather(1, counts[:, None] - 1)
        # Each hidden state goes with the token after it: the prompt shifted by one, then the first new token.
        shifted = torch.cat([tokens[:, 1:], newest], dim=1).scatter(1, counts[:, None] - 1, newest)
        self._advance(shifted, states, counts, newest.tolist(), prompt=True)

    def draft(self, drafter: Drafter, steps: int, topk: int, nodes: int) -> _Tree:
        """A tree of the `nodes - 1` likeliest drafts of `steps` steps, each continued by its `topk` likeliest tokens.

        As SGLang does it: a step runs for `topk` branches, and each branch sees the keys and values of its own number
        in the steps before, which with more than one are not always those of its ancestors.
        """
        batch, hidden = len(self.going), self._hidden[:, None].expand(-1, topk, -1)
        scores, draft_ids = self._logits.softmax(-1).topk(topk)
        tokens = drafter.target_ids(draft_ids)
        numbers = torch.arange(topk).expand(batch, -1)
        # Every candidate there is: its score, its token, the number of the candidate that it continues.
        candidates = [(scores, tokens, torch.full((batch, topk), -1))]
        for step in range(steps - 1):
            place = self._branches(drafter, step, steps, topk)
            drafted = drafter.forward(tokens, hidden, place, self._draft_caches, own=True)
            hidden = drafted["recurrence"]
            chances, draft_ids = drafted["logits"].softmax(-1).topk(topk)
            continued = (scores[:, :, None] * chances).flatten(1)
            following = drafter.target_ids(draft_ids).flatten(1)
            candidates.append((continued, following, numbers.repeat_interleave(topk, dim=1)))
            scores, chosen = continued.topk(topk)
            tokens, numbers = following.gather(1, chosen), chosen + topk + step * topk * topk
            hidden = hidden.gather(1, (chosen // topk)[:, :, None].expand(-1, -1, hidden.shape[-1]))
        all_scores, all_tokens, continues = (torch.cat(part, dim=1) for part in zip(*candidates, strict=True))
        chosen = all_scores.topk(nodes - 1).indices.sort().values
        parent_numbers = continues.gather(1, chosen)
        same = chosen[:, None, :] == parent_numbers[:, :, None]
        stray = torch.arange(1, nodes).expand(batch, -1)
        parents = torch.where(same.any(-1), same.int().argmax(-1) + 1, stray).where(parent_numbers >= 0, 0)
        root = torch.zeros(batch, 1, dtype=torch.int64)
        all_nodes = torch.cat([self.last[:, None], all_tokens.gather(1, chosen)], dim=1)
        return _Tree.of(all_nodes, torch.cat([root, parents], dim=1), steps)

    def verify(self, tree: _Tree) -> None:
        """Walk each tree along the target's own choices, and go on from where the walk ends."""
        width = tree.tokens.shape[1]
        slots = self._lengths[:, None] + torch.arange(width)
        before = torch.arange(int(slots.max()) + 1) < self._lengths[:, None, None]
        seen = before.repeat(1, width, 1).scatter(2, slots[:, None].expand(-1, width, -1), tree.above)
        place = Place(slots, self._lengths[:, None] + tree.depths, seen)
        following, states = self._target.forward(tree.tokens, place, self._caches, self._capture)
        node = torch.zeros(len(self.going), 1, dtype=torch.int64)
        path, accepted, walking = [node], torch.zeros_like(node), torch.ones_like(node, dtype=torch.bool)
        for _ in range(tree.steps):
            wanted = following.gather(1, node)
            right = (tree.parents == node) & (tree.tokens == wanted) & (torch.arange(width) > 0) & walking
            walking = right.any(1, keepdim=True)
            node = torch.where(walking, right.int().argmax(1, keepdim=True), node)
            accepted += walking
            path.append(node)
        walked = torch.cat(path, dim=1)
        for cache in self._caches:
            cache.move(slots.gather(1, walked), slots[:, :1] + torch.arange(walked.shape[1]))
        for number, count in zip(self.going, accepted.flatten().tolist(), strict=True):
            self.rounds[number].append(count)
        kept, counts = following.gather(1, walked), accepted.flatten() + 1
        states = states.gather(1, walked[:, :, None].expand(-1, -1, states.shape[-1]))
        new = [row[:count] for row, count in zip(kept.tolist(), counts.tolist(), strict=True)]
        self._advance(kept, states, counts, new)

    def _advance(
        self, tokens: Tensor, states: Tensor, counts: Tensor, new: list[list[int]], *, prompt: bool = False
    ) -> None:
        """Take `new` tokens in, leave out the answers that have ended, show the drafter what the target saw.

        Args:
            tokens: `[B, T]`, for each state the token after it.
            states: `[B, T, k × Ht]`.
            counts: `[B]`, how many of them are valid.
            new: The tokens that each answer gains.
            prompt: Whether the states are those of the prompt.
        """
        rows = [row for row, tokens_of_it in enumerate(new) if self._goes_on(self.going[row], tokens_of_it)]
        start, kept = self._lengths[rows], torch.tensor(rows, dtype=torch.int64)
        tokens, states, counts = tokens[kept], states[kept], counts[kept]
        self._lengths, self.going = start + counts, [self.going[row] for row in rows]
        if len(rows) < len(new):
            for cache in (*self._caches, *self._draft_caches):
                cache.keep(kept)
        self.last = tokens.gather(1, counts[:, None] - 1)[:, 0]
        if self._drafter is None or not rows:
            return
        # What the drafter saw through its own hidden states gives way to the target's.
        place = Place.after(start, tokens.shape[1], self._drafter.wiring.first_position)
        if self._drafter.wiring.accepted_twice and not prompt:
            place = place.doubled(counts)
        drafted = self._drafter.forward(tokens, states, place, self._draft_caches, own=False)
        ends = torch.arange(len(rows)), counts - 1
        self._logits, self._hidden = drafted["logits"][ends], drafted["recurrence"][ends]

    def _goes_on(self, number: int, new: list[int]) -> bool:
        output = self.outputs[number]
        for token in new:
            output.append(token)
            if token in self._stop_ids or len(output) >= self._max_new_tokens:
                return False
        return True

    def _branches(self, drafter: Drafter, step: int, steps: int, topk: int) -> Place:
        """Where the drafter's own step `step` stands: each branch has `steps` slots of its own behind the prefix."""
        first = self._lengths[:, None] + torch.arange(topk) * steps
        slots, slot = first + step, torch.arange(int(first.max()) + step + 1)
        mine = (slot >= first[:, :, None]) & (slot <= slots[:, :, None])
        seen = mine | (slot < self._lengths[:, None, None])
        wiring = drafter.wiring
        positions = self._lengths[:, None] + step + wiring.first_position + wiring.position_gap
        return Place(slots, positions.expand(-1, topk), seen)
