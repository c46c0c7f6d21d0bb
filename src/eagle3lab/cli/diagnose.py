"""`eagle3lab diagnose`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from eagle3lab.cli.output import console, print_json

if TYPE_CHECKING:
    from eagle3lab.diagnosis import Diagnosis

_WIDTH_WITHOUT_TERMINAL = 120


class Format(StrEnum):
    """How the diagnosis is written."""

    text = "text"
    json = "json"
    sarif = "sarif"
    html = "html"


def diagnose(
    drafter: Annotated[
        Optional[Path],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(help="Folder of the drafter's checkpoint.", show_default=False),
    ] = None,
    target: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the target; its config.json is enough."),
    ] = None,
    engine: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Engine release: sglang==X.Y.Z, vllm==X.Y.Z, installed, or a source tree."),
    ] = None,
    launch: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The launch command, or a file that holds it."),
    ] = None,
    log: Annotated[Optional[Path], typer.Option(help="The server's log, plain or compressed.")] = None,  # noqa: UP045
    events: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of a probe's events.", show_default=False),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A text file like that which is served: how much of it can be drafted."),
    ] = None,
    run: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A run folder of `eagle3lab measure`: gives what is not given otherwise."),
    ] = None,
    format: Annotated[Format, typer.Option(help="text, json, sarif, or html.")] = Format.text,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Print one line on stderr, for scripts that launch only if this is 0."),
    ] = False,
) -> None:
    """Say what keeps a drafter from being accepted, most likely cause first, and what to change.

    Exit status: 0 healthy, no-fault-found or unknown, 1 broken or suspect, 2 the inputs could not be read.
    """
    import os

    from eagle3lab.repair import diagnose as examine

    # Should numpy be needed: to start its threads, which have nothing to do here, takes half of its import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = examine(
        drafter, target=target, engine=engine, launch=launch, log=log, events=events, text=text, run=run
    )
    if gate:
        typer.echo(_gate_line(found), err=True)
    else:
        _print(found, format)
    raise typer.Exit(found.exit_status)


def _gate_line(found: Diagnosis) -> str:
    first = next(iter(found.findings), None)
    if found.exit_status == 0 or first is None:
        return f"eagle3lab: {found.verdict}"
    return f"eagle3lab: {found.verdict}: {first.title} [{first.code} {first.fault}]. {first.fix}"


def _print(found: Diagnosis, format: Format) -> None:
    if format is Format.json:
        print_json(found.as_json(), allow_nan=False)
    elif format is Format.sarif:
        from eagle3lab.diagnosis.reports import sarif

        print_json(sarif(found), allow_nan=False)
    elif format is Format.html:
        from eagle3lab.diagnosis.reports import page

        typer.echo(page(found), nl=False)
    else:
        from eagle3lab.diagnosis.reports import drawn

        out = console(_WIDTH_WITHOUT_TERMINAL)
        for line in drawn(found):
            out.print(line)
