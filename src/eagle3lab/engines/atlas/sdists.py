"""vLLM's source distributions, one release a minor version, fetched into a folder that is kept.

The wheels hold CUDA code and are ten times as large; the source distributions hold the same Python. pip has no
command that fetches one without building it, so pip's own finder and session are asked, in a process of its own:
they know the index, its certificates and its proxies. A release that has none comes as the Python files of its wheel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from eagle3lab.engines.atlas.wheels import FetchError
from eagle3lab.engines.release import store, version_of

_PACKAGE = "vllm"
_WORKER = Path(__file__).with_name("sdists_worker.py")


def cached(folder: Path) -> dict[str, Path]:
    """Release to source distribution, or to what was kept of a wheel, of those in `folder`, oldest first."""
    found = {path.name.split("-")[1]: path for path in folder.glob(f"{_PACKAGE}-*.whl")}
    found |= {
        path.name.removeprefix(f"{_PACKAGE}-").removesuffix(".tar.gz"): path
        for path in folder.glob(f"{_PACKAGE}-*.tar.gz")
    }
    return {release: found[release] for release in newest_patches(list(found))}


def listed() -> list[str]:
    """The newest release of each minor version from the oldest of the atlas on, oldest first.

    Raises:
        FetchError: pip cannot tell.
    """
    return newest_patches(list(json.loads(_ask("list"))))


def newest_patches(releases: list[str]) -> list[str]:
    """Of each minor version the newest release, oldest first; candidates and development versions left out."""
    oldest = version_of(store()["oldest"][_PACKAGE])
    assert oldest is not None
    versions = [(version, release) for release in releases if (version := version_of(release))]
    final = sorted(one for one in versions if one[0] >= oldest and not one[0].is_prerelease)
    return list({(version.major, version.minor): release for version, release in final}.values())


def fetch(releases: list[str], folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Each release with its sources, fetched if they are not there yet; None where they cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)
    for release in releases:
        if _kept(release, folder) is None:
            _ask("fetch", release, str(folder))
        yield release, _kept(release, folder)


def _kept(release: str, folder: Path) -> Path | None:
    names = (f"{_PACKAGE}-{release}.tar.gz", f"{_PACKAGE}-{release}-*.whl")
    return next((path for name in names for path in folder.glob(name)), None)


def _ask(*request: str) -> str:
    command = [sys.executable, str(_WORKER), _PACKAGE, *request]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise FetchError(f"pip cannot {request[0]} {_PACKAGE}: {answer.stderr.strip()[-300:]}")
    return answer.stdout


def main() -> int:
    """Fetch the named releases into the folder the atlas is made from."""
    parser = argparse.ArgumentParser(
        prog="python -m eagle3lab.engines.atlas.sdists", description="Fetch source distributions of vLLM."
    )
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    parser.add_argument("--wheels", type=Path, default=Path(".cache/wheels"), help="folder to keep them in")
    options = parser.parse_args()
    try:
        missing = [release for release, path in fetch(options.releases, options.wheels) if path is None]
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
