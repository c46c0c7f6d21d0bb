"""The command line: parse, call, print. Everything a command needs is imported when it runs.

A command that reads headers must start in a few tens of milliseconds: no module here imports numpy, rich or
torch at the top.
"""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer

from eagle3lab.cli import acceptance, diagnose, engines, inspect, load_plan, repair, vocab

app = typer.Typer(
    name="eagle3lab",
    help="Find out why an EAGLE-3 drafter is not accepted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("inspect")(inspect.inspect)
app.command("load-plan")(load_plan.load_plan)
app.command("vocab")(vocab.vocab)
app.command("acceptance")(acceptance.acceptance)
app.command("diagnose")(diagnose.diagnose)
app.command("repair")(repair.repair)
app.command("engines")(engines.engines)


def _print_version(value: bool) -> None:
    if value:
        from eagle3lab import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        Optional[bool],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
    ] = None,
) -> None:
    pass


def main() -> None:
    """Run the command line; an input that cannot be read ends with one line on stderr and exit status 2."""
    from eagle3lab.errors import Eagle3labError

    try:
        app()
    except Eagle3labError as error:
        print(f"eagle3lab: {error}", file=sys.stderr)
        raise SystemExit(2) from None
