"""The engine as its own judge: a release's drafter class and loader, run on this machine's CPU."""

from __future__ import annotations

from eagle3lab.engines.ground_truth.locate import Installation, find_installation
from eagle3lab.engines.ground_truth.process import EngineProcessError, close_all
from eagle3lab.engines.ground_truth.real import SideBySide, real, real_load, simulated_beside_real

__all__ = [
    "EngineProcessError",
    "Installation",
    "SideBySide",
    "close_all",
    "find_installation",
    "real",
    "real_load",
    "simulated_beside_real",
]
