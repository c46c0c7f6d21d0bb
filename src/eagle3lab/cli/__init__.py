"""The command line: parse, call, print. Everything a command needs is imported when it runs.

A command that reads headers must start in a few tens of milliseconds: no module here imports numpy, rich or
torch at the top.
"""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Optional

import typer

# In the order of the help; each is a function of its own name in the module of that name.
_COMMANDS = (
    "inspect", "load-plan", "vocab", "acceptance", "compare", "diagnose", "repair", "engines", "capture", "launch",
    "measure", "guard",
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
    """Run the command line, and let no traceback out of it.

    Exit status beside those of the commands: 2 an input that cannot be read (one line on stderr), 3 an error that
    nobody expected (one line that names a file with the details), 130 interrupted, 141 the reader of a pipe is gone.
    """
    from eagle3lab.errors import Eagle3labError

    # Python looks for cycles after every 700 objects made, and in all of them at its end: an eighth of a short command.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        try:
            # Typer looks closely at every command there is, which is wasted time where one is named.
            _with([asked] if asked in _COMMANDS else _COMMANDS)()
        finally:
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
    except Eagle3labError as error:
        print(f"eagle3lab: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (BrokenPipeError, SystemExit) as end:
        # Typer and rich end with status 1 then, which means "broken".
        if not isinstance(end if isinstance(end, OSError) else end.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes nowhere, without a word
        raise SystemExit(141) from None
    except Exception as error:
        print(f"eagle3lab: {_reported(error)}", file=sys.stderr)
        raise SystemExit(3) from None


def _reported(error: Exception) -> str:
    """One line about an error of ours; its traceback goes into a file, with the command but without its secrets."""
    import platform
    import tempfile
    import traceback

    from eagle3lab import __version__
    from eagle3lab.engines.launch.secrets import redact_arguments, redact_text, secrets_in, spellings
    from eagle3lab.text import printable

    secrets = spellings(secrets_in(sys.argv, os.environ))
    said = redact_text(f"{type(error).__name__}: {error}", secrets)
    line = f"this should not have happened ({printable(said, 200)})"
    about = f"eagle3lab {__version__}, Python {platform.python_version()}, {platform.platform()}"
    command = shlex.join(redact_arguments(sys.argv))
    details = redact_text("".join(traceback.format_exception(error)), secrets)
    try:
        descriptor, path = tempfile.mkstemp(prefix="eagle3lab-report-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{about}\n{command}\n\n{details}")
    except OSError as full:
        return f"{line}; a report could not be written either: {full.strerror}"
    return f"{line}; please open an issue and attach {path}, which holds the command and where it failed"
