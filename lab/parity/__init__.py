"""Training–serving parity: a drafter's forward pass as its trainer computes it and as an engine does, on equal states.

Each stage is compared twice: with all that was computed before it on its side ("carried"), which shows how far the two
have come apart, and from the trainer's inputs ("own"), which shows every place at which they do.
"""

from lab.parity.compare import compare_forwards
from lab.parity.report import TOLERANCE, Cause, Difference, ParityReport, Replayed, Stage

__all__ = ["TOLERANCE", "Cause", "Difference", "ParityReport", "Replayed", "Stage", "compare_forwards"]
