"""The parameters of a requantization in the form of the kernels: each of one element, or of one per channel.

A channel without an exact multiplier, shift and addend has thresholds, one for each output integer. Almost all of them
are those of a straight line; so the program computes the line, and corrects its result for the few sums between a
threshold and that of the line (exceptions), which needs less memory and time than counting. Both are compared on all
sums that the weights allow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from ...arrays import Array
from ...errors import QfmtError
from ...model import DTYPES, INT32, Node
from ...ops.requantization import LARGEST_ADD, PARAMETERS
from ...passes.lowering.lines import Lines, nearest_lines, thresholds_of
from ...passes.lowering.step_functions import StepFunction
from .plan import Plan
from .static import Value

KINDS = {"multiplier": np.int32, "shift": np.uint8, "add": np.int64}

LARGEST = (1 << 63) - (1 << 32)
"""The limit of int64, less room for a zero point."""


def _none() -> Array:
    return np.zeros((0, 0), np.int32)


@dataclass(frozen=True, slots=True)
class Numbers:
    """`rule`: the kernel; `line`: its arrays by name. `table`, `row` [C]: thresholds, and the row of a channel or -1.

    `sums`, `changes` [slots, C]: the sums for which the line is wrong, and the corrections.
    """

    rule: str
    line: dict[str, Array]
    row: Array
    divisor: int = 1
    table: Array = field(default_factory=_none)
    sums: Array = field(default_factory=_none)
    changes: Array = field(default_factory=_none)


def numbers_of(plan: Plan, node: Node, channels: int, reach: Reach | None) -> Numbers:
    """The parameters of a node. With the reach of each channel's sums, thresholds become lines with exceptions."""
    return _high(_numbers_of(plan, node, channels, reach), plan.value(node.outputs[0]))


def _numbers_of(plan: Plan, node: Node, channels: int, reach: Reach | None) -> Numbers:
    if node.operator == "qfmt.RequantShift":
        return _divided(plan, node, channels)
    names = dict(zip(PARAMETERS, node.inputs[1:], strict=False))
    arrays = {name: plan.value(tensor).array for name, tensor in names.items() if tensor}
    found = {name: array for name, array in arrays.items() if array is not None}
    line = {} if node.rule == "thresholds" else _line(node.rule, found)
    line = {name: _spread(array, channels) for name, array in line.items()}
    rule = "fixed_point_double" if node.rule == "fixed_point_double" else "multiply_shift"
    plain = Numbers(rule, line, np.full(channels, -1, np.int32))
    if "thresholds" not in found:
        return plain
    table = found["thresholds"].astype(np.int32)
    row = _spread(found.get("row", np.arange(len(table))), channels).astype(np.int32)
    if (row < 0).all():
        return plain
    if rule == "fixed_point_double":  # its kernel adds by the sign of the sum: rows are counted
        return replace(plain, row=row, table=table)
    made = {name: np.array(line[name]) if name in line else np.zeros(channels, KINDS[name]) for name in KINDS}
    own = replace(plain, line=made, row=row, table=table)
    y = plan.value(node.outputs[0])
    if reach is None or not table.size:
        for channel in np.flatnonzero(row >= 0).tolist():
            _put(made, channel, _line_through(table[row[channel]], y.limits[0] - y.zero_point))
        return own
    plan.network.budget.allocate(table.itemsize * table.shape[1] * int((row >= 0).sum()))
    return _with_exceptions(own, reach, plan.value(node.inputs[0]), y)


def _high(n: Numbers, y: Value) -> Numbers:
    """The same numbers, with a shift of at least 32 if all channels allow it: then the rest fits in int32."""
    if n.rule != "multiply_shift" or np.iinfo(y.dtype).bits > 16:
        return n
    shift = n.line["shift"].astype(np.int64)
    more = np.maximum(32 - shift, 0)
    multiplier, add = (n.line[name].astype(object) << more for name in ("multiplier", "add"))
    if np.abs(multiplier).max(initial=0) > INT32 or np.abs(add).max(initial=0) > LARGEST_ADD:
        return n
    line: dict[str, Array] = {"multiplier": multiplier.astype(np.int32), "shift": (shift + more - 32).astype(np.uint8),
            "add": add.astype(np.int64)}  # fmt: skip
    return replace(n, rule="multiply_high", line=line)


def _line(rule: str, found: dict[str, Array]) -> dict[str, Array]:
    """Multiplier, shift, and addend, if the addend does not depend on the sign of the sum."""
    shift = found["shift"].astype(np.uint8)
    half: Array = np.where(shift > 0, np.int64(1) << np.maximum(shift.astype(np.int64) - 1, 0), 0)
    line: dict[str, Array] = {"multiplier": found.get("multiplier", np.ones(1)).astype(np.int32), "shift": shift}
    if rule == "fixed_point_double":
        return line
    return line | {"add": found["add"].astype(np.int64) if rule == "multiply_shift" else half}


def _put(line: dict[str, Array], channel: int, numbers: tuple[int, int, int]) -> None:
    for name, number in zip(KINDS, numbers, strict=True):
        line[name][channel] = number


def _with_exceptions(n: Numbers, reach: Reach, x: Value, y: Value) -> Numbers:
    """Lines and exceptions for the channels with thresholds, except those with too many exceptions."""
    at = np.flatnonzero(n.row >= 0)
    rows = n.table[n.row[at]]
    levels = y.limits[0] + 1 + np.arange(rows.shape[1])
    own = Reach(reach.low[at], reach.high[at])
    found = mended(rows, own, levels, _slopes(x, y, len(n.row))[at], y.zero_point)
    for place, channel in enumerate(at):
        m, s, add = (int(each[place]) for each in found.lines)
        _put(n.line, int(channel), (m, s, add))
    counts = np.array(
        [len(each) if right else 1 << 20 for each, right in zip(found.exceptions, found.right, strict=True)]
    )
    slots = slots_for(counts, len(n.row))
    sums, changes = np.zeros((slots, len(n.row)), np.int32), np.zeros((slots, len(n.row)), np.int8)
    row = n.row.copy()
    for channel, count, exceptions in zip(at, counts, found.exceptions, strict=True):
        if count <= slots:
            row[channel] = -1
            for slot, (value, change) in enumerate(exceptions.items()):
                sums[slot, channel], changes[slot, channel] = value, change
    return replace(n, row=row, sums=sums, changes=changes)


def _slopes(x: Value, y: Value, channels: int) -> Array:
    """The approximate change of an output per unit of a sum, for each channel: from the scales, or 1 without them."""
    if x.quantization is None or y.quantization is None:
        return np.ones(channels)
    return _spread(np.asarray(x.quantization.scale) / y.quantization.scale[0], channels)


def _line_through(thresholds: Array, low: int) -> tuple[int, int, int]:
    """Multiplier, shift, add with low + #{k : x ≥ thresholds[k]} ≈ (x · multiplier + add) >> shift."""
    real = thresholds[thresholds < np.iinfo(np.int32).max].astype(np.int64)
    first, last = (int(real[0]), int(real[-1])) if real.size else (0, 0)
    if last == first:
        return 1, 31, (low + real.size // 2) << 31
    slope = Fraction(real.size - 1, last - first)
    shift = 0
    while slope * (1 << shift + 1) < 1 << 29 and (abs(low) + real.size) << shift + 1 < 1 << 60:
        shift += 1
    multiplier = max(1, round(slope * (1 << shift)))
    return multiplier, shift, ((low + 1) << shift) - first * multiplier


def _divided(plan: Plan, node: Node, channels: int) -> Numbers:
    """RequantShift: floor((x · mul + add) / div + 1/2), so the half becomes part of the addend."""
    div = node.int("div")
    mul, add = (_exact(plan, name) for name in node.inputs[1:3])
    if np.abs(mul).max(initial=0) > INT32 or max(np.abs(add).max(initial=0), div) > LARGEST_ADD >> 1:
        raise QfmtError("has a multiplier beyond int32, or a divisor or addend that is too large")
    x = plan.value(node.inputs[0])
    add = add + div // 2 - x.zero_point * mul
    farthest = max(-int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max))
    if (np.abs(add) > LARGEST - farthest * np.abs(mul.astype(object))).any():  # as Python integers: no overflow
        raise QfmtError("computes a product plus addend that may exceed int64")
    y = plan.value(node.outputs[0])
    if y.quantization is None:
        ends = [(end * mul.astype(object) + add) // div for end in x.limits]
        if not all(DTYPES[y.dtype].holds(each.min(), each.max()) for each in ends if each.size):
            raise QfmtError(f"may exceed {y.dtype} and wrap around, which C does not do")
    mul, add = (_spread(each.reshape(-1), channels) for each in np.broadcast_arrays(mul, add))
    none = np.full(channels, -1, np.int32)
    if div & (div - 1) == 0:
        shift = np.full(mul.shape, div.bit_length() - 1, np.uint8)
        return Numbers("multiply_shift", {"multiplier": mul.astype(np.int32), "shift": shift, "add": add}, none)
    return Numbers("multiply_divide", {"multiplier": mul, "add": add}, none, div)


def _exact(plan: Plan, name: str) -> Array:
    """Integers of a constant, which may be stored as floats."""
    numbers = plan.array(name, "a multiplier that is")
    whole: Array = numbers.astype(np.int64)
    if not (whole == numbers).all():
        raise QfmtError("has a multiplier or addend that is not an integer")
    return whole


def _spread(array: Array, count: int) -> Array:
    return np.broadcast_to(array, (count,)) if array.size == 1 else array


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
