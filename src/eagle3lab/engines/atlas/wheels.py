"""The wheels of all releases, fetched with pip into a folder that is kept, so that a run can be taken up again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from eagle3lab.engines.release import Release, store, version_of
from eagle3lab.errors import Eagle3labError

_PACKAGE = "sglang"


class FetchError(Eagle3labError):
    """pip could not tell the releases or fetch one."""


def cached(folder: Path) -> dict[str, Path]:
    """Release to wheel, of the wheels already in `folder`, oldest first."""
    found = {path.name.split("-")[1]: path for path in folder.glob(f"{_PACKAGE}-*.whl")}
    return {release: found[release] for release in sorted(found, key=_sort_key)}


def listed() -> list[str]:
    """The releases on the package index from the oldest of the atlas on, oldest first.

    Raises:
        FetchError: pip cannot tell.
    """
    answer = _pip("index", "versions", _PACKAGE)
    line = re.search(r"Available versions: (.*)", answer.stdout)
    if line is None:
        raise FetchError(f"pip lists no releases of {_PACKAGE}: {answer.stderr.strip()[-300:]}")
    oldest = store()["oldest"][_PACKAGE]
    names = [name.strip() for name in line[1].split(",")]
    return sorted((name for name in names if Release(_PACKAGE, name).within(oldest)), key=_sort_key)


def fetch(releases: list[str], folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Each release with its wheel, fetched if it is not there yet; None where there is no wheel or it was withdrawn."""
    folder.mkdir(parents=True, exist_ok=True)
    for release in releases:
        if release not in cached(folder):
            wanted = f"{_PACKAGE}=={release}"
            answer = _pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(folder), wanted)
            if "yanked" in answer.stderr and release in cached(folder):
                cached(folder)[release].unlink()
        yield release, cached(folder).get(release)


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _sort_key(release: str) -> tuple[bool, object]:
    version = version_of(release)
    return version is not None, version or ()
