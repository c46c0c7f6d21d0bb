"""From training's accuracies to the accept length to expect, and from an accept length to the speed-up it can give.

Assumptions, which every `Expectation` carries:

- greedy drafting of a chain: D - 1 drafts a step, each right or wrong once, none after the first wrong one;
- the accuracy measured in training holds on the text that is served (the same template, temperature 0);
- at steps beyond the last one measured, the last conditional accuracy goes on holding;
- coverage: where accuracies were measured only on tokens inside the draft vocabulary, a token outside it is never
  drafted, so each conditional accuracy is multiplied by the share of served tokens inside.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from eagle3lab.errors import InputError

FULL, CONDITIONAL, STEP = "unconditional", "conditional", "per step"
"""What training's numbers are: share of positions where all steps so far were right; share among those where the
earlier ones were right; share at this step whatever the earlier ones were (taken as conditional)."""

IMPOSSIBLE_STEP0 = 0.3
"""A first-step accuracy above which an accept length of 1.00 cannot be bad luck or other text, only wiring."""


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Training's per-step accuracies.

    conditional: element j: probability that draft j + 1 is right given that all before it were.
    kind: what the file held (FULL, CONDITIONAL or STEP); source: where it came from, in words.
    """

    conditional: tuple[float, ...]
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """What training promises.

    accept_length: expected tokens per verify step, bonus included.
    per_position: expected share of verify steps that accept position j + 1.
    draft_tokens: D it holds for; coverage: share of tokens inside the draft vocabulary that was assumed.
    assumptions: sentences.
    """

    accept_length: float
    per_position: tuple[float, ...]
    draft_tokens: int
    coverage: float
    assumptions: tuple[str, ...]

    @property
    def accept_rate(self) -> float:
        """Expected accepted drafts over proposed drafts."""
        return sum(self.per_position) / len(self.per_position)


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """What an accept length is worth.

    ratio: tokens per unit of time with speculation over without.
    break_even: accept length at which speculation costs as much as it gains.
    """

    ratio: float
    break_even: float


def expect(accuracies: Accuracies, draft_tokens: int, coverage: float = 1.0) -> Expectation:
    """The accept length that per-step accuracies promise for D draft tokens in a chain.

    Args:
        accuracies: from training.
        draft_tokens: D, at least 2.
        coverage: share of served tokens inside the draft vocabulary, when the accuracies leave out the others.

    Raises:
        InputError: D below 2, or a coverage that is no share.
    """
    if draft_tokens < 2:
        raise InputError("an expectation needs at least 2 draft tokens", advice="Give --draft-tokens")
    if not 0 < coverage <= 1:
        raise InputError("coverage must lie between 0 and 1")
    steps = draft_tokens - 1
    given = accuracies.conditional
    chain = [value * coverage for value in given[:steps]] + [given[-1] * coverage] * max(
        0, steps - len(given)
    )
    share, shares = 1.0, []
    for value in chain:
        share *= value
        shares.append(share)
    assumptions = [
        "a greedy chain of drafts, verified greedily",
        "the text served is like the text the accuracies were measured on",
    ]
    if accuracies.kind == STEP:
        assumptions.append("each step's accuracy holds when the earlier drafts were right")
    if steps > len(given):
        assumptions.append(f"beyond the {len(given)} steps measured the last accuracy goes on holding")
    if coverage < 1:
        assumptions.append(f"{coverage:.1%} of the tokens lie in the draft vocabulary")
    return Expectation(1 + sum(shares), tuple(shares), draft_tokens, coverage, tuple(assumptions))


def contradiction(expectation: Expectation, accept_length: float) -> str | None:
    """Why a measured accept length cannot be the same head in the same place, or None when it can.

    A head that is right on 74.5 % of first drafts and is accepted in 1.00 of the steps is not a bad head: served
    drafts are not the drafts that were trained.
    """
    first = expectation.per_position[0]
    if first < IMPOSSIBLE_STEP0 or accept_length >= 1 + first / 4:
        return None
    return (
        f"a head that is right on {first:.1%} of the first drafts alone would give an accept length of at least "
        f"{1 + first:.2f}; {accept_length:.2f} is not weak training, the drafter that runs is not the one that was "
        "trained (weights, states or token map)"
    )


def speed_up(accept_length: float, draft_cost: float, verify_cost: float, steps: int) -> SpeedUp:
    """The speed-up of speculation over plain decoding, memory-bound and at low load.

    Args:
        accept_length: tokens per verify step.
        draft_cost: time of one draft step, in plain decode steps of the target (a one-layer head: 0.02 to 0.1).
        verify_cost: time of one verify step, in plain decode steps (1 when memory-bound, more under load).
        steps: draft steps per verify step.
    """
    cost = verify_cost + steps * draft_cost
    if not cost > 0 or not math.isfinite(cost):
        raise InputError("draft and verify costs must be positive")
    return SpeedUp(accept_length / cost, cost)


STEP_COST = 0.05
"""Time of one draft step of a one-layer head, as a share of a verify step, where nothing else is known: 0.02 to 0.1."""


@dataclass(frozen=True, slots=True)
class StepsRow:
    """A number of draft steps: the accept length that it gives, its cost in verify steps, and their quotient."""

    steps: int
    accept_length: float
    cost: float
    speed: float


@dataclass(frozen=True, slots=True)
class Advice:
    """How many draft steps would serve best.

    step_cost: time of a draft step over that of a verify step. rows: for each number of steps, as far as drafts went.
    best: the number of steps with the highest speed; 0 where not drafting at all is faster.
    """

    step_cost: float
    rows: tuple[StepsRow, ...]
    best: int


def advise(unconditional: Sequence[float], step_cost: float = STEP_COST) -> Advice:
    """The number of draft steps that serves best at measured rates, for a chain.

    A position's rate does not depend on how many follow it, so the accept length with k steps is 1 + the sum of the
    first k shares. What a longer verification costs by itself is left out: it is little while memory decides.

    Args:
        unconditional: Share of verify steps that accepted position 1, 2, …
        step_cost: Time of a draft step over that of a verify step.
    """
    rows, length = [], 1.0
    for steps, share in enumerate(unconditional, 1):
        length += share
        cost = 1 + steps * step_cost
        rows.append(StepsRow(steps, length, cost, length / cost))
    best = max(rows, key=lambda row: row.speed, default=None)
    return Advice(step_cost, tuple(rows), best.steps if best is not None and best.speed > 1 else 0)


_NAMED = re.compile(
    r"(?:(?:train|eval|val|validation|test)[/_.])?(?:(?P<kind>full|cond)_acc|epoch_?acc|acc|accuracy)_(?P<step>\d{1,2})(?:_epoch)?"
)
_PRINTED = re.compile(r"position (?P<step>\d{1,2}),\s+Acc: (?P<value>[01]\.\d+)")


def read_accuracies(path: str | PathLike[str]) -> Accuracies:
    """Per-step accuracies from a file.

    Read: a JSON list of accuracies (step 0 first) or an object with a list under "accuracies"; speculators'
    `val_metrics.json` (`full_acc_0_epoch`, `cond_acc_0_epoch` …: its full accuracy of step k counts positions
    where every step up to k was right, so it is the unconditional share); flat metrics
    (`eval/acc_0` …, in JSON or JSON lines, of which the last is taken) and SpecForge's printed lines
    (`position 0,  Acc: 0.75`).

    Raises:
        InputError: the file cannot be read as any of these.
    """
    advice = "Give a JSON list such as [0.745, 0.68, 0.61], step 0 first"
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read accuracies ({type(error).__name__})", path=path, advice=advice
        ) from None
    found = _from_json(text) or _from_lines(text)
    if found is None:
        raise InputError("no per-step accuracies in this file", path=path, advice=advice)
    values, kind, source = found
    if not values or any(not 0 <= value <= 1 for value in values):
        raise InputError("accuracies must lie between 0 and 1, step 0 first", path=path, advice=advice)
    if kind == FULL:
        before = (1.0, *values[:-1])
        if any(b > a + 1e-6 for a, b in zip(before, values, strict=True)):
            raise InputError("accuracies of chains cannot rise from step to step", path=path, advice=advice)
        values = tuple(v / b if b > 0 else 0.0 for v, b in zip(values, before, strict=True))
    return Accuracies(values, kind, source)


_Found = tuple[tuple[float, ...], str, str]


def _from_json(text: str) -> _Found | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, list) and document and isinstance(document[-1], dict):
        document = document[-1]
    if isinstance(document, dict) and isinstance(document.get("accuracies"), list):
        document = document["accuracies"]
    if isinstance(document, list):
        numbers = [float(v) for v in document if isinstance(v, int | float) and not isinstance(v, bool)]
        return (
            (tuple(numbers), STEP, "a list of accuracies")
            if len(numbers) == len(document) and numbers
            else None
        )
    return _from_metrics(document) if isinstance(document, dict) else None


def _from_metrics(metrics: dict[str, object]) -> _Found | None:
    groups: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        match = _NAMED.fullmatch(name)
        if match and isinstance(value, int | float) and not isinstance(value, bool):
            groups.setdefault(match["kind"] or "", {})[int(match["step"])] = float(value)
    for key, kind, source in (
        ("full", FULL, "speculators' full_acc"),
        ("cond", CONDITIONAL, "speculators' cond_acc"),
        ("", STEP, "acc by step"),
    ):
        steps = groups.get(key, {})
        if 0 in steps:
            count = next(i for i in range(len(steps) + 1) if i not in steps)
            return tuple(steps[i] for i in range(count)), kind, source
    return None


def _from_lines(text: str) -> _Found | None:
    last: _Found | None = None
    printed: dict[int, float] = {}
    for line in text.splitlines():
        if line.startswith("{"):
            last = _from_json(line) or last
        elif match := _PRINTED.search(line):
            if int(match["step"]) == 0:
                printed = {}
            printed[int(match["step"])] = float(match["value"])
    if last is None and 0 in printed:
        count = next(i for i in range(len(printed) + 1) if i not in printed)
        last = tuple(printed[i] for i in range(count)), STEP, "printed accuracies by position"
    return last
