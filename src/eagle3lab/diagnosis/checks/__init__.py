"""The checks, a module for each family, run in this order: what a later one needs, an earlier one has looked at."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from eagle3lab.diagnosis.framework import CHECKS, Check, Page

__all__ = ["FAMILIES", "Check", "Page", "all_checks"]

FAMILIES = (
    "files", "kind", "names", "vocab", "head", "capture", "layer", "flags", "runtime", "events", "training",
)  # fmt: skip


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order in which they run."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
    ordered = {f"{__name__}.{family}": place for place, family in enumerate(FAMILIES)}
    # Stable: inside a module, checks keep the order in which they stand.
    return tuple(sorted(CHECKS.values(), key=lambda check: ordered[check.run.__module__]))
