"""The report for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3lab.text import printable
from lab.parity.model import Difference, ParityReport, Replayed, Stage

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
        return f"they part, and no stage differs of itself: small differences have grown ({within})"
    return f"they part at {_place(first.stage)}: {first.meaning}"


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
            word = "parts here" if cause is None or not cause.harmless else "differs here, harmless"
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
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
