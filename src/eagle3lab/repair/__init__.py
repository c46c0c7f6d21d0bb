"""A corrected copy of a drafter, with a journal that can be undone; the drafter itself is never written to.

`plan_repair` asks a diagnosis what is wrong and tries what can mend it, `write_repair` writes the copy, `undo_repair`
its original. `diagnose` is a diagnosis whose fixes were tried in that way.
"""

from __future__ import annotations

from eagle3lab.repair.journal import JOURNAL, Restored, undo_repair
from eagle3lab.repair.model import Change, Refusal, RepairPlan
from eagle3lab.repair.plan import diagnose, offers, plan_repair
from eagle3lab.repair.write import RepairError, Written, write_repair

__all__ = [
    "JOURNAL",
    "Change",
    "Refusal",
    "RepairError",
    "RepairPlan",
    "Restored",
    "Written",
    "diagnose",
    "offers",
    "plan_repair",
    "undo_repair",
    "write_repair",
]
