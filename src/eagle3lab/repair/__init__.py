"""A corrected copy of a drafter, with a journal that can be undone; the drafter itself is never written to.

The names below are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3lab.repair.journal import JOURNAL
    from eagle3lab.repair.model import Change, Refusal, RepairPlan
    from eagle3lab.repair.plan import plan_repair, repair_engine
    from eagle3lab.repair.undo import Restored, undo_repair
    from eagle3lab.repair.write import RepairError, Written, write_repair

__all__ = [
    "JOURNAL",
    "Change",
    "Refusal",
    "RepairError",
    "RepairPlan",
    "Restored",
    "Written",
    "plan_repair",
    "repair_engine",
    "undo_repair",
    "write_repair",
]

_MODULES = {
    "journal": ("JOURNAL",),
    "model": ("Change", "Refusal", "RepairPlan"),
    "plan": ("plan_repair", "repair_engine"),
    "undo": ("Restored", "undo_repair"),
    "write": ("RepairError", "Written", "write_repair"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
