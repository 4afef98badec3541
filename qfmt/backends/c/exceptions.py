"""Thresholds as a line and its few exceptions, which need less memory and time than counting.

A channel without an exact multiplier, shift and addend has thresholds, one for each output integer. Almost all of them
are those of a straight line; so the program computes the line, and corrects its result for the sums between a threshold
and that of the line. Both are compared on all sums that the weights allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import Array
from ...passes.lowering.lines import Lines, nearest_lines, thresholds_of
from ...passes.lowering.step_functions import StepFunction

SLOTS = 16
"""The most exceptions of a channel; with more, its thresholds are counted."""

COUNTING = 80
"""How many elements of a slot are corrected in the time in which one sum is counted."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The least and the greatest sum of each channel."""

    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class Mended:
    """Lines of some channels; for those that are `right` after correction, the sums and their corrections."""

    lines: Lines
    right: Array
    exceptions: list[dict[int, int]]


def mended(rows: Array, reach: Reach, levels: Array, slope: Array, zero_point: int) -> Mended:
    """Lines for rows of thresholds [C, K], of output integers `levels` [K]; `slope` [C] is about that of each."""
    low, high = (each.astype(np.int64) for each in (reach.low, reach.high))
    above = np.clip(rows.astype(np.int64), low[:, None], high[:, None] + 1)
    steps = StepFunction(low, high, levels.astype(np.int64), above, slope, zero_point)
    lines = nearest_lines(steps, 31)
    theirs = np.clip(thresholds_of(steps, lines), low[:, None], high[:, None] + 1)
    found = [_between(ours, other) for ours, other in zip(above, theirs, strict=True)]
    right = np.array([each is not None for each in found], np.bool_)
    return Mended(lines, right, [each or {} for each in found])


def _between(ours: Array, theirs: Array) -> dict[int, int] | None:
    """Sum → its correction to thresholds `theirs`; None if there are too many, or they are too large."""
    apart = ours != theirs
    starts, ends = np.minimum(ours, theirs)[apart], np.maximum(ours, theirs)[apart]
    if (ends - starts).sum() > 4 * SLOTS:
        return None
    sums = sorted({int(x) for start, end in zip(starts, ends, strict=True) for x in range(int(start), int(end))})
    changes = {x: int((ours <= x).sum() - (theirs <= x).sum()) for x in sums}
    kept = {x: change for x, change in changes.items() if change}
    return kept if len(kept) <= SLOTS and all(abs(change) < 128 for change in kept.values()) else None


def slots_for(counts: Array, channels: int) -> int:
    """The cheapest number of slots: each is processed for all channels, and channels with more sums are counted."""
    costs = [slots * channels + COUNTING * int((counts > slots).sum()) for slots in range(SLOTS + 1)]
    return int(np.argmin(costs))
