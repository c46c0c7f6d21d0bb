"""`python -m lab.faults [NAME …]`: train the heads that training faults are injected with."""

from __future__ import annotations

import argparse

from rich.console import Console

from lab.faults.train import TRAININGS, train
from lab.specimen.progress import Bars, quiet


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 2 when speculators is missing."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TRAININGS)}; all by default")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(TRAININGS):
        parser.error(f"there is no training called {min(unknown)}")
    console = Console(stderr=True)
    quiet()
    with Bars(console) as bars:
        try:
            for name in chosen.names or TRAININGS:
                train(name, bars.update)
        except ImportError as error:
            console.print(
                f"{error}: training needs pip install 'eagle3lab[train]'", style="red", markup=False
            )
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
