"""Functions of two quantized tensors: weighted sums if the result is a function of one, else tables of all pairs.

A sum of two tensors with two scales is a function of wa·a + wb·b for integers wa, wb near the ratio of the scales. The
table of all pairs determines which ratios work: if one pair has a smaller output than another, its sum must be smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from .step_functions import Integers

LARGEST_DENOMINATOR = 1 << 20

CELLS = 1 << 20
"""How many first columns, of levels in rows, are compared at a time."""

NONE = 1 << 40
"""Marks a level that is not reached: greater than any index in a table."""


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
    """A bound from `ratios`, as an exact quotient of integers."""
    return Fraction(bound).limit_denominator(len(table))


def ratios(table: Integers) -> tuple[float, float]:
    """The open interval of ratios wa / wb for a table that grows along both axes; empty if there is none.

    For a level, first[i] is the least j with table[i, j] at or above it. Then r·i + first[i] - 1 must be less than
    r·k + first[k] for all rows i and k that have such elements: rows above k bound r from above, rows below it from
    below.
    """
    height, width = table.shape
    most = width + 2  # larger than any quotient
    low, high = 0.0, np.inf
    levels, part = np.unique(table)[1:], max(1, CELLS // height)  # every row reaches the least one
    for start in range(0, len(levels), part):
        first = np.stack([np.searchsorted(row, levels[start : start + part]) for row in table], axis=1)
        reached, rest = np.where(first < width, first, NONE), np.where(first > 0, -first, NONE)
        low = max(low, -_least_quotient(rest + 1, reached, most))
        high = min(high, _least_quotient(reached + 1, rest, most))
    return low, high


def _least_quotient(a: Integers, b: Integers, most: int) -> float:
    """The least of (a[level, k] + b[level, i]) / (i - k) for k before i, if it is less than `most`; else infinity.

    Dinkelbach's method: a quotient p / q is the least if no q · (a + b) - p · (i - k) is negative; else the pair with
    the least value has a smaller quotient. Only integers are used.
    """
    if a.shape[1] < 2:
        return np.inf
    rows, found, (p, q) = np.arange(a.shape[1]), np.inf, (most, 1)
    while True:
        behind = np.minimum.accumulate(q * a + p * rows, axis=1)
        values = behind[:, :-1] + (q * b - p * rows)[:, 1:]
        level, i = np.unravel_index(values.argmin(), values.shape)
        if values[level, i] >= 0:
            return found
        k = int((q * a + p * rows)[level, : i + 1].argmin())
        p, q = int(a[level, k] + b[level, i + 1]), int(i) + 1 - k
        found = p / q


def between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator strictly between two others, low < high, not negative."""
    whole = low.numerator // low.denominator
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:  # then high ≤ whole + 1: whole + 1 / n for the smallest possible n
        inverse = 1 / (high - whole)
        return whole + Fraction(1, inverse.numerator // inverse.denominator + 1)
    rest = between(1 / (high - whole), 1 / (low - whole))
    return whole + 1 / rest
