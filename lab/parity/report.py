"""What the comparison of two forward passes finds: plain values, how far two tensors are apart, and the report."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from eagle3lab.text import printable

Verdict = Literal["alike", "absorbed", "differ"]
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
            return "differ"
        if any(not one.own.alike for one in self.stages if one.name == DRAFTED):
            return "differ"
        return "absorbed" if self.causes else "alike"

    @property
    def first(self) -> Cause | None:
        """The first stage at which they differ; one that is harmless only if there is no other."""
        harmful = [one for one in self.causes if not one.harmless]
        return next(iter(harmful or self.causes), None)

    @property
    def worst_alike(self) -> float:
        """Largest relative difference, carried on, of a stage that counts as equal."""
        return max((one.carried.relative or 0.0 for one in self.stages if one.carried.alike), default=0.0)


def difference(trained: Tensor, served: Tensor, tolerance: float) -> Difference:
    """The served tensor held against the trained one.

    Args:
        trained: What the trainer computes, any shape; float32, or integers.
        served: What the engine computes.
        tolerance: Largest `Difference.relative` that counts as equal. Integers must be the same.
    """
    if trained.shape != served.shape:
        shapes = (tuple(trained.shape), tuple(served.shape))
        return Difference(None, None, None, alike=False, shapes=shapes)
    if not trained.is_floating_point():
        apart = (trained != served).sum().item() / max(1, trained.numel())
        largest = float((trained - served).abs().max()) if trained.numel() else 0.0
        return Difference(largest, apart, None, alike=apart == 0)
    a, b = trained.double(), served.double()
    if not bool(a.isfinite().all() and b.isfinite().all()):
        return Difference(None, None, None, alike=False)
    if not a.numel():
        return Difference(0.0, 0.0, None, alike=True)
    largest = float((a - b).abs().max())
    scale = float(a.square().mean().sqrt())
    relative = largest / scale if scale else (math.inf if largest else 0.0)
    norms = float(a.norm() * b.norm())
    return Difference(
        largest,
        relative if math.isfinite(relative) else None,
        min(1.0, float(torch.dot(a.flatten(), b.flatten())) / norms) if norms else None,
        alike=relative <= tolerance,
    )


SCHEMA_VERSION = 1


def as_json(report: ParityReport) -> dict[str, Any]:
    """The report as plain values, with the verdict, the place of the first cause, and the schema's version."""
    values = dataclasses.asdict(report)
    first = report.first
    for one, plain in zip(report.replayed, values["replayed"], strict=True):
        plain["alike"] = one.alike
    for cause, plain in zip(report.causes, values["causes"], strict=True):
        plain["stage"], plain["step"], plain["own"] = (
            cause.stage.name,
            cause.stage.step,
            dataclasses.asdict(cause.stage.own),
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": report.verdict,
        "first": None if first is None else {"step": first.stage.step, "stage": first.stage.name},
        "worst_alike": report.worst_alike,
        **values,
    }


def headline(report: ParityReport) -> str:
    """The answer in one or two sentences."""
    within = (
        f"float32 on both sides: what counts as equal is at most {report.worst_alike:.1e} of its own scale apart, "
        f"{report.tolerance:.0e} is allowed"
    )
    first = report.first
    if report.verdict == "alike":
        return f"alike: every stage is equal ({within})"
    if report.verdict == "absorbed":
        where = "" if first is None else f" They differ at {_place(first.stage)}: {first.meaning}."
        return f"alike: logits and recurrent states are equal ({within}).{where}"
    if first is None:
        return f"they differ, and no stage differs of itself: small differences have grown ({within})"
    return f"they differ at {_place(first.stage)}: {first.meaning}"


def sentences(report: ParityReport) -> Iterator[str]:
    """What else there is to say, a sentence each."""
    for cause in report.causes:
        if cause is not report.first:
            yield f"also at {_place(cause.stage)}: {cause.meaning}"
    if report.replayed:
        yield replay_sentence(report.replayed)
    yield from report.notes


def replay_sentence(replayed: Sequence[Replayed]) -> str:
    """Whether the engine's side is what the server computed."""
    figures = [
        one.relative or 0.0 for each in replayed for one in (each.logits, each.states) if one is not None
    ]
    apart = [one for one in replayed if not one.alike]
    if not figures:
        return "the recording holds no logits and no states that came out: the engine's side is not checked by it"
    if apart:
        return (
            f"{len(apart)} of {len(replayed)} recorded passes are not what is computed here for the engine, the first "
            f"of them pass {apart[0].step} ({apart[0].phase}): the server does something that is not known here"
        )
    return (
        f"{len(replayed)} recorded passes of the server were computed again, and all agree with it: "
        f"at most {max(figures):.1e} of its own scale apart"
    )


def stage_rows(report: ParityReport) -> list[list[str]]:
    """The table's rows: step, stage, carried difference three ways, own difference, a word."""
    own = {(cause.stage.step, cause.stage.name): cause for cause in report.causes}
    rows = []
    for stage in report.stages:
        cause, carried = own.get((stage.step, stage.name)), stage.carried
        word = "" if carried.alike and stage.own.alike else "differs"
        if cause is not None or not stage.own.alike:
            word = "differs here" if cause is None or not cause.harmless else "differs here, harmless"
        rows.append(
            [
                str(stage.step),
                stage.name,
                _figure(carried.max_abs),
                _relative(carried),
                "" if carried.cosine is None else f"{carried.cosine:.6f}",
                _relative(stage.own),
                word,
            ]
        )
    return rows


HEADINGS = ("step", "stage", "largest", "relative", "cosine", "of itself", "")


def print_text(report: ParityReport) -> None:
    """Print it."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)

    def say(text: str) -> None:
        console.print(Text(printable(text)))

    say(headline(report))
    what = "prompts run through the target" if report.source == "target" else "recorded prompts"
    table = Table(
        title=f"{report.engine} against the trainer: {report.sequences} {what}, {report.tokens} tokens",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in HEADINGS[2:6] else "left")
    for row in stage_rows(report):
        table.add_row(*row)
    console.print(table)
    for sentence in sentences(report):
        say(f"note: {sentence}")


def _place(stage: Stage) -> str:
    return f"step {stage.step}, {stage.name}"


def _relative(one: Difference) -> str:
    if one.shapes is not None:
        return f"{_shape(one.shapes[0])} ≠ {_shape(one.shapes[1])}"
    return _figure(one.relative)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _figure(value: float | None) -> str:
    if value is None:
        return "not finite"
    return "0" if not value else f"{value:.1e}"
