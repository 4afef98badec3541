"""The forms of a requantization, and the parameters of each that come closest to the stated rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...forms import MULTIPLY_ADD_DIVIDE
from .lines import LARGEST_SHIFT, Floats, Lines, exact_lines, lines_at, nearest_lines, thresholds_of
from .step_functions import Integers, StepFunction, differing, largest_difference

Flags = NDArray[np.bool_]


class Form(NamedTuple):
    """The requested form: the rule, the bits of multipliers, and whether thresholds replace parameters that differ."""

    rule: str = "multiply_shift"
    bits: int = 32
    exact: bool = False


class Requantization(NamedTuple):
    """Parameters for C channels, and how they compare with the stated rule.

    `row` [C]: which row of `thresholds` a channel uses; -1: none, it uses its line.
    """

    rule: str
    lines: Lines
    row: Integers
    thresholds: Integers
    differs: Integers
    largest: int


def fit(steps: StepFunction, form: Form) -> Requantization:
    """The parameters of the form that differ on the fewest reachable sums."""
    if form.rule == "thresholds":
        return _by_thresholds(steps)
    if form.rule == "multiply_shift":
        lines, equal = exact_lines(steps, form.bits)
        if form.exact:
            return _with_rows(steps, form.rule, lines, equal)
        lines = _filled(steps, lines, equal, form.bits)
    elif form.rule == MULTIPLY_ADD_DIVIDE:
        lines = _common(steps, form.bits)
    else:
        lines = _rounded(steps, form)
    found = _compared(steps, form.rule, lines)
    if not form.exact or not found.differs.any():
        return found
    if form.rule == MULTIPLY_ADD_DIVIDE:  # an operator without thresholds, for all channels or none
        return _by_thresholds(steps)
    return _with_rows(steps, form.rule, lines, found.differs == 0)


def joined(parts: list[Requantization]) -> Requantization:
    """Concatenate the parameters of some channels and others, all of one rule."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *(len(part.thresholds) for part in parts)])
    rows = [np.where(part.row < 0, -1, part.row + offset) for part, offset in zip(parts, offsets, strict=False)]
    return Requantization(
        parts[0].rule,
        Lines(*(np.concatenate(each) for each in zip(*(part.lines for part in parts), strict=True))),
        np.concatenate(rows),
        np.concatenate([part.thresholds for part in parts]),
        np.concatenate([part.differs for part in parts]),
        max(part.largest for part in parts),
    )


def _by_thresholds(steps: StepFunction) -> Requantization:
    none = np.zeros(len(steps.low), np.int64)
    differs = _of_thresholds(steps)
    row = np.arange(len(none))
    return Requantization("thresholds", Lines(none, none, none), row, steps.above, *differs)


def _with_rows(steps: StepFunction, rule: str, lines: Lines, equal: Flags) -> Requantization:
    """Lines for channels where they are equal, thresholds for the others."""
    others = ~equal
    row = np.where(equal, -1, np.cumsum(others) - 1)
    return Requantization(rule, lines, row, steps.above[others], *_of_thresholds(steps))


def _of_thresholds(steps: StepFunction) -> tuple[Integers, int]:
    """On how many sums thresholds differ, and by how much: none, unless equal sums have different outputs."""
    counts = differing(steps, steps.above)
    return counts, largest_difference(steps, steps.above, counts)


def _filled(steps: StepFunction, lines: Lines, equal: Flags, bits: int) -> Lines:
    """Lines for channels where they are equal, the nearest lines for the others."""
    if equal.all():
        return lines
    nearest = nearest_lines(steps.some(~equal), bits)
    for own, other in zip(lines, nearest, strict=True):
        own[~equal] = other
    return lines


def _common(steps: StepFunction, bits: int) -> Lines:
    """Lines with one shift for all channels: of some shifts, the one with the fewest differences."""
    lines, equal = exact_lines(steps, bits)
    limit = 1 << min(bits, 31)
    reach = max(int(np.abs(steps.low).max()), int(np.abs(steps.high).max()), 1)
    largest = reach * max(float(steps.multiplier.max()), 2.0**-40)  # over all channels, as the rules check it
    most = int(np.clip(58 - np.ceil(np.log2(largest)), 0, LARGEST_SHIFT - 4))
    most = max(0, min(most, int(np.floor(np.log2((limit - 1) / steps.multiplier.max())))))
    wanted = min(int(lines.shift[equal].max(initial=0 if equal.any() else 24)), most)
    shifts = sorted({wanted, (wanted + most) // 2, most})
    found: tuple[int, Lines] | None = None
    for shift in shifts:
        tried = lines_at(steps, shift, limit)
        differs = int(differing(steps, thresholds_of(steps, tried)).sum())
        if found is None or differs < found[0]:
            found = differs, tried
        if not differs:
            break
    assert found is not None
    return found[1]


def _rounded(steps: StepFunction, form: Form) -> Lines:
    """The nearest multiplier of full width, or power of two; half a unit is added. No search, as in engines."""
    count = len(steps.low)
    if form.rule == "power_of_two":
        shift = np.clip(-np.rint(np.log2(steps.multiplier)), 0, LARGEST_SHIFT).astype(np.int64)
        multiplier = np.ones(count, np.int64)
    else:
        multiplier, shift = quantized_multiplier(steps.multiplier, min(form.bits, 31))
    return Lines(multiplier, shift, (np.int64(1) << shift) >> 1)


def quantized_multiplier(real: Floats, bits: int = 31) -> tuple[Integers, Integers]:
    """A real number as m · 2^-shift, m rounded to `bits` bits, halves away from zero: TFLite's QuantizeMultiplier."""
    fraction, exponent = np.frexp(real)
    multiplier = np.floor(np.ldexp(fraction, bits) + 0.5).astype(np.int64)
    shift = bits - exponent.astype(np.int64)
    too_large = multiplier == 1 << bits
    multiplier, shift = np.where(too_large, 1 << (bits - 1), multiplier), shift - too_large
    less, more = np.maximum(shift - LARGEST_SHIFT, 0), np.maximum(-shift, 0)
    whole = np.maximum(multiplier >> np.minimum(less, bits), 1) << np.minimum(more, 31)
    return np.minimum(whole, (1 << bits) - 1), np.clip(shift, 0, LARGEST_SHIFT)


def _compared(steps: StepFunction, rule: str, lines: Lines) -> Requantization:
    theirs = thresholds_of(steps, lines, "double" if rule == "fixed_point_double" else "")
    counts = differing(steps, theirs)
    none = np.empty((0, len(steps.levels)), np.int64)
    row = np.full(len(steps.low), -1)
    return Requantization(rule, lines, row, none, counts, largest_difference(steps, theirs, counts))
