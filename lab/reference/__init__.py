"""A reference for EAGLE-3 in plain torch: what a release and a launch make of a drafter, computed in seconds.

`load_as_served` does to a checkpoint what an SGLang release would, `load_as_trained` what its trainer meant;
`speculate` drafts, verifies and counts as SGLang does, for many prompts at once. It is held against the real servers,
token for token.
"""

from __future__ import annotations

from lab.reference.forward import Drafter, EngineStops, Target, Wiring, load_reference_target
from lab.reference.load import Loaded, load_as_served, load_as_trained
from lab.reference.speculate import Speculation, generate, one_thread, speculate

__all__ = [
    "Drafter",
    "EngineStops",
    "Loaded",
    "Speculation",
    "Target",
    "Wiring",
    "generate",
    "load_as_served",
    "load_as_trained",
    "load_reference_target",
    "one_thread",
    "speculate",
]
