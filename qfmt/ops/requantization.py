"""Integers to other integers with integer arithmetic only: requantization of sums, and tables."""

from __future__ import annotations

from functools import reduce

import numpy as np

from ..arithmetic import FIXED_POINT, clamp
from ..arrays import Array
from ..errors import QfmtError, RunError
from ..model import Shape
from .accumulation import int32_sums
from .registry import Inference, Operand, Quantized, Result, Trait, operator, optional, required
from .shapes import axis_of, broadcast, broadcast_pair, same

THRESHOLDS = "thresholds"
RULES = (*FIXED_POINT, THRESHOLDS)

PARAMETERS = ("multiplier", "shift", "add", "thresholds", "row")
"""The inputs of Requantize after x."""

TAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "multiply_shift": (("multiplier", "shift", "add"), ("thresholds", "row")),
    "fixed_point_single": (("multiplier", "shift"), ("thresholds", "row")),
    "fixed_point_double": (("multiplier", "shift"), ("thresholds", "row")),
    "power_of_two": (("shift",), ("thresholds", "row")),
    THRESHOLDS: (("thresholds",), ("row",)),
}
"""Rule → the parameters of Requantize that it needs, and those that it may have."""

LARGEST_ADD = (1 << 62) - 1
"""The largest |add| with which any int32 times any multiplier, plus a zero point, stays within int64."""


def _requantize_integer(
    x: Operand,
    multiplier: Operand | None,
    shift: Operand | None,
    add: Operand | None,
    thresholds: Operand | None,
    row: Operand | None,
    *,
    result: Result,
    axis: int,
) -> Array:
    """a channel has the parameters at its index along `axis`, or the only ones. A channel whose row is not negative is
    computed by the rule `thresholds` with that row, whatever rule is stated.
    """
    result.expect(*RULES)
    rows = None if thresholds is None else _rows(thresholds.array, row)
    if result.rule == THRESHOLDS:
        y = np.empty(x.array.shape, result.dtype)
    else:
        numbers = (_along(each, x.array.shape, axis) for each in (multiplier, shift, add))
        rounded = FIXED_POINT[result.rule](x.array.astype(np.int64), *numbers)
        y = np.asarray(clamp(rounded + int(result.quantization.zero_point[0]), result.quantization, result.dtype))
    if thresholds is not None and rows is not None:
        _count(x.array, thresholds.array, rows, axis, result.quantization.quant_min, y)
    return y


def _along(operand: Operand | None, shape: tuple[int, ...], axis: int) -> Array:
    """A parameter in int64, as it broadcasts against x of that shape; 0 for one that the rule does not use."""
    if operand is None:
        return np.zeros((), np.int64)
    if operand.array.size not in (1, shape[axis] if axis < len(shape) else 1):
        raise QfmtError(f"{operand.array.size} parameters do not fit axis {axis} of shape {list(shape)}")
    values = operand.array.astype(np.int64)
    return values.reshape([-1 if i == axis and values.size > 1 else 1 for i in range(len(shape))])


def _rows(thresholds: Array, row: Operand | None) -> Array:
    """The row of thresholds of each channel."""
    rows = np.arange(len(thresholds)) if row is None else row.array
    if rows.size and not rows.max() < len(thresholds):
        raise QfmtError(f"row {rows.max()} of {len(thresholds)} rows of thresholds")
    return rows


def _count(x: Array, thresholds: Array, rows: Array, axis: int, low: int, y: Array) -> None:
    """Write into y, where a row is stated: quant_min + #{k : x ≥ thresholds[row, k]}."""
    if rows.size == 1:
        if rows[0] >= 0:
            y[...] = low + np.searchsorted(thresholds[rows[0]], x, side="right")
        return
    sums, counts = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    if len(rows) != len(sums):
        raise QfmtError(f"{len(rows)} rows of thresholds for {len(sums)} channels")
    for channel in np.flatnonzero(rows >= 0):
        counts[channel] = low + np.searchsorted(thresholds[rows[channel]], sums[channel], side="right")


@operator(
    "qfmt.Requantize",
    1,
    "x multiplier? shift? add? thresholds? row? -> y",
    attributes={"axis": required("i", "the dimension of x that channels run along, from 0")},
    shape=same,
    quantized=Quantized.INTEGERS,
    integer=_requantize_integer,
    rules=RULES,
    constants=PARAMETERS,
    traits=Trait.REQUANTIZE,
)
def requantize(x: Array, *parameters: Array | None, axis: int) -> Array:
    """y = the sums x with the quantization of y, by the stated rule; integers only.

    x has any rank; a zero point of x is not subtracted. A rule has these inputs, and no others:

    - `multiply_shift`: multiplier, shift and add;
    - `fixed_point_single`, `fixed_point_double`: multiplier and shift;
    - `power_of_two`: shift;
    - each of these may have both thresholds and row;
    - `thresholds`: thresholds, with or without row.

    Their types and values:

    - multiplier is int32, 1 … 2³¹ - 1; shift is uint8, 0 … 62; add is int64, |add| < 2⁶².
    - thresholds are int32 [R, K], K = quant_max - quant_min of y. Each row ascends; equal neighbours are allowed. A
      threshold that no reachable x attains is 2³¹ - 1.
    - row is int32. It selects a row of thresholds for a channel, 0 … R - 1. A channel of row -1 uses the stated rule;
      by the rule `thresholds` there is no row -1. If row is absent, R is 1, and this row serves all channels, or R is
      the number of channels, and row c belongs to channel c.

    All but thresholds are vectors, of one element for all channels or of one for each.
    """
    raise QfmtError("sums are requantized, but the output has no quantization")


def _table_shape(given: Inference) -> list[Shape]:
    """That of x."""
    x, table, axis = given.shapes[0], given.shapes[1], given.attributes["axis"]
    if table is not None and len(table) != (1 if axis == -1 else 2):
        raise QfmtError(f"a table of shape {list(table)} for the axis {axis}")
    if x is not None and axis != -1:
        size = x[axis_of(axis, len(x))]
        if table is not None and isinstance(size, int) and isinstance(table[0], int) and size != table[0]:
            raise QfmtError(f"{table[0]} rows of a table for {size} channels")
    return [x]


def _index(x: Array, size: int) -> Array:
    """q - type_min, for the type of as many values as a table has elements; RunError beyond it."""
    index = x.astype(np.intp) + (size // 2 if x.dtype.kind == "i" else 0)
    if index.size and not 0 <= index.min() <= index.max() < size:
        raise RunError(f"a table of {size} elements has none for {x.min()} … {x.max()}")
    return index


@operator(
    "qfmt.Table",
    1,
    "x table -> y",
    attributes={"axis": optional(-1, "the dimension of x along which there is a row for each channel; -1: one table")},
    shape=_table_shape,
    quantized=Quantized.INTEGERS,
    dtype="input:1",
    constants=("table",),
)
def table(x: Array, table: Array, *, axis: int) -> Array:
    """y = table[q - type_min], q the integers of x: any function of integers of up to 8 bits.

    type_min is the least integer of the type of x: -128 for int8, 0 for uint8. table is [2^bits], with the bits of the
    type of x, and has the type of y, an integer type; or [C, 2^bits], a row for each slice of x along `axis`.
    """
    index = _index(x, table.shape[-1])
    if axis == -1:
        return table[index]
    along = axis_of(axis, x.ndim)
    if table.shape[0] != x.shape[along]:
        raise QfmtError(f"{table.shape[0]} rows of a table for {x.shape[along]} channels")
    channel = np.arange(len(table)).reshape([-1 if i == along else 1 for i in range(x.ndim)])
    return table[channel, index]


def _pair_shape(given: Inference) -> list[Shape]:
    """a and b broadcast."""
    a, b, _ = given.shapes
    return [None if a is None or b is None else broadcast_pair(a, b)]


@operator(
    "qfmt.PairTable",
    1,
    "a b table -> y",
    shape=_pair_shape,
    quantized=Quantized.INTEGERS,
    dtype="input:2",
    constants=("table",),
)
def pair_table(a: Array, b: Array, table: Array) -> Array:
    """y = table[qa - type_min, qb - type_min]: any function of two integers of up to 8 bits; a and b broadcast.

    table is [2^bits, 2^bits], with the bits of the types of a and b, and has the type of y, an integer type.
    """
    return table[_index(a, table.shape[0]), _index(b, table.shape[1])]


@operator(
    "qfmt.WeightedSum",
    1,
    "inputs* -> y",
    attributes={"weights": required("ii", "a factor for each input")},
    shape=broadcast,
    quantized=Quantized.INTEGERS,
    dtype="int32",
)
def weighted_sum(*inputs: Array, weights: tuple[int, ...]) -> Array:
    """y = Σ weights[i] · q_i, exact, as int32, of stored integers: zero points are not subtracted.

    The inputs broadcast. The sum of |weights[i]| · (1 + the greatest integer of the type) is less than 2⁶³: no sum
    exceeds int64.
    """
    if len(weights) != len(inputs):
        raise QfmtError(f"{len(weights)} weights for {len(inputs)} inputs")
    return int32_sums(reduce(np.add, (x.astype(np.int64) * w for x, w in zip(inputs, weights, strict=True))))
