"""`eagle3lab acceptance`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"


def acceptance(
    files: Annotated[
        list[Path], typer.Argument(help="Logs, plain, gzip or zstd; - is standard input.", metavar="FILE…")
    ],
    engine: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(help="The engine that wrote them, such as sglang==0.5.9."),
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
    format: Annotated[Format, typer.Option(help="text or json.")] = Format.TEXT,
) -> None:
    """Read acceptance from server logs: what is accepted, how sure that is, and what it looks like."""
    import json

    from eagle3lab.acceptance.expectation import read_accuracies
    from eagle3lab.acceptance.formulas import parse_engine
    from eagle3lab.acceptance.logs import read_logs
    from eagle3lab.acceptance.render import as_json, as_text
    from eagle3lab.acceptance.report import Given, account

    given = Given(
        release=parse_engine(engine) if engine else None,
        draft_tokens=draft_tokens,
        steps=steps,
        accuracies=read_accuracies(expected) if expected else None,
        coverage=coverage,
    )
    report = account(read_logs(files, draft_tokens), given)
    if format is Format.JSON:
        typer.echo(json.dumps(as_json(report), indent=2, allow_nan=False))
    else:
        typer.echo(as_text(report), nl=False)
