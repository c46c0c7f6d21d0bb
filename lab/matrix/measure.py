"""One cell: served by the reference, counted and diagnosed."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from eagle3lab.errors import Eagle3labError, InputError
from lab.faults import Served
from lab.matrix.prepare import Prepared, launch_of, plan_of, sglang_command
from lab.matrix.records import AND, HEALTHY, Cell, Diagnosed
from lab.specimen.trial import Trial

if TYPE_CHECKING:
    from lab.reference import Drafter, Speculation, Target


def by_reference(prepared: Prepared, trial: Trial) -> Cell:
    """Measure in plain torch."""
    from lab.reference import EngineStops, load_as_served, load_reference_target

    assert prepared.served is not None
    began, served, cell = time.monotonic(), prepared.served, prepared.cell
    target = load_reference_target(served.target)
    try:
        loaded = load_as_served(
            served.drafter,
            target,
            cell.engine,
            algorithm=str(prepared.launch["algorithm"]),
            attention_backend=plan_of(served, cell.engine).backends.get("attention", ""),
        )
        cell = msgspec.structs.replace(cell, dropped=loaded.dropped, uninitialised=loaded.uninitialised)
        run = speculated(served, target, loaded.drafter, trial, cell.max_new_tokens)
    except (EngineStops, InputError) as stop:
        return msgspec.structs.replace(cell, outcome="stops", detail=one_line(stop))
    return with_figures(cell, run.rounds, run.outputs, trial, seconds=time.monotonic() - began)


def speculated(
    served: Served, target: Target, drafter: Drafter, trial: Trial, max_new_tokens: int
) -> Speculation:
    """All prompts answered in the reference with the numbers of the launch.

    Raises:
        EngineStops: The release would stop.
    """
    from lab.reference import speculate

    launch = launch_of(served)
    return speculate(
        target,
        drafter,
        trial.prompts,
        steps=launch["steps"],
        topk=launch["topk"],
        draft_tokens=launch["draft_tokens"],
        max_new_tokens=max_new_tokens,
        stop_ids=trial.stop_ids,
    )


def with_figures(
    cell: Cell,
    rounds: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    trial: Trial,
    *,
    seconds: float,
) -> Cell:
    """The cell with its figures, from the accepted drafts of each verification and the answers of each prompt."""
    deepest = max(cell.steps, *(max(one, default=0) for one in rounds))
    counts = [Counter(one) for one in rounds]
    histograms = tuple(tuple(count[k] for k in range(deepest + 1)) for count in counts)
    return with_histograms(
        msgspec.structs.replace(cell, rounds=tuple("".join(map(str, one)) for one in rounds)),
        histograms,
        outputs,
        trial,
        seconds=seconds,
    )


def with_histograms(
    cell: Cell,
    histograms: tuple[tuple[int, ...], ...],
    outputs: Sequence[Sequence[int]],
    trial: Trial,
    *,
    seconds: float,
) -> Cell:
    """The same where only each prompt's histogram of accepted drafts is known."""
    total = [sum(column) for column in zip(*histograms, strict=True)]
    accepted = tuple(sum(total[k:]) for k in range(1, len(total)))
    steps = sum(total)
    mean, low, high = _interval(histograms)
    answers = answers_digest(outputs)
    return msgspec.structs.replace(
        cell,
        histograms=histograms,
        verify_steps=steps,
        accepted=accepted,
        accept_length=mean,
        low=low,
        high=high,
        answers=answers,
        same_answers=answers == answers_digest(_plain(trial, cell.max_new_tokens)),
        seconds=round(seconds, 1),
    )


def _interval(histograms: tuple[tuple[int, ...], ...]) -> tuple[float, float | None, float | None]:
    """Accept length with its 95% interval; prompts are what varies, each weighted by its verifications."""
    from eagle3lab.acceptance.student import student_quantile

    counted = [(sum(one), sum(k * n for k, n in enumerate(one))) for one in histograms if sum(one)]
    steps, accepted = sum(w for w, _ in counted), sum(a for _, a in counted)
    mean, n = 1 + accepted / steps, len(counted)
    if n < 2:
        return round(mean, 4), None, None
    # The standard error of a ratio of two sums.
    squares = sum((a - (mean - 1) * w) ** 2 for w, a in counted)
    wide = student_quantile(0.975, n - 1) * (squares * n / (n - 1)) ** 0.5 / steps
    return round(mean, 4), round(max(1.0, mean - wide), 4), round(mean + wide, 4)


def answers_digest(outputs: Sequence[Sequence[int]]) -> str:
    """First 12 hex digits of the SHA-256 of all answers."""
    text = json.dumps([list(output) for output in outputs])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_PLAIN: dict[tuple[int, int], Sequence[Sequence[int]]] = {}


def _plain(trial: Trial, max_new_tokens: int) -> Sequence[Sequence[int]]:
    """The target's answers without a drafter."""
    from lab.reference import generate

    key = (len(trial.prompts), max_new_tokens)
    if key not in _PLAIN:
        _PLAIN[key] = generate(trial.target, trial.prompts, max_new_tokens, trial.stop_ids)
    return _PLAIN[key]


def diagnosed(
    prepared: Prepared, log: Path | None = None, command: Callable[[Prepared], str] = sglang_command
) -> Diagnosed | None:
    """What the diagnosis says of the faulty folder, the command, and the log where there is one.

    Args:
        prepared: The cell; None comes back where nothing of it is served.
        log: The server's.
        command: Makes the launch command.
    """
    from eagle3lab.diagnosis import diagnose

    if prepared.served is None:
        return None
    cell = prepared.cell
    try:
        said = diagnose(
            prepared.served.drafter,
            target=prepared.served.target,
            engine=cell.engine,
            launch=command(prepared),
            log=log,
        )
    except Eagle3labError as error:
        return Diagnosed(verdict="unknown", title=one_line(error))
    if not said.findings:
        return Diagnosed(verdict=str(said.verdict), named=cell.slug == HEALTHY)
    first, slugs, named = said.findings[0], cell.slug.split(AND), [one.fault for one in said.findings]
    place = max(map(named.index, slugs)) + 1 if set(slugs) <= set(named) else None
    return Diagnosed(
        verdict=str(said.verdict),
        first=first.fault,
        code=first.code,
        confidence=round(first.confidence, 3),
        title=first.title,
        named=first.fault in slugs,
        place=place,
    )


def one_line(error: Exception) -> str:
    """An exception as one line without a path of this machine."""
    text = error.problem if isinstance(error, InputError) else str(error)
    return " ".join(text.split())[:300]
