"""Both forward passes run on the same sequences and compared, stage by stage and step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lab.parity.difference import difference
from lab.parity.engine import Step, computed, computed_from, stages
from lab.parity.model import Difference, Stage
from lab.parity.recording import Given
from lab.parity.trainer import TrainerHead, Values
from lab.reference import Drafter


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence and all that the trainer computes for it, a step each."""

    given: Given
    trained: Sequence[Values]

    def steps(self, drafter: Drafter, earlier: Sequence[Values]) -> Iterator[Step]:
        """The steps of the engine, each on what is found in `earlier` when it is asked for."""
        tokens = self.given.tokens
        first = torch.tensor([drafter.wiring.first_position])
        if self.given.positions is not None:
            first = self.given.positions[:1]
        for number in range(1, len(self.trained) + 1):
            shifted = torch.cat([tokens[number - 1 :], tokens.new_zeros(number - 1)])
            before = tuple(earlier[: number - 1])
            yield Step(drafter, number, shifted, self.given.served_states, first, before)


class Comparison:
    """The sequences, run through the trainer's side once.

    Args:
        head: The trainer's side.
        given: The sequences.
        steps: Draft steps.
        tolerance: Of `difference`.
    """

    def __init__(self, head: TrainerHead, given: Sequence[Given], steps: int, tolerance: float) -> None:
        self._sequences = [_Sequence(one, head.trace(one.tokens, one.trained_states, steps)) for one in given]
        self._steps, self._tolerance = steps, tolerance

    def stages(self, drafter: Drafter) -> tuple[Stage, ...]:
        """Every stage of every step, carried on and of itself.

        Raises:
            EngineStops: The engine would stop at these states.
        """
        carried = [self._carried(one, drafter) for one in self._sequences]
        own = self._own(drafter)
        return tuple(
            Stage(
                number,
                name,
                self._difference(number, name, [one[number - 1] for one in carried]),
                self._difference(number, name, [one[number - 1] for one in own]),
            )
            for number in range(1, self._steps + 1)
            for name, _ in stages(number)
        )

    def own(self, stage: Stage, drafter: Drafter) -> Difference:
        """The own difference of a stage, were this drafter served."""
        found = [one[stage.step - 1] for one in self._own(drafter)]
        return self._difference(stage.step, stage.name, found)

    def _own(self, drafter: Drafter) -> list[list[Values]]:
        with torch.inference_mode():
            return [
                [
                    computed_from(step, one.trained[step.number - 1])
                    for step in one.steps(drafter, one.trained)
                ]
                for one in self._sequences
            ]

    def _carried(self, one: _Sequence, drafter: Drafter) -> list[Values]:
        done: list[Values] = []
        with torch.inference_mode():
            for step in one.steps(drafter, done):
                done.append(computed(step))
        return done

    def _difference(self, step: int, name: str, served: Sequence[Values]) -> Difference:
        pairs = [
            (one.trained[step - 1][name], values[name])
            for one, values in zip(self._sequences, served, strict=True)
        ]
        # What follows the last token is padding: each later step has one row less to say something about.
        rows = [len(one.given.tokens) - (step - 1) for one in self._sequences]
        trained, engine = (
            torch.cat([side[:count] for side, count in zip(sides, rows, strict=True)])
            for sides in zip(*pairs, strict=True)
        )
        return difference(trained, engine, self._tolerance)
