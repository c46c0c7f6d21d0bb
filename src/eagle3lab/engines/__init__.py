"""What an engine release does with a drafter: facts as data, its loader simulated, its own code as judge."""

from __future__ import annotations

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.loading import LoadPlan, ParameterPlan, Slice, TensorPlan, simulate_load
from eagle3lab.engines.spec import known_engines, resolve_engine

__all__ = [
    "EngineFacts",
    "LoadPlan",
    "ParameterPlan",
    "Slice",
    "TensorPlan",
    "known_engines",
    "resolve_engine",
    "simulate_load",
]
