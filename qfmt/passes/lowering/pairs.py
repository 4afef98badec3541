"""Functions of two quantized tensors: weighted sums where the result is a function of one, else tables of all pairs.

What is added with two scales is a function of wa·a + wb·b for whole numbers wa, wb near the ratio of the scales. Which
ratios do is known from the table of all pairs: of any two pairs of which the first gives less, its sum must be less.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from .steps import Integers

LARGEST_DENOMINATOR = 1 << 20


def weights(table: Integers) -> Iterator[tuple[int, int]]:
    """Pairs of weights, small ones first, with which a table [a, b] is a monotone function of wa·a + wb·b."""
    signs = [1, 1]
    for axis in (0, 1):
        steps = np.diff(table, axis=axis)
        if (steps < 0).any():
            if (steps > 0).any():
                return
            table, signs[axis] = np.flip(table, axis), -1
    low, high = ratios(table)
    if not low < high:
        return
    tried = set()
    middle = (low + high) / 2 if np.isfinite(high) else low + 1
    least = _quotient(low, table)
    simplest = between(least, _quotient(high, table) if np.isfinite(high) else least + 2)
    finer = (Fraction(round(middle * (1 << k)), 1 << k) for k in range(3, LARGEST_DENOMINATOR.bit_length(), 2))
    for ratio in (simplest, *finer):
        if low < ratio < high and ratio not in tried and max(ratio.numerator, ratio.denominator) <= LARGEST_DENOMINATOR:
            tried.add(ratio)
            yield signs[0] * ratio.numerator, signs[1] * ratio.denominator


def _quotient(bound: float, table: Integers) -> Fraction:
    """A bound that `ratios` gives as the quotient of whole numbers that it is."""
    return Fraction(bound).limit_denominator(len(table))


def ratios(table: Integers) -> tuple[float, float]:
    """The open interval of ratios wa / wb for a table that grows along both axes; empty if none will do.

    For a level, first[i] is the least j with table[i, j] at or above it. Then r·i + first[i] - 1 must be less than
    r·k + first[k] for all rows i and k where there are such elements.
    """
    low, high, width = 0.0, np.inf, table.shape[1]
    rows = np.arange(len(table))
    apart = rows[:, None] - rows[None, :]
    ahead, behind = apart > 0, apart < 0
    for level in range(int(table.min()) + 1, int(table.max()) + 1):
        first = (table < level).sum(1)
        room = first[None, :] - first[:, None] + 1
        usable = (first > 0)[:, None] & (first < width)[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = room / apart
        high = min(high, float(bound[usable & ahead].min(initial=np.inf)))
        low = max(low, float(bound[usable & behind].max(initial=0)))
        if not low < high:
            break
    return low, high


def between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator strictly between two others, low < high, not negative."""
    whole = low.numerator // low.denominator
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:  # then high ≤ whole + 1: whole + 1 / n for the smallest n that will do
        inverse = 1 / (high - whole)
        return whole + Fraction(1, inverse.numerator // inverse.denominator + 1)
    rest = between(1 / (high - whole), 1 / (low - whole))
    return whole + 1 / rest
