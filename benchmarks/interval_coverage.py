"""How often intervals hold the truth, on simulated logs and requests whose truth is known.

    python benchmarks/interval_coverage.py [--trials 1000]

Logs: requests that differ in ease and span several intervals are simulated, printed to two decimals as a server does,
and read as a log is; between 92 and 98 % of the intervals should hold the true mean.
Requests: the same for the accept length of requests one by one, and for the change between two runs of the same
prompts, the second of them better by a known amount.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

from lab.simulated_acceptance import change_coverage, coverage, request_coverage

LOGS = ((30, 8), (60, 8), (120, 8), (120, 2), (240, 8))
"""(intervals of the log, requests that can run at once)."""

REQUESTS = (12, 40, 160)

LOW, HIGH = 0.92, 0.98


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=1000, help="simulated runs for each shape (default 1000)"
    )
    trials: int = parser.parse_args().trials
    given = {"trials": trials, "seed": 2026}
    shapes: list[tuple[str, Callable[[], float]]] = [
        (f"log of {n} intervals, {slots} at once", partial(coverage, intervals=n, slots=slots, **given))
        for n, slots in LOGS
    ]
    for what, of in (("{} requests", request_coverage), ("change over {} prompts", change_coverage)):
        shapes += [(what.format(n), partial(of, requests=n, **given)) for n in REQUESTS]
    print(f"{'what':36}  {'coverage':>8}  {'seconds':>7}   ({trials} each, 95 % aimed at)")
    missed = 0
    for what, held_share in shapes:
        start = time.perf_counter()
        held = held_share()
        missed += not LOW <= held <= HIGH
        print(f"{what:36}  {held:8.1%}  {time.perf_counter() - start:7.1f}")
    print(
        "every shape within 92 to 98 %"
        if not missed
        else f"{missed} of {len(shapes)} shapes outside 92 to 98 %"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
