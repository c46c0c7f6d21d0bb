"""`eagle3lab capture`: which of the target's hidden states reach the drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from eagle3lab.cli.output import Format, print_json

if TYPE_CHECKING:
    from eagle3lab.engines.capture import CapturePlan

SCHEMA_VERSION = 1
_WORDS = {
    "extend": "after the prompt's pass",
    "draft_extend": "after a verify pass",
    "decode": "after the drafter's own pass",
}


def capture(
    drafter: Annotated[Path, typer.Argument(help="Folder of the drafter's checkpoint.", show_default=False)],
    target: Annotated[Path, typer.Option(help="Folder of the target; its config.json is enough.")],
    engine: Annotated[
        str, typer.Option(help="sglang==X.Y.Z, installed, or the path of a source tree.")
    ] = "installed",
    launch: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(
            help="The launch command, or the script that holds it; EAGLE3 with CUDA graphs without."
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="A table for people, or JSON.")] = Format.text,
) -> None:
    """Which of the target's hidden states reach the drafter, how wide they are, and whether fc is applied.

    The exit status is 0 where the server may start, 1 where it refuses to.
    """
    from eagle3lab.checkpoint import open_checkpoint
    from eagle3lab.cli.launch import read_config
    from eagle3lab.engines.atlas.resolve import resolve_release
    from eagle3lab.engines.capture import Launch, capture_plan

    checkpoint = open_checkpoint(drafter)
    resolved = resolve_release(engine)

    options = Launch() if launch is None else _launch(launch, engine, target, drafter)
    plan = capture_plan(
        read_config(target),
        checkpoint.config,
        resolved.facts,
        options,
        engine=resolved.label,
    )
    if format is Format.json:
        print_json({**as_json(plan), "notes": list(resolved.notes)}, ascii=False)
    else:
        _print(plan, resolved.notes)
    raise typer.Exit(1 if plan.refusal else 0)


def _launch(command: str, engine: str, target: Path, drafter: Path) -> Any:
    from eagle3lab.cli.launch import resolve
    from eagle3lab.engines.arguments import UNKNOWN
    from eagle3lab.engines.capture import Launch

    _, resolved, _ = resolve(command, engine, target, drafter, machine=None)
    algorithm = resolved.value("speculative_algorithm")
    if algorithm is UNKNOWN:
        algorithm = resolved.given.get("speculative_algorithm")
    # Newer releases disable graphs by phase; the old switch is still what the command says.
    graphs = not resolved.given.get("disable_cuda_graph")
    return Launch(str(algorithm).upper() if algorithm else "none", graphs)


def as_json(plan: CapturePlan) -> dict[str, Any]:
    """As plain values."""
    from eagle3lab.engines.atlas.codec import as_json as plain

    values: dict[str, Any] = plain(plan)
    return {"schema_version": SCHEMA_VERSION, **values, "fault": plan.fault}


def _print(plan: CapturePlan, notes: tuple[str, ...]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from eagle3lab.engines.capture import OF_IDS
    from eagle3lab.text import printable

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)

    def say(text: str) -> None:
        console.print(Text(printable(text)))

    say(f"{plan.engine}: {' → '.join(plan.chain) or 'no class that captures'}")
    if plan.refusal is not None:
        where = f" ({plan.refusal.source})" if plan.refusal.source else ""
        say(f"refuses: {plan.refusal.exception}: {plan.refusal.message}{where}")
    if plan.why_not:
        say(f"captures nothing: {plan.why_not}")
    if plan.ids is not None:
        read = f"read, {plan.shift:+d}" if plan.read and plan.shift is not None else "not read"
        say(f"{plan.place} {list(plan.ids)}: {read}")
    if plan.trained is not None:
        say(f"trained on the inputs of layers {list(plan.trained)}: {plan.evidence}")
    if plan.phases:
        table = Table(title="What the drafter receives", title_justify="left")
        for heading in ("pass", "CUDA graph", "inputs of layers", "outputs of layers", "width", "fc"):
            table.add_column(heading)
        for phase in plan.phases:
            table.add_row(
                _WORDS[phase.name],
                "yes" if phase.graphs else "no",
                ", ".join(map(str, phase.points)) or "-",
                ", ".join(str(point - 1) for point in phase.points) or "-",
                "unknown" if phase.width is None else str(phase.width),
                phase.fc or "unknown",
            )
        console.print(table)
    say(f"verdict: {plan.verdict}{f' ({plan.fault})' if plan.fault else ''}")
    if plan.needed is not None:
        say(f"the ids that capture what was trained: {list(plan.needed)} at {plan.needed_at}")
    elif plan.trained and plan.verdict in OF_IDS:
        say("no ids make this release capture what was trained")
    for note in (*plan.unknown, *notes):
        say(f"note: {note}")
