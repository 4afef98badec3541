"""The form qoperator: operators on integers with their scales, ONNX's own and those of ONNX Runtime.

A node without such an operator, or whose tensors are not 8-bit per tensor, stays between DequantizeLinear and
QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32, quantize
from ...model import Tensor, numpy_dtype
from ...ops.accumulation import QUANTIZED, in_units_of_sums, int32_bias
from ...ops.activation import bounds
from . import qdq
from .lowering import Site, by_integers, written_attributes
from .opsets import Lacks
from .pools import without_ceil_mode
from .resize import resized

MICROSOFT = "com.microsoft"

NONE = "has no operator on such integers"


def _check_plain(*tensors: Tensor) -> None:
    """Lacks unless all have 8 bits, one type, and one scale each."""
    given = [tensor.quantization for tensor in tensors]
    dtypes = {tensor.dtype for tensor in tensors}
    plain = (grid is not None and grid.is_per_tensor and not grid.has_float_zero_points for grid in given)
    if dtypes not in ({"int8"}, {"uint8"}) or not all(plain):
        raise Lacks(NONE)


def _is_weight(x: Tensor, w: Tensor, axis: int) -> bool:
    """Whether kernels for x support a weight with scales along that axis, or one scale."""
    grid = w.quantization
    if grid is None or not grid.is_summable or grid.axis not in (None, axis):
        return False
    return w.dtype == "int8" or (w.dtype == "uint8" and x.dtype == "uint8")


def _with_grid(site: Site, index: int) -> list[ir.Value | None]:
    """An input with its scale and zero point."""
    return [site.stored(index), *_grid(site, site.tensor(index))]


def _grid(site: Site, tensor: Tensor) -> list[ir.Value]:
    return [qdq.scale(site.builder, tensor), qdq.zero_point(site.builder, tensor)]


def _bias(site: Site) -> ir.Value | None:
    """A bias as int32, in units of sx · sw, the only form that these operators support."""
    if not site.has(2):
        return None
    x, w, b = (site.tensor(index) for index in range(3))
    is_vector = b.is_constant and b.array.ndim == 1 and b.dtype == "int32"
    if is_vector and in_units_of_sums(b.quantization, qdq.grid_of(x), qdq.grid_of(w), site.attributes):
        return site.stored(2)
    whole = int32_bias(site.node, x, w, b)
    if whole is None or site.output().name in site.builder.apart.results:
        raise Lacks(NONE)
    return site.builder.constant(b.name + QUANTIZED, whole.array)


@by_integers("Conv")
def convolution(site: Site) -> ir.Value:
    x, w, y = site.tensor(0), site.tensor(1), site.output()
    _check_plain(x, y)
    if not _is_weight(x, w, 0):
        raise Lacks(NONE)
    bias = _bias(site)
    inputs = [*_with_grid(site, 0), *_with_grid(site, 1), *_grid(site, y), bias]
    return site.emit("QLinearConv", *inputs, **written_attributes(site))


@by_integers("qfmt.Linear", "Gemm")
def linear(site: Site) -> ir.Value:
    """QGemm for matrices; QLinearMatMul, which has no bias, for others."""
    x, w, y = site.tensor(0), site.tensor(1), site.output()
    a = {"transB": 1} if site.node.operator == "qfmt.Linear" else dict(site.attributes)
    transposed = bool(a["transB"])
    _check_plain(x, y)
    if not _is_weight(x, w, 0 if transposed else 1) or a.get("alpha", 1) != 1:
        raise Lacks(NONE)
    if x.shape is not None and len(x.shape) == 2 and a.get("beta", 1) == 1:
        bias = _bias(site)
        flags = {key: value for key, value in a.items() if key in ("transA", "transB") and value}
        inputs = [*_with_grid(site, 0), *_with_grid(site, 1), bias, *_grid(site, y)]
        return site.emit("QGemm", *inputs, domain=MICROSOFT, **flags)
    if site.has(2) or site.node.operator == "Gemm":
        raise Lacks(NONE)
    columns = site.emit("Transpose", site.stored(1), perm=[1, 0])
    return site.emit("QLinearMatMul", *_with_grid(site, 0), columns, *_grid(site, w), *_grid(site, y))


@by_integers("MatMul")
def matrix_product(site: Site) -> ir.Value:
    a, b, y = site.tensor(0), site.tensor(1), site.output()
    last = -1 if b.shape is None else len(b.shape) - 1
    _check_plain(a, y)
    if not _is_weight(a, b, last) or (last != 1 and qdq.grid_of(b).is_per_channel):
        raise Lacks(NONE)
    return site.emit("QLinearMatMul", *_with_grid(site, 0), *_with_grid(site, 1), *_grid(site, y))


@by_integers("Add", "Mul", "Sigmoid", "LeakyRelu", "GlobalAveragePool", "Concat")
def of_integers(site: Site) -> ir.Value:
    """ONNX Runtime's QLinear…, which reads the quantization of each input and of the output."""
    name, places = site.node.operator, range(len(site.node.inputs))
    _check_plain(*map(site.tensor, places), site.output())
    inputs = [each for index in places for each in _with_grid(site, index)]
    ends = _grid(site, site.output())
    given = [*ends, *inputs] if name == "Concat" else [*inputs, *ends]
    stated = {"channels_last": 0} if name == "GlobalAveragePool" else site.attributes
    return site.emit(f"QLinear{name}", *given, domain=MICROSOFT, **stated)


@by_integers("AveragePool")
def average_pool(site: Site) -> ir.Value:
    _check_plain(site.tensor(0), site.output())
    attributes = without_ceil_mode(site)
    if set(attributes.pop("dilations")) != {1} or (any(attributes["pads"]) and attributes["count_include_pad"]):
        raise Lacks(NONE)
    inputs = [*_with_grid(site, 0), *_grid(site, site.output())]
    return site.emit("QLinearAveragePool", *inputs, domain=MICROSOFT, **attributes)


@by_integers("Relu", "Clip")
def clip(site: Site) -> ir.Value:
    """Clip of integers: bounds in integers of the output, as the reference rounds them."""
    y = site.output()
    _check_plain(site.tensor(0), y)
    if site.node.operator == "Relu":
        return site.emit("Clip", site.stored(0), qdq.zero_point(site.builder, y))
    known = bounds(site.node, site.builder.model.tensors)
    if known is None:
        raise Lacks(NONE)
    limits = enumerate(quantize(np.array(known, f32), site.grid, numpy_dtype(y.dtype), "reciprocal_offset"), 1)
    given = (site.constant(f"bound_{index}", limit) if site.has(index) else None for index, limit in limits)
    return site.emit("Clip", site.stored(0), *given)


@by_integers("Resize")
def nearest(site: Site) -> Sequence[ir.Value]:
    """Moves integers if the mode is nearest."""
    x, y = site.tensor(0), site.output()
    _check_plain(x, y)
    if site.attributes["mode"] != "nearest" or not qdq.grid_of(x).same_grid(y.quantization):
        raise Lacks(NONE)
    return resized(site, site.stored)


@by_integers("Softmax")
def softmax(site: Site) -> ir.Value:
    """QLinearSoftmax, if ONNX Runtime's is correct: on the grid of 1/256, for more than one number."""
    x, y, axis = site.tensor(0), site.output(), site.attributes["axis"]
    size = None if x.shape is None else x.shape[axis]
    _check_plain(x, y)
    if not isinstance(size, int) or size < 2 or site.grid.scale.numbers() != (1 / 256,):
        raise Lacks(NONE)
    inputs = [*_with_grid(site, 0), *_grid(site, y)]
    return site.emit("QLinearSoftmax", *inputs, domain=MICROSOFT, opset=13, axis=axis)
