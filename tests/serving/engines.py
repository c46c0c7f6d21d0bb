"""The two releases: a server of one of them, and running something inside one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from eagle3lab.serving.engine import Engine, find_engine
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.server import Server
from tests.support.project import ROOT

RELEASES = ("0.5.9", "0.5.23")


def engine(release: str) -> Engine:
    return find_engine(f"sglang=={release}")


def serve(release: str, run_dir: Path, plan: LaunchPlan, overlay: Overlay | None = None) -> Server:
    """A server of the release, ready; ended without much patience."""
    return Server.start(plan, run_dir, engine(release), overlay=overlay, timeout_s=180.0, grace_s=0.2)


def run_inside(
    release: str, overlay: Overlay, folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> str:
    """What `python ARGUMENTS` prints inside the release, with the overlay and the tests on its path."""
    chosen = engine(release)
    path = [str(overlay.write(folder / "overlay")), *map(str, chosen.path), str(ROOT)]
    result = subprocess.run(
        [chosen.python, *arguments],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(path), "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        | (environment or {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout
