"""Multipliers, shifts and addends that give the same output integers as a stated rule, on every reachable sum.

For a multiplier m and a shift s, `(x·m + a) >> s` reaches the level L exactly where x·m + a ≥ L·2ˢ. So the addend is
between the largest of L·2ˢ - above·m and the smallest of L·2ˢ - 1 - below·m, over all levels; and there is one if and
only if g(m / 2ˢ) > 0, where g(σ) = min(L - below·σ) - max(L - above·σ) is concave. Its two roots bound the slopes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .step_functions import Array, Integers, StepFunction, differing

Floats = NDArray[np.float64]
LARGEST_SHIFT = 62
SAFE = 1 << 62
"""|x|·m + |add| stays below this."""


class Lines(NamedTuple):
    """The parameters of one straight line per channel: y = zy + ((x·multiplier + add) >> shift)."""

    multiplier: Integers
    shift: Integers
    add: Integers


def exact_lines(steps: StepFunction, bits: int) -> tuple[Lines, NDArray[np.bool_]]:
    """For each channel, the line with the smallest multiplier below 2^bits that is equal everywhere; and whether there
    is one. Verified in integers."""
    left, right = slopes(steps)
    count, limit = len(steps.low), 1 << min(bits, 31)
    found = Lines(*(np.ones(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)))
    done = np.zeros(count, np.bool_)
    wanted = left < right
    for shift in range(LARGEST_SHIFT + 1):
        scaled = np.ldexp(left, shift)
        wanted &= scaled < limit
        if not wanted.any():
            break
        multiplier = np.floor(np.minimum(scaled, limit)).astype(np.int64) + 1
        tried = np.flatnonzero(wanted & (multiplier < np.ldexp(right, shift)) & (multiplier < limit))
        if not len(tried):
            continue
        part = steps.some(tried)
        m, s = multiplier[tried], np.full(len(tried), shift)
        least, most = addends(part, m, s)
        fits = (least <= most) & (_magnitude(part, m) + np.maximum(np.abs(least), np.abs(most)) < SAFE)
        at = tried[fits]
        found.multiplier[at], found.shift[at] = m[fits], shift
        found.add[at] = _middle(least[fits], most[fits])
        done[at] = True
        wanted[at] = False
    return found, done


def slopes(steps: StepFunction) -> tuple[Floats, Floats]:
    """The open interval of real slopes with which a line can be equal, per channel; left ≥ right: there is none.

    Newton's method from both sides: on a concave, piecewise linear function it converges after a few pieces. It ends at
    slopes next to the best one if there is no root.
    """
    g = _Gap(steps)
    count = len(steps.low)
    left, right = np.zeros(count), g.last_root()
    for side, start in ((1, left), (-1, right)):
        moving = np.isfinite(start)
        for _ in range(100):
            at = np.flatnonzero(moving)
            if not len(at):
                break
            value, slope, root = g(start[at], at)
            stays = (value > 0) | (slope * side <= 0)
            further = ~stays & ((root - start[at]) * side > np.abs(start[at]) * 1e-15)
            start[at[further]] = root[further]
            hopeless = (value <= 0) & (slope * side <= 0)
            if hopeless.any():
                g.impossible[at[hopeless]] = True
            moving[at[~further]] = False
    empty = g.impossible | ~(left < right)
    return np.where(empty, np.maximum(left, right), left), np.where(empty, np.minimum(left, right), right)


class _Gap:
    """g(σ) of the module's docstring, with the levels that bound it."""

    def __init__(self, steps: StepFunction) -> None:
        self.level = (steps.levels - steps.zero_point).astype(np.float64)
        self.above, self.below = steps.above.astype(np.float64), steps.under.astype(np.float64)
        self.never, self.always = steps.above > steps.high[:, None], steps.under < steps.low[:, None]
        self.impossible = np.zeros(len(steps.low), np.bool_)

    def __call__(self, sigma: Floats, channels: Integers) -> tuple[Floats, Floats, Floats]:
        """The value, its slope, and the zero of the tangent; infinite if there is no bound."""
        x = sigma[:, None]
        upper = np.where(self.always[channels], np.inf, self.level - self.below[channels] * x)
        lower = np.where(self.never[channels], -np.inf, self.level - self.above[channels] * x)
        first, second = upper.argmin(1), lower.argmax(1)
        rows = np.arange(len(channels))
        value = upper[rows, first] - lower[rows, second]
        slope = self.above[channels, second] - self.below[channels, first]
        with np.errstate(divide="ignore", invalid="ignore"):
            root = (self.level[second] - self.level[first]) / slope
        return value, slope, root

    def last_root(self) -> Floats:
        """The zero of the tangent at infinity: no slope beyond it is possible. Infinite if there is no such bound."""
        first, last = (~self.never).argmax(1), self.always.shape[1] - 1 - (~self.always)[:, ::-1].argmax(1)
        rows = np.arange(len(self.above))
        slope = self.above[rows, first] - self.below[rows, last]
        bounded = ~self.never.all(1) & ~self.always.all(1) & (slope < 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            root = (self.level[first] - self.level[last]) / slope
        return np.where(bounded, root, np.inf)


def addends(steps: StepFunction, multiplier: Integers, shift: Integers) -> tuple[Integers, Integers]:
    """The least and the greatest addend with which the line is equal; least > greatest: there is none."""
    level = (steps.levels - steps.zero_point) << np.minimum(shift, 40)[:, None]
    far = shift > 40  # only where a single level or two are reachable; as Python's integers
    if far.any():
        level = level.astype(object)
        level[far] = (steps.levels - steps.zero_point).astype(object) * [[1 << int(s)] for s in shift[far]]
    m = multiplier[:, None]
    never, always = steps.above > steps.high[:, None], steps.under < steps.low[:, None]
    least = np.where(never, -SAFE, level - steps.above * m).max(1)
    most = np.where(always, SAFE, level - 1 - steps.under * m).min(1)
    least, most = (np.clip(each, -SAFE, SAFE).astype(np.int64) for each in (least, most))
    only_most, only_least = never.all(1), always.all(1)
    least = np.where(only_most & ~only_least, np.minimum(most, 0), least)
    most = np.where(only_least & ~only_most, np.maximum(least, 0), most)
    return np.asarray(least), np.asarray(most)


def _middle(least: Integers, most: Integers) -> Integers:
    return least + ((most - least) >> 1)


def _magnitude(steps: StepFunction, multiplier: Integers) -> Integers:
    largest = np.maximum(np.abs(steps.low), np.abs(steps.high))
    return np.where(largest * multiplier.astype(np.float64) < SAFE, largest * multiplier, SAFE)


def thresholds_of(steps: StepFunction, lines: Lines, rounding: str = "") -> Integers:
    """The least x with (x·m + add) >> shift ≥ level, for all levels [C, K]: the thresholds of the lines.

    `rounding` "double": the addend is 2^(shift-1) + 2^30, or - 2^30 for negative x, if shift > 31.
    """
    level = (steps.levels - steps.zero_point)[None, :]
    m, s, add = (each[:, None] for each in lines)
    if rounding != "double":
        return _least(level, m, s, add, steps)
    nudge = np.where(s > 31, 1 << 30, 0)
    negative = _least(level, m, s, add - nudge, steps)
    return np.where(negative < 0, negative, np.maximum(_least(level, m, s, add + nudge, steps), 0))


def _least(level: Integers, m: Array, s: Array, add: Array, steps: StepFunction) -> Integers:
    """ceil((level·2ˢ - add) / m). A level beyond 62 - s bits is reached never or always."""
    room = np.left_shift(np.int64(1), np.maximum(LARGEST_SHIFT - s, 0))
    within = np.clip(level, -room, room) << s
    least = -((add - within) // m)
    never, always = steps.high[:, None] + 1, steps.low[:, None]
    return np.where(level >= room, never, np.where(level <= -room, always, least))


def nearest_lines(steps: StepFunction, bits: int) -> Lines:
    """Lines that differ on few reachable sums: the best of some slopes and addends."""
    left, right = slopes(steps)
    limit = 1 << min(bits, 31)
    start = np.zeros(len(left), np.int64)
    best, fewest = Lines(start, start, start), np.full(len(left), np.iinfo(np.int64).max)
    for slope in (steps.multiplier, left, right, (left + right) / 2):
        usable = np.where(np.isfinite(slope) & (slope > 0), slope, steps.multiplier)
        for multiplier, shift in _near(usable, limit):
            best, fewest = _better(steps, best, fewest, multiplier, shift)
    return best


def _better(
    steps: StepFunction, best: Lines, fewest: Integers, multiplier: Integers, shift: Integers
) -> tuple[Lines, Integers]:
    """The best lines and on how many sums each differs, after some with other multipliers were tried."""
    for add in _addends_near(steps, multiplier, shift):
        lines = Lines(multiplier, shift, add)
        counts = differing(steps, thresholds_of(steps, lines))
        better = counts < fewest
        fewest = np.where(better, counts, fewest)
        best = Lines(*(np.where(better, new, old) for new, old in zip(lines, best, strict=True)))
    return best, fewest


def _near(slope: Floats, limit: int) -> list[tuple[Integers, Integers]]:
    """The full-width multipliers below `limit`, and one more, that are nearest to a slope."""
    _, exponent = np.frexp(slope)
    bits = limit.bit_length() - 1
    shift = np.clip(bits - exponent, 0, LARGEST_SHIFT)
    down = np.floor(np.ldexp(slope, shift)).astype(np.int64)
    return [(np.clip(down + i, 1, limit - 1), shift.astype(np.int64)) for i in (0, 1)]


def _addends_near(steps: StepFunction, multiplier: Integers, shift: Integers) -> list[Integers]:
    """The addend that violates the bounds of all levels least, and the one half-way between most of them."""
    least, most = addends(steps, multiplier, shift)
    level = (steps.levels - steps.zero_point)[None, :].astype(np.float64)
    s, m = shift[:, None], multiplier[:, None]
    used = (steps.above <= steps.high[:, None]) & (steps.under >= steps.low[:, None])
    centre = np.where(used, np.ldexp(level, s) - (steps.above + steps.under) / 2 * m, np.nan)
    half = np.int64(1) << np.maximum(shift - 1, 0)
    none = ~used.any(1)
    centre[none] = 0
    median = np.where(none, half, np.clip(_medians(centre), -(2.0**61), 2.0**61).astype(np.int64))
    return [np.clip(_middle(least, most), -(SAFE >> 1), SAFE >> 1), median, half]


def _medians(rows: Floats) -> Floats:
    """What `np.nanmedian` computes of each row, which takes ten times as long for few numbers. No row is all NaN."""
    last = rows.shape[1] - np.isnan(rows).sum(1, keepdims=True) - 1
    middle = np.take_along_axis(np.sort(rows, 1), np.hstack([last // 2, (last + 1) // 2]), 1)
    return np.asarray(middle.sum(1) / 2)


def lines_at(steps: StepFunction, shift: int, limit: int) -> Lines:
    """Lines of one shift, and multipliers below `limit`, that differ on few reachable sums, or none."""
    left, right = slopes(steps)
    inside = np.ldexp(np.floor(np.ldexp(left, shift)) + 1, -shift)
    shifts = np.full(len(left), shift, np.int64)
    best, fewest = Lines(shifts, shifts, shifts), np.full(len(left), np.iinfo(np.int64).max)
    for slope in (inside, steps.multiplier, (left + right) / 2):
        wanted = np.ldexp(np.where(np.isfinite(slope), slope, steps.multiplier), shift)
        for multiplier in (np.floor(wanted), np.ceil(wanted)):
            whole = np.clip(multiplier, 1, limit - 1).astype(np.int64)
            best, fewest = _better(steps, best, fewest, whole, shifts)
    return best
