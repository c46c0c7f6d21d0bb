"""A server's command with the guard in each of its processes, whatever the release."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from eagle3lab.serving.probe.settings import GUARD, GuardMode

PATH = Path(__file__).with_name("path")
"""The folder whose `sitecustomize` attaches the guard as Python starts."""


def variables(mode: GuardMode, environment: Mapping[str, str]) -> dict[str, str]:
    """What to set, and add to, so that every Python process started from there is guarded."""
    outer = environment.get("PYTHONPATH", "")
    return {GUARD: mode, "PYTHONPATH": os.pathsep.join([str(PATH), *([outer] if outer else [])])}
