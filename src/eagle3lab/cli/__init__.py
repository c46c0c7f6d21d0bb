"""The command line: parse, call, print. Everything a command needs is imported when it runs.

A command that reads headers must start in a few tens of milliseconds: no module here imports numpy, rich or
torch at the top.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Optional

import typer

# In the order of the help; each is a function of its own name in the module of that name.
_COMMANDS = (
    "inspect", "load-plan", "vocab", "acceptance", "compare", "diagnose", "repair", "engines", "capture", "launch",
    "measure", "parity", "guard",
)  # fmt: skip


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
        made.command(name)(_function(name))
    return made


def _function(command: str) -> Callable[..., None]:
    name = command.replace("-", "_")
    function: Callable[..., None] = getattr(import_module(f"{__name__}.{name}"), name)
    return function


def __getattr__(name: str) -> typer.Typer:
    """`app`: the command line with every command, made when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _with(_COMMANDS)


def main() -> None:
    """Run the command line; an input that cannot be read ends with one line on stderr and exit status 2."""
    from eagle3lab.errors import Eagle3labError

    # Python looks for cycles after every 700 objects made, and in all of them at its end: an eighth of a short command.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        # Typer looks closely at every command there is, which is wasted time where one is named.
        _with([asked] if asked in _COMMANDS else _COMMANDS)()
    except Eagle3labError as error:
        print(f"eagle3lab: {error}", file=sys.stderr)
        raise SystemExit(2) from None
