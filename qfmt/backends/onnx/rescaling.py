"""Requantization by integers, of which ONNX has none: float64 is as exact up to 2**53."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .lowering import Site, lowers


@lowers("qfmt.RequantShift")
def requant_shift(site: Site) -> ir.Value:
    """floor((x · mul + add) / div + 1/2)"""
    x, mul, add = (site.cast(index, "float64") for index in range(3))
    div, half = site.constant("div", np.float64(site.attributes["div"])), site.constant("half", np.float64(0.5))
    moved = site.emit("Add", site.emit("Mul", x, mul), add)
    whole = site.emit("Floor", site.emit("Add", site.emit("Div", moved, div), half))
    return site.emit("Cast", whole, to=int(ir.DataType.FLOAT))
