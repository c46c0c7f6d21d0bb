"""`python -m eagle3lab.engines.atlas.check`: the simulator against every release's own loader, wheel by wheel."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagle3lab.engines.atlas import release_facts, releases, wheels
from eagle3lab.engines.atlas.oracle import disagreements, families, generated
from eagle3lab.errors import Eagle3labError


def main() -> int:
    """Check every wheel in the folder; 1 if a release disagrees or cannot be checked."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.atlas.check", description=__doc__)
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="folder the wheels are kept in"
    )
    parser.add_argument("--generated", type=int, default=3000, help="names put together at random")
    options = parser.parse_args()
    names = [*families(), *generated(options.generated)]
    found = wheels.cached(options.wheels)
    failed = 0
    for release in releases():
        facts = release_facts(release)
        said = "no wheel"
        if release in found and facts.names is not None and facts.parameters is not None:
            try:
                wrong = disagreements(found[release], facts.names, facts.parameters, names)
                said = (
                    f"{len(names)} names agree" if not wrong else f"{len(wrong)} disagree, first {wrong[0]}"
                )
                failed += bool(wrong)
            except Eagle3labError as error:
                said, failed = str(error), failed + 1
        elif release in found:
            said, failed = "its loader could not be read", failed + 1
        print(f"{release}: {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
