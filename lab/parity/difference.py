"""How far two tensors of one stage are apart, and what counts as equal."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lab.parity.model import Difference


def difference(trained: Tensor, served: Tensor, tolerance: float) -> Difference:
    """The served tensor held against the trained one.

    Args:
        trained: What the trainer computes, any shape; float32, or integers.
        served: What the engine computes.
        tolerance: Largest `Difference.relative` that counts as equal. Integers must be the same.
    """
    if trained.shape != served.shape:
        shapes = (tuple(trained.shape), tuple(served.shape))
        return Difference(None, None, None, alike=False, shapes=shapes)
    if not trained.is_floating_point():
        apart = (trained != served).sum().item() / max(1, trained.numel())
        largest = float((trained - served).abs().max()) if trained.numel() else 0.0
        return Difference(largest, apart, None, alike=apart == 0)
    a, b = trained.double(), served.double()
    if not bool(a.isfinite().all() and b.isfinite().all()):
        return Difference(None, None, None, alike=False)
    if not a.numel():
        return Difference(0.0, 0.0, None, alike=True)
    largest = float((a - b).abs().max())
    scale = float(a.square().mean().sqrt())
    relative = largest / scale if scale else (math.inf if largest else 0.0)
    norms = float(a.norm() * b.norm())
    return Difference(
        largest,
        relative if math.isfinite(relative) else None,
        min(1.0, float(torch.dot(a.flatten(), b.flatten())) / norms) if norms else None,
        alike=relative <= tolerance,
    )
