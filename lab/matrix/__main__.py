"""`python -m lab.matrix`: measure every fault in every release; goes on where it was."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

from eagle3lab.errors import Eagle3labError
from lab.matrix.records import Cell, matrix_file, pairs_file, read_matrix
from lab.specimen.progress import quiet


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 2 for bad input."""
    from lab.matrix.pairs import SERVED, SERVED_BY
    from lab.matrix.ranking import grade, write_signatures
    from lab.matrix.run import CHOICES, ENGINES, PROMPTS, TOKENS, jobs, run

    parser = argparse.ArgumentParser(prog="python -m lab.matrix", description=__doc__)
    parser.add_argument(
        "faults", nargs="*", metavar="FAULT", help="names of faults, or 'A + B'; all by default"
    )
    parser.add_argument(
        "--pairs", action="store_true", help=f"two faults at once in {SERVED_BY}, into specimen/pairs.jsonl"
    )
    parser.add_argument("--engine", action="append", choices=CHOICES, help="both of SGLang by default")
    parser.add_argument(
        "--way", action="append", choices=("reference", "server"), help="reference by default"
    )
    parser.add_argument("--out", type=Path, default=None, help="matrix file (default: specimen/matrix.jsonl)")
    parser.add_argument(
        "--trusting",
        action="store_true",
        help="diagnose cells again that other code measured; measure none of them",
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts a cell")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="length at which an answer is cut")
    chosen = parser.parse_args(arguments)
    quiet()
    console = Console(stderr=True, highlight=False)

    def told(cell: Cell, cached: bool, number: int, total: int) -> None:
        length = (
            f"{cell.accept_length:.3f}"
            if cell.accept_length is not None
            else f"{cell.outcome}: {cell.detail}"
        )
        said = cell.diagnosis
        first = "" if said is None else f"  {said.first or said.verdict}{'' if said.named else ' (other)'}"
        note = " (as before)" if cached else ""
        console.print(
            f"{number:>3}/{total} {cell.fault:<42} {cell.engine:<15} {cell.way:<9} {length[:70]}{first}{note}",
            markup=False,
            soft_wrap=True,
        )

    try:
        engines, faults = chosen.engine or ENGINES, chosen.faults or None
        if chosen.pairs:
            engines, faults = chosen.engine or (SERVED_BY,), chosen.faults or SERVED
        out = chosen.out or (pairs_file() if chosen.pairs else matrix_file())
        todo = jobs(chosen.way or ("reference",), engines, faults)
        cells = run(todo, out, told, prompts=chosen.prompts, tokens=chosen.tokens, trusting=chosen.trusting)
    except Eagle3labError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    if out == matrix_file():
        write_signatures(read_matrix())
        console.print(str(grade(read_matrix())), markup=False)
    outcomes = Counter(cell.outcome for cell in cells)
    sys.stdout.write(", ".join(f"{count} {name}" for name, count in outcomes.most_common()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
