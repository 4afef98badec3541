"""Normalizations, as computed at inference."""

from __future__ import annotations

from math import prod

import numpy as np

from ..arithmetic import clamp, f32, fma, quantize
from ..arrays import Array
from ..errors import QfmtError
from ..model import Quantization, Shape
from .accumulation import centred, largest, real, require_int64
from .pooling import real_mean, real_sum
from .registry import (
    QUANTIZE_RULES,
    Inference,
    Operand,
    Quantized,
    Result,
    Trait,
    by_engine,
    operator,
    optional,
    required,
)
from .shapes import along_axis, axes_of, check_broadcasts, per_channel

EPSILON = optional(1e-5, "added to the variance")


def _per_channel(values: Array, rank: int) -> Array:
    return values.reshape(1, -1, *(1,) * (rank - 2))


def _grid(x: Operand, result: Result) -> Quantization:
    """The quantization of an input that is normalized as integers."""
    if x.quantization is None or x.quantization.is_per_channel:
        raise QfmtError(f"the rule `{result.rule}` needs an input that is quantized per tensor")
    return x.quantization


def _batch_normalization_integer(
    x: Operand, scale: Operand, b: Operand, mean: Operand, var: Operand, *, result: Result, epsilon: float
) -> Array:
    """`fused`: rint(fma(q - z, α, β)) + z of Y, with i = f32(1 / f32(√f32(input_var + epsilon))),
    α = f32(f32(i · scale) · (sx / sy)) and β = f32(f32(B - f32(f32(input_mean · i) · scale)) / sy) in float64;
    all inputs but X are real
    """
    result.expect("fused")
    grid, q = _grid(x, result), result.quantization
    weight, bias, average, variance = (real(each).astype(f32) for each in (scale, b, mean, var))
    inverse = (1 / np.sqrt(variance + f32(epsilon)).astype(np.float64)).astype(f32)
    alpha = ((inverse * weight).astype(np.float64) * (grid.scale[0] / q.scale[0])).astype(f32)
    beta = ((bias - average * inverse * weight).astype(np.float64) / q.scale[0]).astype(f32)
    rank = x.array.ndim
    y = fma(centred(x, np.dtype(f32)), _per_channel(alpha, rank), _per_channel(beta, rank))
    return clamp(np.rint(y) + f32(q.zero_point[0]), q, result.dtype)


@operator(
    "BatchNormalization",
    15,
    "X scale B input_mean input_var -> Y",
    attributes={"epsilon": EPSILON},
    shape=per_channel,
    quantized=Quantized.OWN,
    integer=_batch_normalization_integer,
    rules=("fused", *QUANTIZE_RULES),
    engines=by_engine("fused"),
    traits=Trait.ELEMENTWISE,
)
def batch_normalization(x: Array, scale: Array, b: Array, mean: Array, var: Array, *, epsilon: float) -> Array:
    """Y = (X - input_mean) / √(input_var + epsilon) · scale + B, per channel (axis 1).

    Computed as X · α + β with α = scale / √(input_var + epsilon), β = B - input_mean · α.
    """
    var = var.astype(np.promote_types(np.float32 if var.dtype.kind in "iu" else var.dtype, x.dtype), copy=False)
    alpha = scale / np.sqrt(var + var.dtype.type(epsilon))
    beta = b - mean * alpha
    return (x * _per_channel(alpha, x.ndim) + _per_channel(beta, x.ndim)).astype(x.dtype, copy=False)


def _normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    shifted = x - real_mean(x, axes)
    variance = real_mean(shifted * shifted, axes)
    return shifted / np.sqrt(variance + x.dtype.type(epsilon))


def _moments(q: Array, grid: Quantization, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array]:
    """For stored integers, over the axes: the mean minus the zero point, and scale / standard deviation; float32.

    μ = f32(f32(Σq) / n), v = max(fma(-μ, μ, f32(f32(Σq²) / n)), 0), and s / √(v · s · s + epsilon) in float64.
    """
    count, scale = f32(prod(q.shape[axis] for axis in axes)), f32(grid.scale[0])
    whole = q.astype(np.int64)
    require_int64(float(count) * largest(whole) ** 2)
    mean = whole.sum(axes, keepdims=True).astype(f32) / count
    squares = (whole * whole).sum(axes, keepdims=True).astype(f32) / count
    variance = np.maximum(fma(-mean, mean, squares), f32(0))
    deviation = np.sqrt((variance * scale * scale).astype(np.float64) + epsilon)
    return mean - f32(grid.zero_point[0]), (float(scale) / deviation).astype(f32)


def _scaled_shape(given: Inference) -> list[Shape]:
    (shape,) = along_axis(given)
    for other in given.shapes[1:]:
        if shape is not None and other is not None:
            check_broadcasts(other, shape, "a parameter")
    return [shape]


def _layer_normalization_integer(
    x: Operand, scale: Operand, b: Operand | None, *, result: Result, axis: int, epsilon: float
) -> Array:
    """`moments`: Q(fma(f32(f32((q - z) - m) · d), Scale, B)), Q the quantize rule `reciprocal`,
    with μ = f32(f32(Σq) / n), m = μ - z, v = max(fma(-μ, μ, f32(f32(Σq²) / n)), 0), d = f32(s / √(v·s·s + epsilon)),
    products in float32, root and quotient in float64. The sums are exact; Scale and B are real.
    """
    result.expect("moments")
    grid = _grid(x, result)
    mean, factor = _moments(x.array, grid, tuple(range(axis % x.array.ndim, x.array.ndim)), epsilon)
    y = (centred(x, np.dtype(f32)) - mean) * factor
    shift = np.zeros((), f32) if b is None else real(b).astype(f32)
    return quantize(fma(y, real(scale).astype(f32), shift), result.quantization, result.dtype, "reciprocal")


@operator(
    "LayerNormalization",
    17,
    "X Scale B? -> Y",
    attributes={"axis": optional(-1, "the first of the normalized axes"), "epsilon": EPSILON},
    shape=_scaled_shape,
    quantized=Quantized.OWN,
    integer=_layer_normalization_integer,
    rules=("moments", *QUANTIZE_RULES),
    engines=by_engine("moments"),
)
def layer_normalization(x: Array, scale: Array, b: Array | None, *, axis: int, epsilon: float) -> Array:
    """Y = (X - mean) / √(variance + epsilon) · Scale + B, statistics over the axes from `axis` on."""
    y = _normalized(x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return y if b is None else y + b


def _channel_groups_integer(
    x: Operand, scale: Operand, b: Operand, groups: int, epsilon: float, result: Result
) -> Array:
    result.expect("moments")
    grid = _grid(x, result)
    shape = (x.array.shape[0], groups, x.array.shape[1] // groups, -1)
    mean, factor = _moments(x.array.reshape(shape), grid, (2, 3), epsilon)
    slope = factor * real(scale).astype(f32).reshape(1, groups, -1, 1)
    shift = real(b).astype(f32).reshape(1, groups, -1, 1)
    y = fma(centred(x, np.dtype(f32)).reshape(shape) - mean, slope, shift)
    return quantize(y.reshape(x.array.shape), result.quantization, result.dtype, "reciprocal")


def _group_shape(given: Inference) -> list[Shape]:
    (shape,), groups = per_channel(given), given.attributes["num_groups"]
    if shape is not None and len(shape) > 1 and isinstance(shape[1], int) and shape[1] % groups:
        raise QfmtError(f"{shape[1]} channels cannot be split into {groups} groups")
    return [shape]


def _group_normalization_integer(
    x: Operand, scale: Operand, bias: Operand, *, result: Result, epsilon: float, num_groups: int
) -> Array:
    """`moments`: Q(fma(f32((q - z) - m), f32(d · scale), bias)), m, d and Q as in LayerNormalization"""
    return _channel_groups_integer(x, scale, bias, num_groups, epsilon, result)


@operator(
    "GroupNormalization",
    21,
    "X scale bias -> Y",
    attributes={"epsilon": EPSILON, "num_groups": required("i", "number of groups that channels are split into")},
    shape=_group_shape,
    quantized=Quantized.OWN,
    integer=_group_normalization_integer,
    rules=("moments", *QUANTIZE_RULES),
    engines=by_engine("moments"),
)
def group_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int) -> Array:
    """Y = (X - mean) / √(variance + epsilon) · scale + bias, statistics per sample and group of channels (axis 1)."""
    grouped = x.reshape(x.shape[0], num_groups, prod(x.shape[1:]) // num_groups)
    y = _normalized(grouped, (2,), epsilon).reshape(x.shape)
    return y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


def _instance_normalization_integer(x: Operand, scale: Operand, b: Operand, *, result: Result, epsilon: float) -> Array:
    """`moments`: as GroupNormalization with one group per channel"""
    return _channel_groups_integer(x, scale, b, x.array.shape[1], epsilon, result)


@operator(
    "InstanceNormalization",
    22,
    "input scale B -> output",
    attributes={"epsilon": EPSILON},
    shape=per_channel,
    quantized=Quantized.OWN,
    integer=_instance_normalization_integer,
    rules=("moments", *QUANTIZE_RULES),
    engines=by_engine("moments"),
)
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float) -> Array:
    """output = (input - mean) / √(variance + epsilon) · scale + B, statistics per sample and channel (axis 1)."""
    y = _normalized(x, tuple(range(2, x.ndim)), epsilon)
    return y * _per_channel(scale, x.ndim) + _per_channel(b, x.ndim)


@operator(
    "RMSNormalization",
    23,
    "X scale -> Y",
    attributes={"axis": optional(-1, "the first of the normalized axes"), "epsilon": EPSILON},
    shape=_scaled_shape,
    quantized=Quantized.COMPUTES,
    dtype="input:1",
)
def rms_normalization(x: Array, scale: Array, *, axis: int, epsilon: float) -> Array:
    """Y = X / √(mean of X² + epsilon) · scale, over the axes from `axis` on."""
    squares = real_mean(x * x, tuple(range(axis % x.ndim, x.ndim)))
    return x / np.sqrt(squares + x.dtype.type(epsilon)) * scale


def _axes_shape(given: Inference) -> list[Shape]:
    shape = given.shapes[0]
    if shape is not None:
        axes_of(given.attributes["axes"], len(shape))
    return [shape]


@operator(
    "MeanVarianceNormalization",
    13,
    "X -> Y",
    attributes={"axes": optional((0, 2, 3), "the axes of the statistics")},
    shape=_axes_shape,
    quantized=Quantized.COMPUTES,
)
def mean_variance_normalization(x: Array, *, axes: tuple[int, ...]) -> Array:
    """Y = (X - mean) / (standard deviation + 1e-9)."""
    shifted = x - real_mean(x, axes)
    return shifted / (np.sqrt(real_mean(shifted * shifted, axes)) + x.dtype.type(1e-9))


@operator(
    "LpNormalization",
    22,
    "input -> output",
    attributes={"axis": optional(-1, "the axis of the norm"), "p": optional(2, "1 or 2", (1, 2))},
    shape=along_axis,
    quantized=Quantized.COMPUTES,
)
def lp_normalization(x: Array, *, axis: int, p: int) -> Array:
    """output = input / (Σ |input|^p)^(1/p) along the axis, 0 where that sum is 0."""
    norm = real_sum(np.abs(x), axis) if p == 1 else np.sqrt(real_sum(x * x, axis))
    return np.where(norm == 0, x.dtype.type(0), x / np.where(norm == 0, x.dtype.type(1), norm))


def _channels_shape(given: Inference) -> list[Shape]:
    shape = given.shapes[0]
    if shape is not None and len(shape) < 2:
        raise QfmtError(f"needs an input with channels, not one of {len(shape)} dimensions")
    return [shape]


@operator(
    "LRN",
    13,
    "X -> Y",
    attributes={
        "alpha": optional(1e-4, "factor of the squares"),
        "beta": optional(0.75, "exponent"),
        "bias": optional(1.0, "added to the squares"),
        "size": required("i", "how many channels are summed"),
    },
    shape=_channels_shape,
    quantized=Quantized.COMPUTES,
)
def local_response_normalization(x: Array, *, alpha: float, beta: float, bias: float, size: int) -> Array:
    """Y[:, c] = X[:, c] / (bias + alpha / size · Σ X[:, k]²)^beta over channels k.

    k goes from c - ⌊(size - 1) / 2⌋ to c + ⌈(size - 1) / 2⌉.
    """
    kind, channels = x.dtype.type, x.shape[1]
    before, after = (min(each, channels) for each in ((size - 1) // 2, size // 2))  # beyond them are no channels
    squares = np.pad(x * x, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    total = sum((squares[:, i : i + channels] for i in range(before + 1 + after)), np.zeros_like(x))
    return x / (kind(bias) + kind(alpha / size) * total) ** kind(beta)
