"""Launch arguments as a release resolves them, from rules extracted from its source."""

from __future__ import annotations

from eagle3lab.engines.arguments.data import argument_rules, release_rules, releases
from eagle3lab.engines.arguments.evaluate import UNKNOWN
from eagle3lab.engines.arguments.machine import AMPERE, BLACKWELL, CPU, HOPPER, SM120, Machine
from eagle3lab.engines.arguments.resolve import Change, Refusal, ResolvedLaunch, resolve_launch

__all__ = [
    "AMPERE",
    "BLACKWELL",
    "CPU",
    "HOPPER",
    "SM120",
    "UNKNOWN",
    "Change",
    "Machine",
    "Refusal",
    "ResolvedLaunch",
    "argument_rules",
    "release_rules",
    "releases",
    "resolve_launch",
]
