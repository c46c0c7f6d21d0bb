"""Which variant a drafter class of a source tree has, proved by the tree's own code.

Code that is cut out like that of a release has that release's variant. Other code is run on stand-ins, in a process of
its own, and has the variant that says the same of every config and every name; if none does, the class is unproven,
and the first difference from the nearest one is told.
"""

from __future__ import annotations

from eagle3lab.engines.proof.variant import Surroundings, UnprovenError, assign

__all__ = ["Surroundings", "UnprovenError", "assign"]
