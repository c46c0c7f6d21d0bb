"""What the comparison finds: plain values, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["alike", "absorbed", "part"]
"""Every stage is equal; some stage differs and no output does; an output differs."""

TOLERANCE = 1e-4
"""Largest difference, in units of the root mean square of the stage, that counts as equal. Both sides compute in
float32 from the same weights and states, in another order of additions: unit round-off is 6e-8, sums of hundreds to
tens of thousands of terms are 1e-7 to 1e-5 apart, and a stage that is wired differently 1e-2 and more."""

OUTPUTS = ("logits", "recurrence")
"""Stages by which a difference leaves a step: what is drafted from, and what the next step is given."""
DRAFTED = "drafted tokens"
"""Counts by itself only: near a tie, rounding decides which of two logits is the larger."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two tensors of one stage.

    Attributes:
        max_abs: Largest absolute difference; None where there is none to take (shapes, values that are not finite).
        relative: `max_abs` / root mean square of the trained tensor; for integers the share of unequal entries.
        cosine: Between the two, flattened; None for integers and zeros.
        alike: Whether they count as equal.
        shapes: Trained and served, where they differ.
    """

    max_abs: float | None
    relative: float | None
    cosine: float | None
    alike: bool
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one draft step on both sides.

    Attributes:
        step: 1 for the pass over the target's states, 2 and on for those over the drafter's own.
        name: Of the stage.
        carried: Both sides run from the states on: what has become of all differences before.
        own: The engine's stage computed from the trainer's inputs to it: what differs here and nowhere else.
    """

    step: int
    name: str
    carried: Difference
    own: Difference


@dataclass(frozen=True, slots=True)
class Cause:
    """A stage that the engine computes differently from equal inputs.

    Attributes:
        stage: With its figures.
        meaning: In words; a setting is named only if the difference is gone once the engine has it.
        harmless: Whether nothing can come of it by itself: rotary positions that all differ by one constant.
    """

    stage: Stage
    meaning: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """One pass of a real server held against the engine's side computed here.

    Attributes:
        step: Number of the pass in the recording.
        phase: extend, draft_extend or decode.
        tokens: Tokens of the pass.
        first_position: Rotary position of the first, as the server gave it.
        expected_position: The same as it is computed here.
        logits: Difference of the logits; None if they were not recorded.
        states: Difference of the hidden states that it returned; None if they were not recorded.
        given: For a draft step, whether the states it was given are those that the pass before returned.
    """

    step: int
    phase: str
    tokens: int
    first_position: int
    expected_position: int
    logits: Difference | None
    states: Difference | None
    given: Difference | None = None

    @property
    def alike(self) -> bool:
        """Whether everything that was recorded agrees."""
        return self.first_position == self.expected_position and all(
            one.alike for one in (self.logits, self.states, self.given) if one is not None
        )


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The two forward passes of a drafter, compared.

    Attributes:
        drafter: Folder that is served.
        trained: Folder by whose config the trainer's side computes.
        engine: `sglang==0.5.23`.
        source: Where the states come from: "target" computed here, "recording" of a server.
        sequences: Sequences compared.
        tokens: Tokens in them.
        tolerance: See `TOLERANCE`.
        stages: Every stage of every step, in the order in which they are computed.
        causes: Where the engine computes something else, in the same order.
        replayed: Passes of the recording computed again; empty without one.
        notes: What a reader should know.
    """

    drafter: str
    trained: str
    engine: str
    source: Literal["target", "recording"]
    sequences: int
    tokens: int
    tolerance: float
    stages: tuple[Stage, ...]
    causes: tuple[Cause, ...]
    replayed: tuple[Replayed, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether, and how far, the two sides differ."""
        if any(not one.carried.alike for one in self.stages if one.name in OUTPUTS):
            return "part"
        if any(not one.own.alike for one in self.stages if one.name == DRAFTED):
            return "part"
        return "absorbed" if self.causes else "alike"

    @property
    def first(self) -> Cause | None:
        """The first stage at which they part; one that is harmless only if there is no other."""
        harmful = [one for one in self.causes if not one.harmless]
        return next(iter(harmful or self.causes), None)

    @property
    def worst_alike(self) -> float:
        """Largest relative difference, carried on, of a stage that counts as equal."""
        return max((one.carried.relative or 0.0 for one in self.stages if one.carried.alike), default=0.0)
