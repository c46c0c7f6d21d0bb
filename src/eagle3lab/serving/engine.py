"""Which SGLang is to be run: a Python, and what stands first on its path."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.engines.atlas.resolve import installed_engine, resolve_engine
from eagle3lab.engines.ground_truth.locate import find_installation
from eagle3lab.engines.release import INSTALLED
from eagle3lab.errors import InputError


@dataclass(frozen=True, slots=True)
class Engine:
    """An SGLang release that can be started.

    Attributes:
        release: `0.5.23`.
        python: The interpreter that runs it.
        path: Folders that come first on its module path: the release itself if it lies beside the environment.
    """

    release: str
    python: str = sys.executable
    path: tuple[Path, ...] = ()


def find_engine(spec: str = INSTALLED) -> Engine:
    """The engine that `spec` names: `installed`, which may be any release, or `sglang==0.5.9`.

    Raises:
        InputError: It is not on this machine, is no SGLang, or is a release without facts.
    """
    if spec.strip() == INSTALLED:
        return Engine(installed_engine().release.number)
    facts = resolve_engine(spec)
    if facts.kind != "sglang":
        raise InputError(f"{facts.spec} cannot be started from here", advice="Name an SGLang release.")
    found = find_installation(facts)
    return Engine(found.release, path=(found.folder,) if found.folder is not None else ())
