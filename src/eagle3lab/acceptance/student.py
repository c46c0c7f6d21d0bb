"""Student's t and the normal distribution, as far as intervals and tests need them."""

from __future__ import annotations

import math
from collections.abc import Callable


def student_p(t: float, degrees: float) -> float:
    """Two-sided p of Student's t."""
    if not math.isfinite(t):
        return 0.0
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def student_quantile(p: float, degrees: float) -> float:
    """Quantile of Student's t for p > 1/2."""
    target = 2 * (1 - p)
    return _solve(lambda t: student_p(t, degrees) - target, 0.0, 1e3)


def normal_quantile(p: float) -> float:
    """Quantile of the normal distribution for p > 1/2."""
    return _solve(lambda z: math.erfc(z / math.sqrt(2)) / 2 - (1 - p), 0.0, 40.0)


def _solve(falling: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d if abs(1 + step * d) > tiny else tiny)
            c = 1 + step / c if abs(1 + step / c) > tiny else tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * fraction / a
