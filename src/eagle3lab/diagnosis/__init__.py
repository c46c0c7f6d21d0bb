"""What is wrong with a drafter, how we know, and what to change.

`diagnose` is the way in: it takes whatever there is of a drafter, a target, an engine release, a launch command and
a log, runs every check that these allow, and ranks what it finds by how well it explains what was observed. Importing
the package imports neither numpy nor rich.
"""

from eagle3lab.diagnosis.framework import Inputs
from eagle3lab.diagnosis.model import (
    Diagnosis,
    Evidence,
    Finding,
    Impact,
    Observed,
    Severity,
    Skipped,
    Verdict,
)
from eagle3lab.diagnosis.run import diagnose, examine, gather, with_drafter

__all__ = [
    "Diagnosis",
    "Evidence",
    "Finding",
    "Impact",
    "Inputs",
    "Observed",
    "Severity",
    "Skipped",
    "Verdict",
    "diagnose",
    "examine",
    "gather",
    "with_drafter",
]
