"""`eagle3lab launch`: what a release makes of a launch command."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from eagle3lab.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from eagle3lab.engines.arguments import Machine, ResolvedLaunch
    from eagle3lab.engines.arguments.refusals import DefiniteRefusal
    from eagle3lab.engines.launch.reading import Launch

SCHEMA_VERSION = 1
_WIDTH_WITHOUT_TERMINAL = 180


class Gpu(StrEnum):
    """The machine that the command is for."""

    hopper = "hopper"
    blackwell = "blackwell"
    sm120 = "sm120"
    ampere = "ampere"
    cpu = "cpu"
    unknown = "unknown"


def launch(
    command: Annotated[
        str, typer.Argument(help="The launch command, or the script that holds it.", show_default=False)
    ],
    engine: Annotated[
        str, typer.Option(help="sglang==X.Y.Z, installed, or the path of a source tree.")
    ] = "installed",
    target: Annotated[
        Optional[Path],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(
            help="Folder of the target, where the command names none that is here.", show_default=False
        ),
    ] = None,
    drafter: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the drafter, likewise.", show_default=False),
    ] = None,
    gpu: Annotated[
        Gpu,
        typer.Option(
            help="The GPUs of the machine: blackwell is SM100 (B200), sm120 RTX PRO 6000 and RTX 5090."
        ),
    ] = Gpu.hopper,
    format: Annotated[Format, typer.Option(help="Tables for people, or JSON.")] = Format.text,
) -> None:
    """What a release makes of a launch command: what it changes, what it logs, what it refuses.

    The exit status is 0 where the server may start, 1 where it refuses to.
    """
    from eagle3lab.engines.launch.secrets import redact_json, secrets_in, spellings

    given, resolved, refused = resolve(command, engine, target, drafter, machine_of(gpu))
    secrets = secrets_in(given.words, given.environment)
    notes = [*given.notes, *resolved.unknown]
    if format is Format.json:
        definite = [{"fault": one.fault, "text": one.text, "fix": one.fix} for one in refused]
        values = {**as_json(resolved), "refused": definite, "notes": notes}
        print_json(redact_json(values, secrets), ascii=False)
    else:
        notes[:0] = dict.fromkeys(one.fix for one in refused)
        _print(resolved, notes, spellings(secrets))
    raise typer.Exit(1 if resolved.refused else 0)


def resolve(
    command: str, engine: str, target: Path | None, drafter: Path | None, machine: Machine | None
) -> tuple[Launch, ResolvedLaunch, tuple[DefiniteRefusal, ...]]:
    """The launch that a command or script asks for, what the release makes of it, and what mends its refusals.

    Raises:
        InputError: There is no command or it cannot be known, or a folder that was named holds no config.json.
    """
    from eagle3lab.engines.arguments import argument_rules, resolve_launch
    from eagle3lab.engines.arguments.refusals import refusals
    from eagle3lab.engines.launch.reading import read_launch
    from eagle3lab.errors import InputError

    given = read_launch(command, strict=True)
    if given.engine not in (None, "sglang"):
        raise InputError(f"launches {given.engine}, whose arguments are not resolved here", path=given.path)
    rules = argument_rules(engine)
    configs = _config(target, given.model), _config(drafter, given.drafter)
    resolved = resolve_launch(
        given.words,
        rules,
        target=configs[0],
        drafter=configs[1],
        machine=machine,
        environment=given.environment,
    )
    refused = refusals(given, rules, *configs, machine) if resolved.refused else ()
    return given, resolved, refused


def machine_of(gpu: Gpu) -> Machine | None:
    """The machine that is meant."""
    from eagle3lab.engines.arguments import AMPERE, BLACKWELL, CPU, HOPPER, SM120

    known = {Gpu.hopper: HOPPER, Gpu.blackwell: BLACKWELL, Gpu.sm120: SM120, Gpu.ampere: AMPERE, Gpu.cpu: CPU}
    return known.get(gpu)


def _config(folder: Path | None, named: str | None) -> Mapping[str, Any] | None:
    """The config.json of the folder given, or of the one that the command names if it is here."""
    if folder is not None:
        return read_config(folder)
    try:
        here = named is not None and Path(named, "config.json").is_file()
    except (OSError, ValueError):  # a name that no folder can have
        here = False
    return read_config(Path(str(named))) if here else None


def read_config(folder: Path) -> Mapping[str, Any]:
    """A model folder's config.json.

    Raises:
        InputError: There is none, or it is no JSON object.
    """
    from eagle3lab.checkpoint.json_input import read_json_object
    from eagle3lab.checkpoint.store import CONFIG_FILE, safe_file
    from eagle3lab.errors import InputError

    if not folder.is_dir():
        raise InputError("is no folder", path=folder, advice="Give the model's folder.")
    raw, _ = read_json_object(safe_file(folder.resolve(), CONFIG_FILE))
    return raw


def as_json(resolved: ResolvedLaunch) -> dict[str, Any]:
    """As plain values; what cannot be told is listed, and absent from `arguments`."""
    from dataclasses import asdict

    from eagle3lab.engines.arguments import UNKNOWN

    def plain(value: Any) -> Any:
        return "unknown" if value is UNKNOWN else value

    context = resolved.draft_context
    return {
        "schema_version": SCHEMA_VERSION,
        "release": resolved.release,
        "given": {name: plain(value) for name, value in resolved.given.items()},
        "arguments": {name: value for name, value in resolved.values.items() if value is not UNKNOWN},
        "unknown_arguments": [name for name, value in resolved.values.items() if value is UNKNOWN],
        "changes": [
            {
                "argument": one.field,
                "before": plain(one.before),
                "after": plain(one.after),
                "when": one.when,
                "said": one.said,
                "source": one.source,
                "certain": one.certain,
            }
            for one in resolved.changes
        ],
        "messages": list(resolved.messages),
        "refusals": [
            {
                "exception": one.exception,
                "message": one.message,
                "source": one.source,
                "certain": one.certain,
                "stage": one.stage,
            }
            for one in (*resolved.refusals, *resolved.late)
        ],
        "draft_context": None if context is None else asdict(context),
    }


def _print(resolved: ResolvedLaunch, notes: list[str], secrets: tuple[str, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from eagle3lab.engines.arguments import UNKNOWN
    from eagle3lab.engines.launch.secrets import redact_text
    from eagle3lab.text import printable

    def said(text: str) -> Text:
        return Text(printable(redact_text(text, secrets)))

    def shown(value: Any) -> Text:
        return said("unknown" if value is UNKNOWN else "-" if value is None else str(value))

    out = console(_WIDTH_WITHOUT_TERMINAL)
    table = Table(title=f"sglang=={printable(resolved.release)}: what it changes", title_justify="left")
    for heading in ("argument", "before", "after", "why", "read at"):
        table.add_column(heading, overflow="fold")
    for change in resolved.changes:
        why = change.said or change.when.replace("args.", "")
        may = "" if change.certain else "possibly: "
        table.add_row(
            Text(change.field),
            shown(change.before),
            shown(change.after),
            said(may + why),
            Text(change.source),
        )
    out.print(table)
    for refusal in (*resolved.refusals, *resolved.late):
        verb = "refuses" if refusal.certain else "may refuse"
        if refusal.stage == "load":
            verb += " after the weights are loaded"
        where = f" ({refusal.source})" if refusal.source else ""
        out.print(said(f"{verb}: {refusal.exception}: {refusal.message}{where}"))
    context = resolved.draft_context
    if context is not None:
        fate = (
            f"{context.length} tokens"
            if context.length
            else f"refused: {context.exception}: {context.message}"
        )
        out.print(said(f"the drafter's context: {fate} ({context.source})"))
    for note in notes:
        out.print(said(f"note: {note}"))
