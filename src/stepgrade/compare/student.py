"""Student's t: how far out is rare, for few and for many runs. Whole degrees of freedom, no library."""

from __future__ import annotations

import math
from functools import cache

# With more than this Student's distribution is the normal one to three digits.
_MANY = 500


def two_sided(t: float, freedom: int) -> float:
    """Return how often noise alone lies as far out as `t`, on either side."""
    t = abs(t)
    if math.isinf(t):
        return 0.0
    if freedom > _MANY:
        return math.erfc(t / math.sqrt(2.0))
    return max(0.0, 1.0 - _within(t, freedom))


@cache
def critical(level: float, freedom: int) -> float:
    """Return the t that noise alone exceeds, on either side, with the probability `level`."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > level:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if two_sided(middle, freedom) > level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability of lying between -t and t (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    if freedom == 1:
        return 2.0 * angle / math.pi
    start = 2 if freedom % 2 == 0 else 3
    term = 1.0 if start == 2 else cos
    total = term
    for number in range(start, freedom - 1, 2):
        term *= cos * cos * (number - 1) / number
        total += term
    if start == 2:
        return sin * total
    return 2.0 / math.pi * (angle + sin * total)
