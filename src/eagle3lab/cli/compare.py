"""`eagle3lab compare`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from eagle3lab.cli.output import Format, print_json


def compare(
    before: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of a run, its requests, or a log.")],
    after: Annotated[str, typer.Argument(metavar="RUN_B", help="The run to hold against it.")],
    engine: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(help="The engine that wrote the logs, such as sglang==X.Y.Z."),
    ] = None,
    draft_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, max=1024, help="Draft tokens of a verify step, where the logs do not say them."),
    ] = None,
    format: Annotated[Format, typer.Option(help="text or json.")] = Format.text,
) -> None:
    """Say whether run B is better than run A, by how much, and how sure that is."""
    from eagle3lab.acceptance.comparison import as_json, compare_runs, comparison_text
    from eagle3lab.acceptance.report import Given
    from eagle3lab.engines.release import parse_release

    given = Given(release=parse_release(engine) if engine else None, draft_tokens=draft_tokens)
    found = compare_runs(before, after, given)
    if format is Format.json:
        print_json(as_json(found), allow_nan=False)
    else:
        typer.echo(comparison_text(found), nl=False)
