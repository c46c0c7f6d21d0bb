"""`eagle3lab load-plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3lab.cli.output import Format, console, print_json

_WIDTH_WITHOUT_TERMINAL = 180


def load_plan(
    drafter: Annotated[Path, typer.Argument(help="Folder of the drafter's checkpoint.", show_default=False)],
    engine: Annotated[
        str,
        typer.Option(help="sglang==X.Y.Z, vllm==X.Y.Z, installed, or the path of a source tree of either."),
    ] = "installed",
    tp: Annotated[int, typer.Option(min=1, help="Number of tensor-parallel ranks.")] = 1,
    rank: Annotated[int, typer.Option(min=0, help="Which of them, from 0.")] = 0,
    ground_truth: Annotated[
        bool,
        typer.Option(
            "--ground-truth", help="Also run the release's own loader, and compare (takes seconds)."
        ),
    ] = False,
    format: Annotated[Format, typer.Option(help="A table for people, or JSON.")] = Format.text,
) -> None:
    """What an engine release loads of a drafter, tensor by tensor, and what it leaves as it was initialised."""
    from eagle3lab.checkpoint import open_checkpoint
    from eagle3lab.engines.atlas.resolve import resolve_engine
    from eagle3lab.engines.loading import simulate_load

    facts = resolve_engine(engine)
    checkpoint = open_checkpoint(drafter)
    plan = simulate_load(checkpoint, facts, tp, rank)
    real, disagreements = None, []
    if ground_truth:
        from eagle3lab.engines.ground_truth import real_load
        from eagle3lab.engines.loading import differences

        real = real_load(checkpoint, facts, tp, rank)
        disagreements = differences(plan, real)
    if format is Format.json:
        report = plan.to_dict()
        if real is not None:
            report |= {"ground_truth": real.to_dict(), "differences": disagreements}
        print_json(report)
        return

    from eagle3lab.engines.loading.plan import plan_tables
    from eagle3lab.text import printable

    # Where there is no terminal to ask, wide enough that names are not cut.
    out = console(_WIDTH_WITHOUT_TERMINAL)
    for drawn in plan_tables(plan):
        out.print(drawn)
    if real is not None:
        verdict = "something else:" if disagreements else "exactly this."
        where = facts.spec if facts.root is None else printable(facts.root)
        out.print(f"Ground truth: {where}'s own loader did {verdict}")
        for line in disagreements:
            out.print(line, markup=False)
