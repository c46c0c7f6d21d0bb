"""Which hidden states a release hands from the target to the drafter."""

from __future__ import annotations

from eagle3lab.engines.capture.plan import CapturePlan, Launch, Phase, Refusal, capture_plan
from eagle3lab.engines.capture.points import Convention, can_capture, find_hook, points_of, shift_of
from eagle3lab.engines.capture.shape import TargetShape, target_shape

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
