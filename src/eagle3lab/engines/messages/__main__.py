"""`python -m eagle3lab.engines.messages`: read every release's messages and targets again, from the archives at hand.

The archives are those that `python -m eagle3lab.engines.atlas` fetches and keeps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eagle3lab.engines.atlas import sdists, wheels
from eagle3lab.engines.extract.reading import reading
from eagle3lab.engines.extract.tree import SourceTree, open_sglang, open_vllm
from eagle3lab.engines.messages import data_file, pack, pack_targets
from eagle3lab.engines.messages.extract import Reader
from eagle3lab.engines.messages.targets import read_lacks
from eagle3lab.engines.release import SIMULATED


def tree_of(kind: str, archive: Path) -> SourceTree:
    """The source tree in an archive.

    Raises:
        InputError: There is none.
    """
    return open_vllm(archive) if kind == "vllm" else open_sglang(archive)


def main() -> int:
    """Read and write, oldest release first."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.messages", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=Path(".cache/wheels"), help="folder of the archives")
    parser.add_argument("kinds", nargs="*", default=SIMULATED, help="which engines, all by default")
    options = parser.parse_args()
    for kind in options.kinds:
        cached = (sdists if kind == "vllm" else wheels).cached(options.wheels)
        reader, found = Reader(kind), []
        for release, archive in cached.items():
            with reading(archive):
                tree = tree_of(kind, archive)
                found.append((release, reader.read(tree), read_lacks(tree, kind)))
            print(f"{kind}=={release}: {len(found[-1][1])} messages", flush=True)
        if not found:
            parser.error(f"no archives of {kind} in {options.wheels}")
        for file, data in (
            (data_file(kind), pack([(release, messages) for release, messages, _ in found])),
            (data_file(kind, "targets"), pack_targets([(release, lacks) for release, _, lacks in found])),
        ):
            file.write_bytes(data)
            print(f"{file.name}: {len(found)} releases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
