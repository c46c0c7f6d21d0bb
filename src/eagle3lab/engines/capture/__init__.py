"""Which hidden states a release hands from the target to the drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eagle3lab.engines.capture.points import Convention, can_capture, find_hook, points_of, shift_of
from eagle3lab.engines.capture.shape import TargetShape, target_shape

if TYPE_CHECKING:
    from eagle3lab.engines.capture.plan import CapturePlan, Launch, Phase, Refusal, capture_plan

__all__ = [
    "CapturePlan",
    "Convention",
    "Launch",
    "Phase",
    "Refusal",
    "TargetShape",
    "can_capture",
    "capture_plan",
    "find_hook",
    "points_of",
    "shift_of",
    "target_shape",
]


def __getattr__(name: str) -> Any:
    """The plan and its parts, which most of those who ask about shapes and points do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eagle3lab.engines.capture import plan

    return getattr(plan, name)
