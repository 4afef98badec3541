"""Activations: functions of one element."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any

import numpy as np

from ..arithmetic import clamp, f32, quantize, rescale
from ..arrays import Array
from ..errors import QfmtError
from ..model import Node, Quantization, Shape, Tensor
from .accumulation import centred, exact_product, real_scalar
from .functions import elementwise, erf
from .registry import QUANTIZE_RULES, Inference, Operand, Quantized, Result, Trait, by_engine, operator, optional
from .shapes import bounded, check_broadcasts, same


def _relu_integer(x: Operand, *, result: Result) -> Array:
    """y = max(q, z), within [quant_min, quant_max]"""
    zero_points = result.quantization.zero_points(x.array.shape).astype(x.array.dtype)
    return clamp(np.maximum(x.array, zero_points), result.quantization, result.dtype)


@operator(
    "Relu",
    14,
    "X -> Y",
    shape=same,
    quantized=Quantized.MOVES,
    integer=_relu_integer,
    torch=("aten::relu(self:X)",),
    traits=Trait.CLAMP,
)
def relu(x: Array) -> Array:
    """Y = max(X, 0)."""
    return np.maximum(x, x.dtype.type(0))


def _clip_integer(x: Operand, low: Operand | None, high: Operand | None, *, result: Result) -> Array:
    """y = clamp(min(max(q, Q(min)), Q(max))): Q is the quantize rule `reciprocal_offset` with y's scale, as in
    PyTorch. A bound that is quantized itself is dequantized first.
    """
    y = x.array
    for bound, limit in ((low, np.maximum), (high, np.minimum)):
        if bound is not None:
            y = limit(y, quantize(real_scalar(bound), result.quantization, result.dtype, "reciprocal_offset"))
    return clamp(y, result.quantization, result.dtype)


@operator(
    "Clip",
    13,
    "input min? max? -> output",
    shape=bounded,
    quantized=Quantized.MOVES,
    integer=_clip_integer,
    traits=Trait.CLAMP | Trait.ELEMENTWISE,
)
def clip(x: Array, low: Array | None, high: Array | None) -> Array:
    """output = min(max(input, min), max); an absent bound has no effect."""
    y = x if low is None else np.maximum(x, low.reshape(()))
    return y if high is None else np.minimum(y, high.reshape(()))


def bounds(node: Node, tensors: Mapping[str, Tensor]) -> tuple[float, float] | None:
    """What Relu or Clip clamps to, ±inf where it has no bound; None if a bound is not known."""
    if node.operator == "Relu":
        return 0.0, inf
    found = [-inf, inf]
    for place, name in enumerate(node.inputs[1:]):
        if name:
            bound = tensors[name]
            if not bound.is_constant or bound.quantization is not None or bound.array.size != 1:
                return None
            found[place] = float(bound.array.reshape(()))
    return found[0], found[1]


@elementwise(
    "LeakyRelu",
    16,
    alpha=optional(0.01, "slope below zero"),
    torch=(
        "aten::leaky_relu(self:X, negative_slope:alpha=0.01)",
        "quantized::leaky_relu(qx:X, negative_slope:alpha, inplace:_, "
        "output_scale:$scale, output_zero_point:$zero_point)",
    ),
)
def leaky_relu(x: Array, *, alpha: float) -> Array:
    """Y = X where X > 0, alpha · X elsewhere."""
    return np.where(x > 0, x, x * x.dtype.type(alpha))


@elementwise(
    "Elu",
    22,
    alpha=optional(1.0, "limit for large negative X is -alpha"),
    torch=(
        "aten::elu(self:X, alpha=1.0, scale==1, input_scale==1)",
        "quantized::elu(self:X, output_scale:$scale, output_zero_point:$zero_point, "
        "alpha=1.0, scale==1, input_scale==1)",
    ),
)
def elu(x: Array, *, alpha: float) -> Array:
    """Y = X where X > 0, alpha · (exp(X) - 1) elsewhere."""
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(x))


@elementwise(
    "Celu",
    12,
    alpha=optional(1.0, "limit for large negative X is -alpha"),
    torch=(
        "aten::celu(self:X, alpha=1.0)",
        "quantized::celu(self:X, output_scale:$scale, output_zero_point:$zero_point, alpha=1.0)",
    ),
)
def celu(x: Array, *, alpha: float) -> Array:
    """Y = X where X > 0, alpha · (exp(X / alpha) - 1) elsewhere."""
    a = x.dtype.type(alpha)
    return np.where(x > 0, x, a * np.expm1(x / a))


@elementwise(
    "Selu",
    22,
    alpha=optional(1.6732632423543772, "limit for large negative X is -gamma · alpha"),
    gamma=optional(1.0507009873554805, "slope above zero"),
    torch=("aten::selu(self:X)",),
)
def selu(x: Array, *, alpha: float, gamma: float) -> Array:
    """Y = gamma · X where X > 0, gamma · alpha · (exp(X) - 1) elsewhere."""
    kind = x.dtype.type
    return kind(gamma) * np.where(x > 0, x, kind(alpha) * np.expm1(x))


def _prelu_shape(given: Inference) -> list[Shape]:
    x, slope = given.shapes
    if x is not None and slope is not None:
        check_broadcasts(slope, x, "a slope")
    return [x]


def one_of(slope: Quantization, dtype: np.dtype[Any]) -> int:
    """The integer for 1 where slopes are quantized, minus their zero point. It represents less than 1 if that is beyond
    their range."""
    return int(quantize(np.ones((), f32), slope, dtype, "reciprocal_offset")) - int(slope.zero_point[0])


def _prelu_integer(x: Operand, slope: Operand, *, result: Result) -> Array:
    """`product`: rint(f32(max(x, 0) · one + min(x, 0) · w) · f32(f32(sx · sw) · f32(1 / s))) + z, with
    x = q - z of X, w = q - z of slope, one = 1 quantized as slope (its greatest value, if that is less).
    """
    result.expect("product")
    if x.quantization is None or slope.quantization is None:
        raise QfmtError("the rule `product` needs two quantized inputs")
    grid = slope.quantization
    one = one_of(grid, slope.array.dtype)
    xs, ws = (centred(each, np.dtype(np.int64)) for each in (x, slope))
    total = exact_product(xs, np.where(xs > 0, one, ws))
    multiplier = f32(x.quantization.scale[0]) * f32(grid.scale[0]) * (f32(1) / f32(result.quantization.scale[0]))
    return rescale(total, multiplier, result.quantization, result.dtype)


@operator(
    "PRelu",
    16,
    "X slope -> Y",
    shape=_prelu_shape,
    quantized=Quantized.OWN,
    integer=_prelu_integer,
    rules=("product", *QUANTIZE_RULES),
    engines=by_engine("product"),
    traits=Trait.ELEMENTWISE,
)
def prelu(x: Array, slope: Array) -> Array:
    """Y = X where X > 0, slope · X elsewhere; slope broadcasts to X (one per channel: [C, 1, 1])."""
    return np.where(x > 0, x, x * slope)


@elementwise("HardSigmoid", 22, alpha=optional(0.2, "slope"), beta=optional(0.5, "value at zero"))
def hard_sigmoid(x: Array, *, alpha: float, beta: float) -> Array:
    """Y = max(0, min(1, alpha · X + beta))."""
    kind = x.dtype.type
    return np.clip(x * kind(alpha) + kind(beta), kind(0), kind(1))


@elementwise(
    "HardSwish",
    22,
    engines=by_engine("premultiplied", qnnpack="reciprocal_offset"),
    torch=(
        "aten::hardswish(self:X)",
        "quantized::hardswish(input:X, output_scale:$scale, output_zero_point:$zero_point)",
    ),
)
def hard_swish(x: Array) -> Array:
    """Y = X · max(0, min(6, X + 3)) / 6."""
    kind = x.dtype.type
    return x * np.clip(x + kind(3), kind(0), kind(6)) / kind(6)


@elementwise("Sigmoid", 13, torch=("quantized::sigmoid(qx:X, output_scale:$scale, output_zero_point:$zero_point)",))
def sigmoid(x: Array) -> Array:
    """Y = 1 / (1 + exp(-X))."""
    return x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x))


@elementwise("Tanh", 13, "input -> output")
def tanh(x: Array) -> Array:
    """output = tanh(input)."""
    return np.tanh(x)


@elementwise("Softplus", 22, torch=("aten::softplus(self:X, beta==1, threshold==20)",))
def softplus(x: Array) -> Array:
    """Y = ln(exp(X) + 1)."""
    return np.logaddexp(x, x.dtype.type(0))


@elementwise("Mish", 22, torch=("aten::mish(self:X)",))
def mish(x: Array) -> Array:
    """Y = X · tanh(ln(exp(X) + 1))."""
    return x * np.tanh(softplus(x))


@elementwise(
    "ThresholdedRelu",
    22,
    alpha=optional(1.0, "threshold"),
    torch=("quantized::threshold(qx:X, threshold:alpha, value==0)",),
)
def thresholded_relu(x: Array, *, alpha: float) -> Array:
    """Y = X where X > alpha, 0 elsewhere."""
    return np.where(x > x.dtype.type(alpha), x, x.dtype.type(0))


@elementwise(
    "Gelu",
    20,
    approximate=optional("none", "`none`, or `tanh`: by the hyperbolic tangent", ("none", "tanh")),
    torch=("aten::gelu(self:X, approximate='none')",),
)
def gelu(x: Array, *, approximate: str) -> Array:
    """Y = X · (1 + erf(X / √2)) / 2; with `tanh` Y = X · (1 + tanh(√(2/π) · (X + 0.044715 · X³))) / 2.

    erf is computed in float64.
    """
    kind = x.dtype.type
    if approximate == "tanh":
        inner = kind(sqrt(2 / np.pi)) * (x + kind(0.044715) * x * x * x)
        return kind(0.5) * x * (kind(1) + np.tanh(inner))
    exact = x.astype(np.float64)
    return (exact * 0.5 * (1 + erf(exact / sqrt(2)))).astype(x.dtype)


def torch_output(operator: str, dtype: str) -> tuple[float, int]:
    """Scale and zero point that torch gives to outputs of Sigmoid, Tanh and HardSigmoid, whatever the input's are."""
    is_unsigned = dtype == "uint8"
    return (2 / 256, 128 if is_unsigned else 0) if operator == "Tanh" else (1 / 256, 0 if is_unsigned else -128)
