"""The command line: parse, call, print. Everything a command needs is imported when it runs.

A command that reads headers must start in a few tens of milliseconds: no module here imports numpy, rich or
torch at the top.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Optional

import typer

from eagle3lab.cli import (
    acceptance,
    capture,
    compare,
    diagnose,
    engines,
    guard,
    inspect,
    launch,
    load_plan,
    measure,
    parity,
    repair,
    vocab,
)

_COMMANDS: dict[str, Callable[..., None]] = {
    "inspect": inspect.inspect,
    "load-plan": load_plan.load_plan,
    "vocab": vocab.vocab,
    "acceptance": acceptance.acceptance,
    "compare": compare.compare,
    "diagnose": diagnose.diagnose,
    "repair": repair.repair,
    "engines": engines.engines,
    "capture": capture.capture,
    "launch": launch.launch,
    "measure": measure.measure,
    "parity": parity.parity,
    "guard": guard.guard,
}


def _print_version(value: bool) -> None:
    if value:
        from eagle3lab import __version__

        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        Optional[bool],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
    ] = None,
) -> None:
    pass


def _with(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    made = typer.Typer(
        name="eagle3lab",
        help="Find out why an EAGLE-3 drafter is not accepted.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    made.callback()(_root)
    for name in names:
        made.command(name)(_COMMANDS[name])
    return made


app = _with(_COMMANDS)


def main() -> None:
    """Run the command line; an input that cannot be read ends with one line on stderr and exit status 2."""
    from eagle3lab.errors import Eagle3labError

    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        # Typer looks closely at every command there is, which is wasted time where one is named.
        (_with([asked]) if asked in _COMMANDS else app)()
    except Eagle3labError as error:
        print(f"eagle3lab: {error}", file=sys.stderr)
        raise SystemExit(2) from None
