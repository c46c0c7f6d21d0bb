"""Every fault that a specimen can be given, one change each: `FAULTS`, by name.

`write_healthy` writes what they are put into, `inject` puts one in. Training faults are made from heads that
`python -m lab.faults` trains.
"""

from __future__ import annotations

from lab.faults import settings, tensors, training
from lab.faults.model import FAULTS, Fault, Served, inject, write_healthy

__all__ = ["FAULTS", "Fault", "Served", "inject", "settings", "tensors", "training", "write_healthy"]
