"""The form qoperator: operators on integers with their scales, ONNX's own and those of ONNX Runtime.

A node without such an operator, or whose tensors are not 8-bit per tensor, stays between DequantizeLinear and
QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32, quantize
from ...model import Quantization, Tensor, numpy_dtype
from ...ops.accumulation import in_units_of_sums, int32_bias
from ...ops.activation import bounds
from . import grids
from .lowering import Site, by_integers, plain, written_attributes
from .opsets import Lacks
from .pools import without_ceil_mode

MICROSOFT = "com.microsoft"


def _is_plain(*tensors: Tensor) -> bool:
    """Whether all have 8 bits, one type, and one scale each."""
    grids_ = [tensor.quantization for tensor in tensors]
    dtypes = {tensor.dtype for tensor in tensors}
    return dtypes in ({"int8"}, {"uint8"}) and all(grid is not None and _has_one_scale(grid) for grid in grids_)


def _has_one_scale(grid: Quantization) -> bool:
    return grid.axis is None and grid.is_affine and not grid.has_float_zero_points


def _is_weight(x: Tensor, w: Tensor, axis: int) -> bool:
    """Whether kernels for x support a weight with scales along that axis, or one scale."""
    grid = w.quantization
    if grid is None or not grid.is_affine or grid.has_float_zero_points or grid.axis not in (None, axis):
        return False
    return w.dtype == "int8" or (w.dtype == "uint8" and x.dtype == "uint8")


def _with_grid(site: Site, index: int) -> list[ir.Value | None]:
    """An input with its scale and zero point."""
    return [site.stored(index), *_grid(site, site.tensor(index))]


def _grid(site: Site, tensor: Tensor) -> list[ir.Value]:
    return [grids.scale(site.builder, tensor), grids.zero_point(site.builder, tensor)]


class _NoInteger(Exception):
    """A bias that cannot be converted to int32."""


def _bias(site: Site) -> ir.Value | None:
    """A bias as int32, in units of sx · sw, the only form that these operators support."""
    if not site.has(2):
        return None
    x, w, b = (site.tensor(index) for index in range(3))
    is_vector = b.is_constant and b.array.ndim == 1 and b.dtype == "int32"
    if is_vector and in_units_of_sums(b.quantization, grids.grid_of(x), grids.grid_of(w), site.attributes):
        return site.stored(2)
    whole = int32_bias(site.node, x, w, b)
    if whole is None:
        raise _NoInteger
    return site.builder.constant(f"{b.name}_quantized", whole.array)


@by_integers("Conv")
def convolution(site: Site) -> ir.Value | None:
    x, w, y = site.tensor(0), site.tensor(1), site.output()
    if not _is_plain(x, y) or not _is_weight(x, w, 0):
        return None
    try:
        bias = _bias(site)
    except _NoInteger:
        return None
    inputs = [*_with_grid(site, 0), *_with_grid(site, 1), *_grid(site, y), bias]
    return site.emit("QLinearConv", *inputs, **written_attributes(site))


@by_integers("qfmt.Linear", "Gemm")
def linear(site: Site) -> ir.Value | None:
    """QGemm for matrices; QLinearMatMul, which has no bias, for others."""
    x, w, y = site.tensor(0), site.tensor(1), site.output()
    a = {"transB": 1} if site.node.operator == "qfmt.Linear" else dict(site.attributes)
    transposed = bool(a["transB"])
    if not _is_plain(x, y) or not _is_weight(x, w, 0 if transposed else 1) or a.get("alpha", 1) != 1:
        return None
    if x.shape is not None and len(x.shape) == 2 and a.get("beta", 1) == 1:
        try:
            bias = _bias(site)
        except _NoInteger:
            return None
        flags = {key: value for key, value in a.items() if key in ("transA", "transB") and value}
        inputs = [*_with_grid(site, 0), *_with_grid(site, 1), bias, *_grid(site, y)]
        return site.emit("QGemm", *inputs, domain=MICROSOFT, **flags)
    if site.has(2) or site.node.operator == "Gemm":
        return None
    columns = site.emit("Transpose", site.stored(1), perm=[1, 0])
    return site.emit("QLinearMatMul", *_with_grid(site, 0), columns, *_grid(site, w), *_grid(site, y))


@by_integers("MatMul")
def matrix_product(site: Site) -> ir.Value | None:
    a, b, y = site.tensor(0), site.tensor(1), site.output()
    last = -1 if b.shape is None else len(b.shape) - 1
    if not _is_plain(a, y) or not _is_weight(a, b, last) or (last != 1 and grids.grid_of(b).is_per_channel):
        return None
    return site.emit("QLinearMatMul", *_with_grid(site, 0), *_with_grid(site, 1), *_grid(site, y))


@by_integers("Add", "Mul", "Sigmoid", "LeakyRelu")
def elements(site: Site) -> ir.Value | None:
    count = len(site.node.inputs)
    if not _is_plain(*(site.tensor(index) for index in range(count)), site.output()):
        return None
    inputs = [each for index in range(count) for each in _with_grid(site, index)]
    return site.emit(
        f"QLinear{site.node.operator}", *inputs, *_grid(site, site.output()), domain=MICROSOFT, **site.attributes
    )


@by_integers("GlobalAveragePool")
def global_average_pool(site: Site) -> ir.Value | None:
    if not _is_plain(site.tensor(0), site.output()):
        return None
    return site.emit(
        "QLinearGlobalAveragePool", *_with_grid(site, 0), *_grid(site, site.output()), domain=MICROSOFT, channels_last=0
    )


@by_integers("AveragePool")
def average_pool(site: Site) -> ir.Value | None:
    if not _is_plain(site.tensor(0), site.output()):
        return None
    try:
        attributes = without_ceil_mode(site)
    except Lacks:
        return None
    if set(attributes.pop("dilations")) != {1} or (any(attributes["pads"]) and attributes["count_include_pad"]):
        return None
    inputs = [*_with_grid(site, 0), *_grid(site, site.output())]
    return site.emit("QLinearAveragePool", *inputs, domain=MICROSOFT, **attributes)


@by_integers("Concat")
def concatenation(site: Site) -> ir.Value | None:
    count = len(site.node.inputs)
    if not _is_plain(*(site.tensor(index) for index in range(count)), site.output()):
        return None
    inputs = [each for index in range(count) for each in _with_grid(site, index)]
    return site.emit("QLinearConcat", *_grid(site, site.output()), *inputs, domain=MICROSOFT, **site.attributes)


@by_integers("Relu", "Clip")
def clip(site: Site) -> ir.Value | None:
    """Clip of integers: bounds on the grid of the output, as the reference rounds them."""
    x, y = site.tensor(0), site.output()
    if not _is_plain(x, y):
        return None
    grid, dtype = grids.grid_of(y), numpy_dtype(y.dtype)
    if site.node.operator == "Relu":
        return site.emit("Clip", site.stored(0), grids.zero_point(site.builder, y))
    known = bounds(site.node, site.builder.model.tensors)
    if known is None:
        return None
    limits = enumerate(quantize(np.array(known, f32), grid, dtype, "reciprocal_offset"), 1)
    given = (site.constant(f"bound_{index}", limit) if site.has(index) else None for index, limit in limits)
    return site.emit("Clip", site.stored(0), *given)


@by_integers("Resize")
def nearest(site: Site) -> Sequence[ir.Value] | None:
    """Moves integers if the mode is nearest."""
    x, y = site.tensor(0), site.output()
    if site.attributes["mode"] != "nearest" or not _is_plain(x, y) or not grids.grid_of(x).same_grid(y.quantization):
        return None
    inputs = [site.stored(index) for index in range(len(site.node.inputs))]
    if site.has(2) and site.tensor(2).dtype == "float64":
        inputs[2] = site.cast(2, "float32")
    return plain(site, inputs, site.attributes)


@by_integers("Softmax")
def softmax(site: Site) -> ir.Value | None:
    """QLinearSoftmax, if ONNX Runtime's is correct: on the grid of 1/256, for more than one number."""
    x, y, axis = site.tensor(0), site.output(), site.attributes["axis"]
    size = None if x.shape is None else x.shape[axis]
    if not _is_plain(x, y) or not isinstance(size, int) or size < 2 or grids.grid_of(y).scale.numbers() != (1 / 256,):
        return None
    inputs = [*_with_grid(site, 0), *_grid(site, y)]
    return site.emit("QLinearSoftmax", *inputs, domain=MICROSOFT, opset=13, axis=axis)
