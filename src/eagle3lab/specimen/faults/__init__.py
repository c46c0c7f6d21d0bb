"""Every fault that a specimen can be given, one change each: `FAULTS`, by name.

`write_healthy` writes what they are put into, `inject` puts one in. Training faults are made from heads that
`python -m eagle3lab.specimen.faults` trains.
"""

from __future__ import annotations

from eagle3lab.specimen.faults import settings, tensors, training
from eagle3lab.specimen.faults.model import FAULTS, Fault, Served, inject, write_healthy

__all__ = ["FAULTS", "Fault", "Served", "inject", "settings", "tensors", "training", "write_healthy"]
