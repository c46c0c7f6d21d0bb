"""`eagle3lab guard`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

_BROKEN = 1


def guard(
    command: Annotated[
        Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(help="The server's command, after --; without one, what to set is printed."),
    ] = None,
    refuse: Annotated[
        bool,
        typer.Option(
            "--refuse",
            help="Do not start, or stop while it starts, a server whose drafts cannot be accepted.",
        ),
    ] = False,
) -> None:
    """Start an SGLang server that says, before and while it starts, when its drafter cannot work.

    Exit status: that of the command; 1 if it was not started because its drafter is broken, 2 if it cannot be started.
    """
    import os
    import shlex

    from eagle3lab.errors import InputError
    from eagle3lab.serving.probe import guard_environment

    wanted = guard_environment("refuse" if refuse else "warn", os.environ)
    if not command:
        for name, value in wanted.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
        return
    if _is_broken(command) and refuse:
        raise typer.Exit(_BROKEN)
    try:
        os.execvpe(command[0], command, dict(os.environ) | wanted)
    except OSError as error:
        raise InputError(
            f"the command cannot be started: {error.strerror}", path=command[0], advice="Check its path"
        ) from None


def _is_broken(command: list[str]) -> bool:
    """Whether the diagnosis of the files that an SGLang command names says so; what it finds is printed on stderr."""
    import os
    import shlex
    from pathlib import Path

    from eagle3lab.engines.launch.reading import read_launch
    from eagle3lab.errors import InputError

    text = shlex.join(command)
    try:
        given = read_launch(text, variables=os.environ)
    except InputError:
        return False  # another program, which starts the server in its own way
    if given.drafter is None or not Path(given.drafter).is_dir():
        return False  # a name on the hub, or no drafter: nothing is here to look at

    from eagle3lab.diagnosis import diagnose

    target = Path(given.model) if given.model is not None and Path(given.model).is_dir() else None
    try:
        found = diagnose(Path(given.drafter), target=target, engine=_installed(), launch=text)
    except InputError as error:
        typer.echo(f"eagle3lab guard: the drafter was not looked at beforehand: {error}", err=True)
        return False
    for finding in found.findings if found.exit_status else ():
        if finding.severity != "note":
            typer.echo(f"eagle3lab guard: {finding.title} [{finding.fault}]. {finding.fix}", err=True)
    if found.verdict == "broken":
        typer.echo(
            "eagle3lab guard: nothing was loaded yet; `eagle3lab diagnose` with the same paths says more",
            err=True,
        )
    return found.verdict == "broken"


def _installed() -> str | None:
    """The engine of this environment, if it has one; the server's may be another, where its Python is."""
    from importlib.util import find_spec

    return "installed" if find_spec("sglang") is not None else None
