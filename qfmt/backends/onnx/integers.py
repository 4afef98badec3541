"""Integer-only networks: requantization, tables and weighted sums, with arithmetic in int64.

qfmt.RequantShift of floats is in float64, which is exact up to 2**53.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ...arithmetic import FIXED_POINT
from ...forms import MULTIPLY_ADD_DIVIDE
from ...model import DTYPES
from ...ops.accumulation import stored_zero
from ...passes.proofs import limits
from .lowering import Site, lowers, real_type
from .opsets import Lacks

NEVER = 1 << 31
"""A threshold that no int32 reaches."""


# Requantize


@lowers("qfmt.Requantize")
def requantize(site: Site) -> None:
    """In int64; a shift is a division without remainder."""
    out = site.output()
    x = site.to("int64", site.stored(0))
    result = None
    if site.node.rule in FIXED_POINT:
        result = clipped(site, _shifted(site, x))
    if site.has(4):
        result = _counted(site, x, site.grid.quant_min, result)
    assert result is not None
    site.builder.define(out.name, site.to(out.dtype, result))


def _shifted(site: Site, x: ir.Value) -> ir.Value:
    """floor((x · m + add) / 2^shift)"""
    rule, shift = site.node.rule, _parameter(site, 2)
    power = np.int64(1) << shift
    if rule != "power_of_two":
        x = site.emit("Mul", x, site.constant("multiplier", _parameter(site, 1)))
    if rule == "multiply_shift":
        added = site.constant("add", _parameter(site, 3))
    elif rule == "fixed_point_double":
        first = np.where(shift > 31, np.int64(1 << 30), np.int64(0))
        below = site.emit("Less", x, _int64(site, "none", 0))
        halves = (site.constant(name, (power >> 1) + way) for name, way in (("below", -first), ("above", first)))
        added = site.emit("Where", below, *halves)
    else:
        added = site.constant("half", power >> 1)
    return floor_divided(site, site.emit("Add", x, added), site.constant("power", power))


def _counted(site: Site, x: ir.Value, low: int, others: ir.Value | None) -> ir.Value:
    """quant_min + how many thresholds are not above x: a binary search; for channels without a row, the `others`."""
    table = site.tensor(4).array.astype(np.int64)
    rows = _parameter(site, 5) if site.has(5) else _along(site, np.arange(len(table)))
    bits = table.shape[1].bit_length()
    width = (1 << bits) - 1
    padded = np.full((len(table), width), NEVER)
    padded[:, : table.shape[1]] = table
    flat = site.constant("thresholds", padded.reshape(-1))
    before = site.constant("row", np.maximum(rows, 0) * width - 1)
    count = site.emit("Sub", x, x)
    for bit in reversed(range(bits)):
        more = site.emit("Add", count, _int64(site, "step", 1 << bit))
        reached = site.emit("GreaterOrEqual", x, site.emit("Gather", flat, site.emit("Add", more, before)))
        count = site.emit("Where", reached, more, count)
    result = site.emit("Add", count, _int64(site, "quant_min", low))
    return result if others is None else site.emit("Where", site.constant("has_row", rows >= 0), result, others)


def _parameter(site: Site, index: int) -> Any:
    """A parameter in int64, as it broadcasts against x."""
    return _along(site, site.tensor(index).array.astype(np.int64))


def _along(site: Site, values: Any) -> Any:
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *(1,) * (site.rank(0) - 1 - site.attributes["axis"]))


def _int64(site: Site, what: str, number: int) -> ir.Value:
    return site.constant(what, np.int64(number))


# Tables and weighted sums


@lowers("qfmt.Table")
def table(site: Site) -> None:
    index = _place(site, 0)
    if site.attributes["axis"] != -1:
        rows, size = site.tensor(1).array.shape
        axis = site.attributes["axis"] % site.rank(0)
        begins = (np.arange(rows) * size).reshape(-1, *(1,) * (site.rank(0) - 1 - axis))
        index = site.emit("Add", index, site.constant("row", begins))
    _looked_up(site, 1, index)


@lowers("qfmt.PairTable")
def pair_table(site: Site) -> None:
    size = site.tensor(2).array.shape[1]
    index = site.emit("Add", site.emit("Mul", _place(site, 0), _int64(site, "row", size)), _place(site, 1))
    _looked_up(site, 2, index)


def _looked_up(site: Site, table: int, index: ir.Value) -> None:
    """The elements of a table whose rows are concatenated. Those of less than 8 bits are kept as bytes, which
    ONNX Runtime's Gather supports."""
    tensor, out = site.tensor(table), site.output()
    dtype = DTYPES[tensor.dtype]
    if dtype.bits < 8:
        held = "int8" if dtype.kind == "i" else "uint8"
        values = site.builder.constant(f"{site.name}.table", tensor.array.reshape(-1).astype(held))
        value = site.to(out.dtype, site.emit("Gather", values, index))
    elif tensor.array.ndim == 1:
        value = site.emit("Gather", site.stored(table), index)
    else:
        values = site.builder.constant(f"{site.name}.table", tensor.array.reshape(-1), tensor.dtype)
        value = site.emit("Gather", values, index)
    site.builder.define(out.name, value)


def _place(site: Site, index: int) -> ir.Value:
    """q - type_min"""
    lowest = DTYPES[site.tensor(index).dtype].minimum
    wide = site.to("int64", site.stored(index))
    return site.emit("Sub", wide, _int64(site, "lowest", lowest)) if lowest else wide


@lowers("qfmt.WeightedSum")
def weighted_sum(site: Site) -> None:
    result = None
    for index, weight in enumerate(site.attributes["weights"]):
        wide = site.to("int64", site.stored(index))
        term = site.emit("Mul", wide, _int64(site, f"weight.{index}", weight))
        result = term if result is None else site.emit("Add", result, term)
    assert result is not None
    site.builder.define(site.output().name, site.to("int32", result))


@lowers("qfmt.RequantShift")
def requant_shift(site: Site) -> ir.Value | None:
    """floor((x · mul + add) / div + 1/2)"""
    if site.node.rule == MULTIPLY_ADD_DIVIDE or DTYPES[real_type(site, site.output())].is_integer:
        _of_integers(site)
        return None
    x, mul, add = (site.cast(index, "float64") for index in range(3))
    div, half = site.constant("div", np.float64(site.attributes["div"])), site.constant("half", np.float64(0.5))
    moved = site.emit("Add", site.emit("Mul", x, mul), add)
    whole = site.emit("Floor", site.emit("Add", site.emit("Div", moved, div), half))
    return site.to("float32", whole)


def _of_integers(site: Site) -> None:
    """The rule for integers, independent of scales: (x - zx) · mul + add + div / 2, divided and rounded down; then
    clamped, but without a quantization it wraps around."""
    out = site.output()
    zero = stored_zero(site.tensor(0))
    far = [max(abs(end - at) for end in limits(site.tensor(index))) for index, at in enumerate((zero, 0, 0))]
    if far[0] * far[1] + far[2] + site.attributes["div"] >= 1 << 62:
        raise Lacks("computes products that may exceed int64")
    x, mul, add = (site.to("int64", site.stored(index)) for index in range(3))
    x = site.emit("Sub", x, site.constant("x_zero_point", np.int64(zero))) if zero else x
    div = site.attributes["div"]
    half, divisor = site.constant("half", np.int64(div // 2)), site.constant("div", np.int64(div))
    total = site.emit("Add", site.emit("Add", site.emit("Mul", x, mul), add), half)
    result = floor_divided(site, total, divisor)
    if out.quantization is not None:
        result = clipped(site, result)
    site.builder.define(out.name, site.to(out.dtype, result))


def floor_divided(site: Site, total: ir.Value, divisor: ir.Value) -> ir.Value:
    """Integer division, rounded down: ONNX does not specify how its own integer division rounds."""
    return site.emit("Div", site.emit("Sub", total, site.emit("Mod", total, divisor)), divisor)


def clipped(site: Site, result: ir.Value) -> ir.Value:
    """int64 numbers plus the zero point of the output, in its [quant_min, quant_max].

    Not by Clip, Max or Min: those of ONNX Runtime 1.31 do not clamp int64 numbers beyond int32.
    """
    q = site.grid
    numbers = {"zero_point": q.zero_point[0], "quant_min": q.quant_min, "quant_max": q.quant_max}
    zero, low, high = (site.constant(name, np.int64(number)) for name, number in numbers.items())
    moved = site.emit("Add", result, zero)
    at_least = site.emit("Where", site.emit("Less", moved, low), low, moved)
    return site.emit("Where", site.emit("Greater", at_least, high), high, at_least)
