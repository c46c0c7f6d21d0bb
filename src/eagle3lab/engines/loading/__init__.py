"""The load of a drafter simulated key by key."""

from __future__ import annotations

from eagle3lab.engines.loading.plan import (
    ConstructionError,
    LoadPlan,
    ParameterPlan,
    Slice,
    TensorPlan,
    differences,
)
from eagle3lab.engines.loading.simulate import simulate, simulate_load

__all__ = [
    "ConstructionError",
    "LoadPlan",
    "ParameterPlan",
    "Slice",
    "TensorPlan",
    "differences",
    "simulate",
    "simulate_load",
]
