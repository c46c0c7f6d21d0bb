"""`python -m lab.parity`: where a drafter's forward pass in an engine differs from its trainer's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from eagle3lab.cli.output import Format, print_json
from eagle3lab.errors import Eagle3labError
from lab.parity.compare import compare_forwards
from lab.parity.report import as_json, print_text

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def parity(
    drafter: Annotated[
        Path, typer.Argument(help="Folder of the drafter as it is served.", show_default=False)
    ],
    target: Annotated[
        Path, typer.Option(help="Folder of the target; with --events, config, embedding and head are enough.")
    ],
    engine: Annotated[str, typer.Option(help="sglang==X.Y.Z, or installed.")] = "installed",
    trained: Annotated[
        Optional[Path],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(help="Folder of the drafter as its trainer saved it; the served one unless given."),
    ] = None,
    events: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="Run folder or events folder of a probe that kept tensors; states are made with the target otherwise."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Draft steps compared.")] = 2,
    format: Annotated[Format, typer.Option(help="A table for people, or JSON.")] = Format.text,
) -> None:
    """Run a drafter as its trainer computes it and as an engine does, on the same states, stage by stage.

    The exit status is 0 where what is drafted is alike, 1 where it differs, 2 where an input cannot be used.
    """
    report = compare_forwards(drafter, target, engine, trained=trained, events=events, steps=steps)
    if format is Format.json:
        print_json(as_json(report), ascii=False, allow_nan=False)
    else:
        print_text(report)
    raise typer.Exit(1 if report.verdict == "differ" else 0)


if __name__ == "__main__":
    try:
        app()
    except Eagle3labError as error:
        print(f"lab.parity: {error}", file=sys.stderr)
        raise SystemExit(2) from None
