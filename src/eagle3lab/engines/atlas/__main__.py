"""`python -m eagle3lab.engines.atlas`: fetch every release and write the atlas again."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from eagle3lab.engines.atlas import wheels
from eagle3lab.engines.atlas.data import FILE, Entry, pack
from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.errors import Eagle3labError


def main() -> int:
    """Fetch, read, write; the wheels stay, so that a run that was broken off goes on where it was."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.atlas", description=__doc__)
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="folder the wheels are kept in"
    )
    parser.add_argument("--offline", action="store_true", help="only the wheels that are already there")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name(FILE))
    options = parser.parse_args()
    try:
        names = list(wheels.cached(options.wheels)) if options.offline else wheels.listed()
        found: list[tuple[Entry, ReleaseFacts]] = []
        for number, (release, wheel) in enumerate(wheels.fetch(names, options.wheels), 1):
            said = "no wheel"
            if wheel is not None:
                facts = extract(wheel)
                found.append((Entry(release, wheel.name, _digest(wheel)), facts))
                said = "; ".join(map(str, facts.unknown)) or "everything read"
            print(f"[{number}/{len(names)}] {release}: {said}", flush=True)
    except Eagle3labError as error:
        print(f"atlas: {error}", file=sys.stderr)
        return 2
    if not found:
        print("atlas: no wheels, nothing written", file=sys.stderr)
        return 2
    data = pack(found)
    options.output.write_bytes(data)
    print(f"{options.output.name}: {len(found)} releases, {len(data)} bytes")
    return 0


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
