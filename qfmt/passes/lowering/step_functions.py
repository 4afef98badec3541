"""The steps of a requantization: thresholds define a monotone function of integers completely.

A rule from exact sums to 8 bits is a chain of monotone roundings, so for every output integer there is one least
sum that gives it or more. Two rules are equal on all reachable sums if and only if these least sums are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StepFunction:
    """A monotone function of sums to output integers, channel by channel (C of them).

    `low`, `high` [C]: the least and the greatest sum that is reachable. `levels` [K]: consecutive output integers.
    `above` [C, K]: the least reachable sum that gives at least the level; high + 1 if none does.
    `below` [C, K]: the greatest reachable sum that gives less; low - 1 if none does. None: `above` - 1.
    `multiplier` [C]: the real number that sums are multiplied by; `zero_point`: the integer added afterwards.
    `pairs`: the reachable sums, their outputs, and their numbers of pairs of inputs, if not all integers from low to
    high are reachable, or not equally often (C is 1).
    """

    low: Integers
    high: Integers
    levels: Integers
    above: Integers
    multiplier: NDArray[np.float64]
    zero_point: int
    below: Integers | None = None
    pairs: tuple[Integers, Integers, Integers] | None = None

    @property
    def under(self) -> Integers:
        """`below`, whether it is stored or follows."""
        return self.above - 1 if self.below is None else self.below

    def some(self, channels: Any) -> StepFunction:
        """The same for some channels: a slice, a mask or indices."""
        below = None if self.below is None else self.below[channels]
        low, high, above, multiplier = (each[channels] for each in (self.low, self.high, self.above, self.multiplier))
        return replace(self, low=low, high=high, above=above, multiplier=multiplier, below=below)


def search(
    evaluate: Callable[[Integers], Array],
    low: Integers,
    high: Integers,
    levels: Integers,
    multiplier: NDArray[np.float64],
    zero_point: int,
) -> StepFunction:
    """The steps of a monotone function: for each channel and level the least x in [low, high] with that or more.

    `evaluate` maps x [C, n] to outputs [C, n]. The search is a bisection that begins around the result in real numbers:
    every returned threshold has been evaluated on both sides.
    """
    first, end = low[:, None], high[:, None] + 1
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        guess = np.nan_to_num((levels - 0.5 - zero_point) / multiplier[:, None], posinf=2.0**62, neginf=-(2.0**62))
    guess = np.clip(guess, -(2.0**62), 2.0**62)
    margin = 2 + np.abs(guess) * 2.0**-22
    left = np.clip(np.floor(guess - margin).astype(np.int64), first, end)
    right = np.clip(np.ceil(guess + margin).astype(np.int64), first, end)

    def reaches(x: Integers) -> NDArray[np.bool_]:
        return evaluate(np.minimum(x, end - 1)) >= levels  # values beyond count as reaching, see below

    left = np.where((left > first) & reaches(np.maximum(left - 1, first)), first, left)
    right = np.where((right < end) & ~reaches(right), end, right)
    while (left < right).any():
        middle = (left + right) >> 1
        enough = (middle >= end) | reaches(middle)
        open_ = left < right
        right = np.where(open_ & enough, middle, right)
        left = np.where(open_ & ~enough, middle + 1, left)
    return StepFunction(low, high, levels, left, multiplier, zero_point)


def of_pairs(
    values: Integers,
    outputs: Integers,
    limits: tuple[int, int],
    multiplier: float,
    zero_point: int,
    *,
    nearly: bool = False,
) -> StepFunction | None:
    """The steps of a function given by all its pairs; None if it is not monotone, or not a function.

    `limits` are the least and greatest possible output, reached or not. `nearly`: if it is not one, the steps
    of the greatest outputs up to each value; the pairs determine how many differ.
    """
    least, span = outputs.min(), int(np.ptp(outputs)) + 1
    values, outputs = np.divmod(np.sort(values * span + (outputs - least)), span)
    outputs += least
    repeated = np.diff(values) == 0
    is_function = not (np.diff(outputs) < 0).any() and not (repeated & (np.diff(outputs) != 0)).any()
    if not is_function and not nearly:
        return None
    kept = np.append(~repeated, True)
    points, reached = values[kept], np.maximum.accumulate(outputs)[kept]
    ends = np.flatnonzero(kept | np.append(np.diff(outputs) != 0, True))
    pairs = values[ends], outputs[ends], np.diff(ends, prepend=-1)
    levels = levels_of(*limits)
    at = np.searchsorted(reached, levels)
    low, high = points[:1], points[-1:]
    padded = np.concatenate([low - 1, points, high + 1])
    above, below = padded[at + 1][None], padded[at][None]
    return StepFunction(low, high, levels, above, np.array([multiplier]), zero_point, below, pairs)


def levels_of(low: int, high: int) -> Integers:
    """The levels of outputs in [low, high]: all but the least one, or that one if it is the only one."""
    return np.arange(min(low + 1, high), high + 1, dtype=np.int64)


def differing(steps: StepFunction, other: Integers) -> Integers:
    """How many reachable sums have another output with the thresholds `other` [C, K], per channel; for pairs, how
    many pairs.

    Thresholds of both are ascending; the sums between the two of one level differ.
    """
    low, high = steps.low[:, None], steps.high[:, None]
    theirs = np.clip(other, low, high + 1)
    if steps.pairs is not None:
        return np.array([steps.pairs[2][_apart(steps, theirs) != 0].sum()])
    starts, ends = np.minimum(steps.above, theirs), np.maximum(steps.above, theirs)
    covered = np.concatenate([low, ends[:, :-1]], axis=1)
    return np.asarray(np.maximum(ends - np.maximum(starts, covered), 0).sum(axis=1))


def largest_difference(steps: StepFunction, other: Integers, counts: Integers) -> int:
    """By how much reachable sums differ at most; `counts` are those of `differing`."""
    theirs = np.clip(other, steps.low[:, None], steps.high[:, None] + 1)
    if steps.pairs is not None:
        return int(np.abs(_apart(steps, theirs)).max(initial=0))
    largest = 0
    for channel in np.flatnonzero(counts):
        a, b = steps.above[channel], theirs[channel]
        points = np.concatenate([a, b])
        points = points[(points >= steps.low[channel]) & (points <= steps.high[channel])]
        apart = np.searchsorted(a, points, "right") - np.searchsorted(b, points, "right")
        largest = max(largest, int(np.abs(apart).max(initial=0)))
    return largest


def _apart(steps: StepFunction, theirs: Integers) -> Integers:
    assert steps.pairs is not None
    values, outputs, _ = steps.pairs
    got: Integers = steps.levels[0] - 1 + np.searchsorted(theirs[0], values, "right")
    return got - outputs
