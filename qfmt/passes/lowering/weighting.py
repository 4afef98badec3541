"""Weighted sums for forms without an addend: the addend of a line goes into the sum, as one more input.

A line (S · m + add) >> s of a sum S is the form (S' · m' + 2^(s' - 1)) >> s' of S' = f · S + c: for a power of two f is
m; for a multiplier f is a power of two, so that c, an integer, represents the addend exactly.
"""

from __future__ import annotations

from typing import NamedTuple

from ...model import INT32
from .lines import Lines

FIXED = ("fixed_point_single", "fixed_point_double", "power_of_two")
FINEST = 24


class Weighting(NamedTuple):
    """S' = factor · S + constant, which is multiplied by `multiplier`."""

    factor: int
    constant: int
    multiplier: float


def weighting(rule: str, lines: Lines, reach: int) -> Weighting | None:
    """Factor and constant for a line of one channel, as fine as int32 allows; None if int32 cannot represent the sums.

    `reach` is a bound of |S|, for partial sums and all values of the types, too.
    """
    multiplier, shift, add = (int(each[0]) for each in lines)
    half = (1 << shift) >> 1
    if rule == "power_of_two":
        found = Weighting(multiplier, add - half, 2.0**-shift)
        return found if _fits(found, reach) else None
    for power in range(FINEST, -1, -1):
        constant = ((2 * (add - half) << power) + multiplier) // (2 * multiplier)
        found = Weighting(1 << power, constant, multiplier / (1 << shift) / (1 << power))
        if _fits(found, reach):
            return found
    return None


def _fits(found: Weighting, reach: int) -> bool:
    return found.factor * reach + abs(found.constant) < INT32
