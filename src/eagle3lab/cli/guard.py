"""`eagle3lab guard`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer


def guard(
    command: Annotated[
        Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(help="The server's command, after --; without one, what to set is printed."),
    ] = None,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="Stop the server instead of warning in its log.")
    ] = False,
) -> None:
    """Start an SGLang server that says in its log, at its start, when its drafter cannot work."""
    import os
    import shlex

    from eagle3lab.errors import InputError
    from eagle3lab.serving.guard.command import variables

    wanted = variables("refuse" if refuse else "warn", os.environ)
    if not command:
        for name, value in wanted.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
        return
    try:
        os.execvpe(command[0], command, dict(os.environ) | wanted)
    except OSError as error:
        raise InputError(
            f"the command cannot be started: {error.strerror}", path=command[0], advice="Check its path"
        ) from None
