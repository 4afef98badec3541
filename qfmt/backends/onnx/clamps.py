"""Integer-only networks: operators that move or clamp integers, without floats.

Bounds and constants become integers of the grid here, and the neighbours that a Resize selects become indices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32, quantize
from ...model import DTYPES, Tensor, numpy_dtype
from ...ops.activation import bounds
from .lowering import Site, among_integers, one_to_one
from .older import padded, reduced
from .qdq import grid_of
from .resize import constant_neighbours, resized


@among_integers("Relu")
def relu(site: Site) -> ir.Value | None:
    grid = site.grid
    if not _is_plain(site.output()):
        return None
    return _limited(site, max(int(grid.zero_point[0]), grid.quant_min), grid.quant_max)


@among_integers("Clip")
def clip(site: Site) -> ir.Value | None:
    y, known = site.output(), bounds(site.node, site.builder.model.tensors)
    if not _is_plain(y) or known is None:
        return None
    low, high = quantize(np.array(known, f32), site.grid, numpy_dtype(y.dtype), "reciprocal_offset").tolist()
    return _limited(site, min(low, high), high)  # the upper bound is taken last


def _limited(site: Site, low: int, high: int) -> ir.Value:
    """An integer in [low, high]."""
    kind = site.working or site.output().dtype
    bounds = (site.constant(what, np.array(limit, kind)) for what, limit in (("low", low), ("high", high)))
    return site.emit("Clip", site.real(0), *bounds)


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has one scale and integers of at most 32 bits."""
    grid = grid_of(tensor)
    return len(grid.zero_point) == 1 and not grid.has_float_zero_points and DTYPES[tensor.dtype].is_integer


@among_integers("Pad")
def pad(site: Site) -> Sequence[ir.Value] | None:
    """The padding value becomes an integer of the grid."""
    y = site.output()
    if not _is_plain(y) or (site.has(2) and not site.tensor(2).is_constant):
        return None
    real = site.tensor(2).dequantize().reshape(()) if site.has(2) else np.zeros((), f32)
    fill = quantize(real, site.grid, numpy_dtype(y.dtype), "divide")
    is_filled = site.attributes["mode"] == "constant" and int(fill) != 0
    value = site.constant("fill", fill.astype(site.working or y.dtype)) if is_filled else None
    return padded(site, [site.real(0), site.stored(1), value, site.stored(3)])


@among_integers("Concat")
def concatenation(site: Site) -> Sequence[ir.Value] | None:
    """Inputs on one grid: integers are unchanged, unless the node states a rule, by which it clamps them."""
    y = site.output()
    if site.node.rule:
        return None
    tensors = [site.tensor(index) for index in range(len(site.node.inputs))]
    if not all(each.dtype == y.dtype and site.grid.same_grid(each.quantization) for each in tensors):
        return None
    return one_to_one(site)


@among_integers("Resize")
def nearest(site: Site) -> ir.Value | Sequence[ir.Value] | None:
    """Gather of the neighbours; Resize if sizes are not known."""
    a, x, y = site.attributes, site.tensor(0), site.output()
    if a["mode"] != "nearest" or a["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return None
    if x.dtype != y.dtype or site.node.rule or not site.grid.same_grid(x.quantization):
        return None
    indices = constant_neighbours(site)
    if indices is None:
        return None if site.working else resized(site, site.stored)
    value = site.real(0)
    for axis, each in indices.items():
        value = site.emit("Gather", value, site.constant("neighbours", each), axis=axis)
    return value if indices else site.emit("Identity", value)


@among_integers("GlobalMaxPool")
def global_max_pool(site: Site) -> ir.Value:
    return reduced(site, "ReduceMax", site.x, list(range(2 - site.rank(0), 0)))
