"""`eagle3lab acceptance`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from eagle3lab.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eagle3lab.acceptance.report import AcceptanceReport, Given


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


def acceptance(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Logs as any tool keeps them (- is standard input), saved results, answers and metrics, folders of "
            "runs, or addresses of servers.",
            metavar="FILE|URL|RUN_FOLDER…",
        ),
    ],
    engine: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(help="The engine that wrote them, such as sglang==X.Y.Z."),
    ] = None,
    draft_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, max=1024, help="Draft tokens of a verify step (--speculative-num-draft-tokens)."),
    ] = None,
    steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            max=1024,
            help="Draft steps (--speculative-num-steps), where they are not draft tokens - 1.",
        ),
    ] = None,
    expected: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="Training's per-step accuracies: a JSON list, or speculators' or SpecForge's metrics."
        ),
    ] = None,
    coverage: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of served tokens inside the draft vocabulary, for --expected."
        ),
    ] = 1.0,
    step_cost: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=10.0,
            help="Time of a draft step over that of a verify step, for how many steps to draft.",
        ),
    ] = 0.05,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Go on reading one growing log, or one running server; Ctrl-C ends it."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="With --follow: seconds between two looks.")
    ] = 1.0,
    seconds: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(min=0.0, help="With --follow: stop after so many seconds.", show_default=False),
    ] = None,
    format: Annotated[
        Format, typer.Option(help="text, json (with --follow one object a line), or html.")
    ] = Format.TEXT,
) -> None:
    """Read acceptance from logs, servers and runs: what is accepted, how sure that is, and what it looks like."""
    from eagle3lab.acceptance.expectation import read_accuracies
    from eagle3lab.acceptance.report import Given
    from eagle3lab.acceptance.sources import account_sources
    from eagle3lab.engines.release import parse_release

    given = Given(
        release=parse_release(engine) if engine else None,
        draft_tokens=draft_tokens,
        steps=steps,
        accuracies=read_accuracies(expected) if expected else None,
        coverage=coverage,
        step_cost=step_cost,
    )
    if follow:
        _follow(sources, given, every, seconds, format)
    else:
        _write(account_sources(sources, given), format)


def _write(report: AcceptanceReport, format: Format) -> None:
    if format is Format.JSON:
        from eagle3lab.acceptance.render import as_json

        print_json(as_json(report), allow_nan=False)
    elif format is Format.HTML:
        from eagle3lab.acceptance.html import page

        typer.echo(page(report), nl=False)
    else:
        from eagle3lab.acceptance.render import as_text

        typer.echo(as_text(report), nl=False)


def _follow(sources: list[str], given: Given, every: float, seconds: float | None, format: Format) -> None:
    import math
    import sys

    from eagle3lab.acceptance.live import follow
    from eagle3lab.errors import InputError

    if len(sources) != 1:
        raise InputError("--follow takes one source", advice="Run it once for each, side by side")
    if format is Format.HTML:
        raise InputError("--follow writes text or json", advice="Leave out --follow for a page")
    reports = follow(sources[0], given, every_s=every, seconds=math.inf if seconds is None else seconds)
    last: AcceptanceReport | None = None
    show = _lines if format is Format.JSON or not sys.stdout.isatty() else _screen
    try:
        for report in show(reports, format):
            last = report
    except KeyboardInterrupt:
        pass
    finally:
        reports.close()  # type: ignore[attr-defined]
    if last is not None and format is Format.TEXT:
        _write(last, format)


def _lines(reports: Iterator[AcceptanceReport], format: Format) -> Iterator[AcceptanceReport]:
    """One line for each account."""
    import json
    import time

    from eagle3lab.acceptance.live import status_line
    from eagle3lab.acceptance.render import as_json

    said = ""
    for report in reports:
        yield report
        as_line = (
            json.dumps(as_json(report), allow_nan=False) if format is Format.JSON else status_line(report)
        )
        if as_line != said:
            typer.echo(as_line if format is Format.JSON else f"{time.strftime('%H:%M:%S')}  {as_line}")
        said = as_line


def _screen(reports: Iterator[AcceptanceReport], format: Format) -> Iterator[AcceptanceReport]:
    """The account in place, on a terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from eagle3lab.acceptance.live import sparkline
    from eagle3lab.acceptance.render import as_text

    with Live(console=Console(highlight=False), transient=True, auto_refresh=False) as live:
        for report in reports:
            yield report
            live.update(
                Text(f"{sparkline(report)}\n{as_text(report)}Ctrl-C ends.", no_wrap=True), refresh=True
            )
