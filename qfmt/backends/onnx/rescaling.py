"""qfmt.RequantShift: integers in int64; floats in float64, which is exact up to 2**53."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...ops.accumulation import stored_zero
from ...ops.rescaling import RULE
from .lowering import Site, lowers


@lowers("qfmt.RequantShift")
def requant_shift(site: Site) -> ir.Value | None:
    """floor((x · mul + add) / div + 1/2)"""
    if site.node.rule == RULE:
        _of_integers(site)
        return None
    x, mul, add = (site.cast(index, "float64") for index in range(3))
    div, half = site.constant("div", np.float64(site.attributes["div"])), site.constant("half", np.float64(0.5))
    moved = site.emit("Add", site.emit("Mul", x, mul), add)
    whole = site.emit("Floor", site.emit("Add", site.emit("Div", moved, div), half))
    return site.to("float32", whole)


def _of_integers(site: Site) -> None:
    """The rule for integers, independent of scales: (x - zx) · mul + add + div / 2, divided and rounded down."""
    out = site.output()
    x, mul, add = (site.to("int64", site.stored(index)) for index in range(3))
    zero = stored_zero(site.tensor(0))
    x = site.emit("Sub", x, site.constant("x_zero_point", np.int64(zero))) if zero else x
    div = site.attributes["div"]
    half, divisor = site.constant("half", np.int64(div // 2)), site.constant("div", np.int64(div))
    total = site.emit("Add", site.emit("Add", site.emit("Mul", x, mul), add), half)
    result = clipped(site, floor_divided(site, total, divisor))
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
