"""`python -m lab.specimen`: remake the specimen, or measure the one that is there."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from eagle3lab.errors import Eagle3labError
from lab.specimen import specimen_dir
from lab.specimen.paths import checkout_folder
from lab.specimen.progress import Bars


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 2 when something it needs is missing."""
    from lab.specimen.recipe import FULL, MINIATURE

    parser = argparse.ArgumentParser(prog="python -m lab.specimen", description=__doc__)
    parser.add_argument("--out", type=Path, default=checkout_folder(), help="folder to write the specimen to")
    parser.add_argument(
        "--work",
        type=Path,
        help="folder for training states, to resume from (default: _build/specimen beside --out)",
    )
    parser.add_argument(
        "--target-steps", type=int, default=FULL.target.steps, help="training steps of the target"
    )
    parser.add_argument(
        "--head-steps", type=int, default=FULL.head.steps, help="training steps of the drafter"
    )
    parser.add_argument("--miniature", action="store_true", help="a run of seconds, to see that it works")
    parser.add_argument(
        "--measure", action="store_true", help="only measure acceptance of the specimen as it is"
    )
    chosen = parser.parse_args(arguments)
    if chosen.miniature and chosen.out == checkout_folder():
        parser.error("--miniature needs --out: it would replace the specimen by one that has learnt nothing")
    recipe = MINIATURE
    if not chosen.miniature:
        recipe = replace(
            FULL,
            target=replace(FULL.target, steps=chosen.target_steps),
            head=replace(FULL.head, steps=chosen.head_steps),
        )
    console = Console(stderr=True)
    try:
        from lab.specimen.build import build, measure

        with Bars(console) as bars:
            if chosen.measure:
                result = measure(specimen_dir(), recipe.measure_tokens, bars.update)
            else:
                work = chosen.work or chosen.out.parent / "_build" / "specimen"
                result = build(chosen.out, work, recipe, bars.update)["acceptance"]
    except (Eagle3labError, ImportError) as error:
        console.print(str(error), style="red", markup=False)
        if isinstance(error, ImportError):
            console.print("Training needs more packages: pip install 'eagle3lab[train]'", markup=False)
        return 2
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
