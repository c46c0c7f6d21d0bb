"""How often the 95 % interval of the accept length holds the truth, on simulated logs whose truth is known.

    python benchmarks/interval_coverage.py [--trials 1000]

A log of requests that differ in ease and span several intervals is simulated, printed to two decimals as a server
does, and read as a log is. Between 92 and 98 % of the intervals should hold the true mean.
"""

from __future__ import annotations

import argparse
import time

from eagle3lab.acceptance.simulation import coverage

SHAPES = ((30, 8), (60, 8), (120, 8), (120, 2), (240, 8))
"""(intervals of the log, requests that can run at once)."""

LOW, HIGH = 0.92, 0.98


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=1000, help="simulated logs for each shape (default 1000)"
    )
    trials: int = parser.parse_args().trials
    print(
        f"{'intervals':>9}  {'requests':>8}  {'coverage':>8}  {'seconds':>7}   ({trials} logs each, 95 % aimed at)"
    )
    missed = 0
    for intervals, slots in SHAPES:
        start = time.perf_counter()
        held = coverage(trials=trials, intervals=intervals, seed=2026, slots=slots)
        missed += not LOW <= held <= HIGH
        print(f"{intervals:9}  {slots:8}  {held:8.1%}  {time.perf_counter() - start:7.1f}")
    print(
        "every shape within 92 to 98 %"
        if not missed
        else f"{missed} of {len(SHAPES)} shapes outside 92 to 98 %"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
