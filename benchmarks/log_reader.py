"""How fast a server log is read, as a multiple of the time of `grep -c 'accept len'` on the same file.

    python benchmarks/log_reader.py [--full] [--kind common|numbered|ray|other]

Generates a log in a temporary folder, a third of it decode lines, the rest prefill and access lines: 32 MB, or with
--full 256 MB of two million lines. Both are timed in turn, and the fastest run of each counts.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from eagle3lab.acceptance.log import read_logs

LIMIT = 8.0
ROUNDS = 5
START = 1_773_223_200  # 2026-03-11 10:00:00


def lines(kind: str, seed: int = 1) -> Iterator[str]:
    """Endless log lines; `kind` names what is unusual about them."""
    pick = random.Random(seed)
    second = START
    process = "(SGLangEngine pid=4711, ip=10.0.0.3) " if kind == "ray" else ""
    while True:
        second += 1
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
        number = f" [{second - START}]" if kind == "numbered" else ""
        length = 1 + 3 * pick.random()
        running, tokens = pick.randrange(1, 48), pick.randrange(100, 90_000)
        yield (
            f"{process}[{clock} TP0] Decode batch{number}, #running-req: {running}, #token: {tokens}, "
            f"token usage: {tokens / 90_000:.2f}, accept len: {length:.2f}, accept rate: {length / 4:.2f}, "
            f"cuda graph: True, gen throughput (token/s): {1000 * pick.random():.2f}, #queue-req: 0\n"
        )
        if kind == "other":
            for _ in range(2):
                yield f"[{clock}] Cache step {tokens}: another message, about as long as the lines around it {length}\n"
            continue
        yield (
            f"{process}[{clock} TP0] Prefill batch, #new-seq: 1, #new-token: {pick.randrange(100, 9000)}, "
            f"#cached-token: 0, token usage: 0.01, #running-req: {running}, #queue-req: 0, \n"
        )
        yield f'[{clock}] INFO:     127.0.0.1:{pick.randrange(1024, 65536)} - "POST /generate HTTP/1.1" 200 OK\n'


def write(path: Path, size: int, kind: str) -> None:
    made = lines(kind)
    with path.open("w") as file:
        while file.tell() < size:
            file.writelines(next(made) for _ in range(30_000))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="256 MB instead of 32")
    parser.add_argument("--kind", choices=("common", "numbered", "ray", "other"), default="common")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        write(log, (256 if given.full else 32) << 20, given.kind)
        grep = ["grep", "-c", "accept len", str(log)]
        # Its output is read: grep stops at the first match when nobody looks.
        count = int(subprocess.run(grep, capture_output=True, check=True, text=True).stdout)
        reading = read_logs([log])
        read = sum(series.lines for server in reading.servers for series in server.series.values())
        rounds = [
            (
                timed(lambda: subprocess.run(grep, capture_output=True, check=True)),
                timed(lambda: read_logs([log])),
            )
            for _ in range(ROUNDS)
        ]
        megabytes = log.stat().st_size / (1 << 20)
    base, ours = (min(column) for column in zip(*rounds, strict=True))
    ratio = ours / base
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"log           {megabytes:.0f} MB, {reading.lines} lines, {count} of them decode lines ({given.kind})"
    )
    print(f"grep -c       {base:.3f} s")
    print(f"read          {ours:.3f} s, {read} decode lines, {reading.unparsed} unparsed")
    print(f"peak memory   {peak:.0f} MB")
    print(f"ratio         {ratio:.1f} (at most {LIMIT:.0f})")
    return 0 if ratio <= LIMIT and read == count and not reading.unparsed else 1


if __name__ == "__main__":
    raise SystemExit(main())
