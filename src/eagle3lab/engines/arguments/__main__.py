"""`python -m eagle3lab.engines.arguments`: read every release's launch arguments again, from the atlas's wheels."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eagle3lab.engines.arguments.data import FILE, extract_rules, pack
from eagle3lab.engines.arguments.rules import ArgumentRules
from eagle3lab.engines.atlas import wheels
from eagle3lab.errors import Eagle3labError


def main() -> int:
    """Read every wheel in the folder and write the file; wheels are not fetched here."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.arguments", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=Path(".cache/wheels"), help="folder of the wheels")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name(FILE))
    options = parser.parse_args()
    found: list[ArgumentRules] = []
    known = wheels.cached(options.wheels)
    for number, (release, wheel) in enumerate(known.items(), 1):
        try:
            rules = extract_rules(wheel)
        except Eagle3labError as error:
            print(f"arguments: {error}", file=sys.stderr)
            return 2
        found.append(rules)
        said = "; ".join(rules.unknown) or f"{len(rules.options)} options, {len(rules.procedures)} procedures"
        print(f"[{number}/{len(known)}] {release}: {said}", flush=True)
    if not found:
        print("arguments: no wheels, nothing written", file=sys.stderr)
        return 2
    data = pack(found)
    options.output.write_bytes(data)
    print(f"{options.output.name}: {len(found)} releases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
