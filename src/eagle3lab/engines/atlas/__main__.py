"""`python -m eagle3lab.engines.atlas [sglang] [vllm]`: fetch every release and write the atlas again."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.engines.atlas import sdists, wheels
from eagle3lab.engines.atlas.data import Entry, file_of, pack
from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.engines.release import SIMULATED
from eagle3lab.errors import Eagle3labError


@dataclass(frozen=True, slots=True)
class Archives:
    """Where a kind's releases come from.

    Attributes:
        cached: Release to file, of those in a folder.
        listed: The releases on the package index.
        fetch: Each release with its file.
    """

    cached: Callable[[Path], dict[str, Path]]
    listed: Callable[[], list[str]]
    fetch: Callable[[list[str], Path], Iterator[tuple[str, Path | None]]]


ARCHIVES = {
    "sglang": Archives(wheels.cached, wheels.listed, wheels.fetch),
    "vllm": Archives(sdists.cached, sdists.listed, sdists.fetch),
}


def main() -> int:
    """Fetch, read, write; the archives stay, so that a run that was broken off goes on where it was."""
    parser = argparse.ArgumentParser(prog="python -m eagle3lab.engines.atlas", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="which engines, all by default", metavar="KIND")
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="folder the archives are kept in"
    )
    parser.add_argument("--offline", action="store_true", help="only the archives that are already there")
    parser.add_argument("--output", type=Path, help="folder to write to; the package's own by default")
    options = parser.parse_args()
    unknown = [kind for kind in options.kinds if kind not in SIMULATED]
    if unknown:
        parser.error(f"there is no engine {unknown[0]}: {', '.join(SIMULATED)}")
    for kind in options.kinds or SIMULATED:
        output = options.output / file_of(kind).name if options.output else file_of(kind)
        status = _remake(kind, options.wheels, options.offline, output)
        if status:
            return status
    return 0


def _remake(kind: str, folder: Path, offline: bool, output: Path) -> int:
    archives = ARCHIVES[kind]
    try:
        names = list(archives.cached(folder)) if offline else archives.listed()
        found: list[tuple[Entry, ReleaseFacts]] = []
        for number, (release, archive) in enumerate(archives.fetch(names, folder), 1):
            said = "nothing to read"
            if archive is not None:
                facts = extract(archive)
                found.append((Entry(release, archive.name, _digest(archive)), facts))
                said = "; ".join(map(str, facts.unknown)) or "everything read"
            print(f"[{number}/{len(names)}] {kind}=={release}: {said}", flush=True)
    except Eagle3labError as error:
        print(f"atlas: {error}", file=sys.stderr)
        return 2
    if not found:
        print("atlas: no archives, nothing written", file=sys.stderr)
        return 2
    data = pack(found)
    output.write_bytes(data)
    print(f"{output.name}: {len(found)} releases, {len(data)} bytes")
    return 0


def _digest(path: Path) -> str:
    """Of the file, or, where only its sources were kept, the one the index gives for the whole."""
    if path.suffix == ".whl":
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            stated = archive.comment.decode(errors="replace")
            if stated.startswith("sha256:"):
                return stated.partition(":")[2]
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
