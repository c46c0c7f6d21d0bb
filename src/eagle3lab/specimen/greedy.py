"""A plain greedy loop with speculation, in torch and transformers: draft, verify, count.

No server, no batching, nothing hidden: it says how often a drafter is right when everything is wired as it
should be, and is what a real engine's figures are held against. One sequence at a time, with a cache on
both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle3lab.specimen.drafter import Drafter, DrafterCache

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache, LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class Speculation:
    """What happened over one or more prompts.

    Attributes:
        steps: Draft steps before each verification (SGLang's draft tokens less one).
        verify_steps: Verifications by the target.
        accepted: `accepted[k - 1]` is the number of verifications that accepted the draft at position `k`.
        outputs: The generated token ids of each prompt.
    """

    steps: int
    verify_steps: int
    accepted: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]

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


class _TargetRun:
    """A target with its cache over one sequence: feeds tokens, gives next tokens and auxiliary states."""

    def __init__(self, target: LlamaForCausalLM, aux_layers: Sequence[int]) -> None:
        from transformers import DynamicCache

        self._target = target
        self._aux_layers = aux_layers
        self._cache: DynamicCache = DynamicCache(config=target.config)

    def feed(self, tokens: Sequence[int]) -> tuple[list[int], torch.Tensor]:
        """The greedy next token after each of `tokens`, and the auxiliary states `[T, k × Ht]` at each."""
        import torch

        output = self._target(
            input_ids=torch.tensor([list(tokens)]),
            past_key_values=self._cache,
            use_cache=True,
            output_hidden_states=True,
        )
        # hidden_states[i] is the input of layer i; only the last one has been through the final norm.
        states = [output.hidden_states[layer][0] for layer in self._aux_layers]
        aux = torch.cat(states, dim=-1) if states else output.hidden_states[-1][0]
        return output.logits[0].argmax(-1).tolist(), aux

    def keep(self, length: int) -> None:
        """Forget everything from token `length` on."""
        surplus = self._cache.get_seq_length() - length
        if surplus:
            self._cache.crop(-surplus)


def generate(
    target: LlamaForCausalLM, prompt: Sequence[int], max_new_tokens: int, stop_ids: Collection[int] = ()
) -> tuple[int, ...]:
    """Plain greedy decoding without a drafter: up to `max_new_tokens` ids, a stop id included."""
    import torch

    with torch.inference_mode():
        run, feed, output = _TargetRun(target, ()), list(prompt), []
        while True:
            token = run.feed(feed)[0][-1]
            output.append(token)
            feed = [token]
            if token in stop_ids or len(output) == max_new_tokens:
                return tuple(output)


def speculate(
    target: LlamaForCausalLM,
    drafter: Drafter,
    prompts: Iterable[Sequence[int]],
    *,
    steps: int = 3,
    max_new_tokens: int = 64,
    stop_ids: Collection[int] = (),
) -> Speculation:
    """Greedy decoding with a chain of `steps` drafts a round, counted over all `prompts`.

    The output of each prompt is token for token that of `generate`. Drafts behind a stop id or beyond
    `max_new_tokens` count as if the text went on, except that nothing behind a stop id is accepted.
    """
    import torch

    verify_steps, accepted, outputs = 0, [0] * steps, []
    with torch.inference_mode():
        for prompt in prompts:
            rounds, output = _speculate_one(target, drafter, prompt, steps, max_new_tokens, stop_ids)
            verify_steps += len(rounds)
            for count in rounds:
                for position in range(count):
                    accepted[position] += 1
            outputs.append(output)
    return Speculation(steps, verify_steps, tuple(accepted), tuple(outputs))


def _speculate_one(
    target: LlamaForCausalLM,
    drafter: Drafter,
    prompt: Sequence[int],
    steps: int,
    max_new_tokens: int,
    stop_ids: Collection[int],
) -> tuple[list[int], tuple[int, ...]]:
    """Accepted drafts of every round, and the output."""
    run, cache = _TargetRun(target, drafter.aux_layers), DrafterCache()
    following, states = run.feed(prompt)
    output, rounds = [following[-1]], []
    # Each hidden state goes with the token after it: the prompt shifted by one, then the first new token.
    new_tokens = [*prompt[1:], following[-1]]
    known = len(prompt)
    while len(output) < max_new_tokens and output[-1] not in stop_ids:
        drafts = _draft(drafter, new_tokens, states, cache, steps)
        following, states = run.feed([output[-1], *drafts])
        count = _agreement(drafts, following, stop_ids)
        stopped = count > 0 and drafts[count - 1] in stop_ids
        new_tokens = drafts[:count] if stopped else [*drafts[:count], following[count]]
        rounds.append(count)
        output.extend(new_tokens)
        states = states[: count + 1]
        run.keep(known + count + 1)
        # What the drafter saw through its own hidden states gives way to the target's.
        cache.cut(known)
        known += count + 1
    return rounds, tuple(output[:max_new_tokens])


def _agreement(drafts: Sequence[int], following: Sequence[int], stop_ids: Collection[int]) -> int:
    """How many drafts in a row are the target's own choice, none counted behind a stop id."""
    for count, (draft, wanted) in enumerate(zip(drafts, following, strict=False)):
        if draft != wanted:
            return count
        if draft in stop_ids:
            return count + 1
    return len(drafts)


def _draft(
    drafter: Drafter, tokens: Sequence[int], states: torch.Tensor, cache: DrafterCache, steps: int
) -> list[int]:
    """A chain of `steps` target ids: the first from the target's states, the rest from the drafter's own."""
    import torch

    drafts: list[int] = []
    feed = torch.tensor(tokens)
    for _ in range(steps):
        logits, states = drafter.forward(feed, states, cache)
        feed, states = drafter.token_ids[logits[-1].argmax()][None], states[-1:]
        drafts.append(int(feed))
    return drafts
