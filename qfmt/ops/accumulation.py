"""Exact sums of products of integers, by the fastest arithmetic that keeps them exact; then one requantization."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..arithmetic import EXACT_IN_FLOAT32, dequantize, dequantize_sums, requantize
from ..arrays import Array
from ..errors import QfmtError, RunError
from ..model import DTYPES, Node, Quantization, Shape
from .registry import Operand, Result

EXACT_IN_FLOAT64 = 1 << 53


def whole(operand: Operand) -> Array:
    """The integers minus their zero points, in an integer type that holds them: int32 for types of up to 16 bits."""
    return centred(operand, np.dtype(np.int32 if operand.array.dtype.itemsize < 4 else np.int64))


def centred(operand: Operand, dtype: np.dtype[Any]) -> Array:
    """The integers minus their zero points, in a type that holds them."""
    if operand.quantization is None:
        return operand.array.astype(dtype)
    if operand.quantization.has_float_zero_points:
        raise QfmtError("cannot sum integers whose zero points are floats")
    zero_points = operand.quantization.zero_points(operand.array.ndim)
    return np.subtract(operand.array, zero_points.astype(dtype), dtype=dtype, casting="unsafe")


def real_scalar(value: Operand | None) -> Array:
    """The real number of an input that is one number: 0 for an absent one."""
    if value is None:
        return np.zeros((), np.float32)
    scalar = value.array.reshape(())
    return scalar.astype(np.float32) if value.quantization is None else dequantize(scalar, value.quantization)


def exact_dtype(x: Operand, weights: Array, axes: tuple[int, ...]) -> np.dtype[Any]:
    """The fastest type in which all sums of x · weights over `axes` of the weights are exact, in whatever order.

    No partial sum exceeds the sum of all positive products, or that of all negative ones. Where the type holds
    every whole number up to there, floating point is exact, fused or not, and BLAS may do the work.
    """
    limits = DTYPES[x.array.dtype.name]
    points = (0,) if x.quantization is None else x.quantization.zero_point
    low, high = min(0, limits.minimum - max(points)), max(0, limits.maximum - min(points))
    magnitudes = np.abs(weights)
    sums, sizes = weights.sum(axes, dtype=np.float64), magnitudes.sum(axes, dtype=np.float64)
    positive, negative = (sizes + sums) / 2, (sizes - sums) / 2
    most, least = positive * high - negative * low, negative * high - positive * low
    reach = max(most.max(initial=0), least.max(initial=0), high, -low, int(magnitudes.max(initial=0)))
    if reach <= EXACT_IN_FLOAT32:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if reach < EXACT_IN_FLOAT64 // 2 else np.int64)


def requantize_sums(
    acc: Array, x: Operand, w: Operand, b: Operand | None, result: Result, *, channels: int, repeat: int = 1
) -> Array:
    """Sums of (x - zx) · (w - zw) → output integers by the stated requantize rule.

    `channels` is the axis of `acc` that the weight's scales and the bias run along; `repeat` says how often the
    scales repeat along it (the groups of a transposed convolution).
    """
    if x.quantization is None or w.quantization is None:
        raise QfmtError("needs a quantized input and a quantized weight for its quantized output")
    if x.quantization.is_per_channel:
        raise QfmtError("needs an input that is quantized per tensor")
    along = _along(acc, channels)
    scales = _scales(w.quantization, along, repeat)
    bias = None
    if b is not None and in_units_of_sums(b.quantization, x.quantization.scale[0], w.quantization.scale * repeat):
        acc = acc + _spread(b.array.astype(np.float64), along)
    elif b is not None:
        bias = _spread(real(b), along)
    return requantize(acc, bias, x.quantization.scale[0], scales, result.quantization, result.dtype, result.rule)


def real_sums(
    acc: Array, x: Operand, w: Operand, b: Operand | None, rule: str, *, channels: int, repeat: int = 1
) -> Array:
    """Sums of (x - zx) · (w - zw) → float32 by the stated dynamic rule; `channels` and `repeat` as above.

    x may have a scale for each slice of an axis, which the sums have, too.
    """
    if x.quantization is None or w.quantization is None:
        raise QfmtError("needs a quantized weight")
    along = _along(acc, channels)
    bias = None if b is None else real(b).reshape(along)
    scale = x.quantization.scales(acc.ndim)
    return dequantize_sums(acc, bias, scale, _scales(w.quantization, along, repeat), rule)


def real(operand: Operand) -> Array:
    """The real values of an operand, quantized or not."""
    return operand.array if operand.quantization is None else dequantize(operand.array, operand.quantization)


def _spread(bias: Array, along: list[int]) -> Array:
    """A bias of each channel along that axis; that of Gemm may be of two dimensions, and broadcasts as it is."""
    return bias.reshape(along) if bias.ndim == 1 else bias


def _along(acc: Array, channels: int) -> list[int]:
    return [-1 if axis == channels % acc.ndim else 1 for axis in range(acc.ndim)]


def _scales(quantization: Quantization, along: list[int], repeat: int) -> Array:
    scales = np.array(quantization.scale)
    return np.tile(scales, repeat).reshape(along) if quantization.is_per_channel else scales.reshape(())


def as_stored(operand: Operand) -> Operand:
    """The integers as they are, whatever they mean."""
    return Operand(operand.array, None)


def stored_zero(x: Operand) -> int:
    """The integer that represents zero."""
    return 0 if x.quantization is None else int(x.quantization.zero_point[0])


def with_bias(acc: Array, b: Operand | None, *, channels: int = 1) -> Array:
    """Exact sums and a bias of plain integers, in int64; `channels` is the axis that a vector of them runs along."""
    total = acc.astype(np.int64)
    return total if b is None else total + _spread(b.array, _along(acc, channels))


def int32_sums(exact: Array) -> Array:
    """Exact sums, whatever their type, as int32; RunError if that does not hold them."""
    low, high = (int(exact.min()), int(exact.max())) if exact.size else (0, 0)
    if not DTYPES["int32"].holds(low, high):
        raise RunError(
            f"sums in [{low}, {high}] exceed int32", hint="with `exact` or `folded`, no sum may exceed int32"
        )
    return exact.astype(np.int32)


def in_units_of_sums(bias: Quantization | None, input_scale: float, weight_scales: tuple[float, ...]) -> bool:
    """Whether a bias is integers of scale sx · sw (up to the rounding of float32): ONNX's int32 bias."""
    if bias is None or any(bias.zero_point):
        return False
    return np.allclose(np.array(bias.scale), input_scale * np.array(weight_scales), rtol=1e-6, atol=0)


ROWS_LAST = ("MatMul", "MatMulInteger", "Gemm")
"""Operators whose weights have the output channels last, Gemm unless `transB` turns them."""


def output_axis(node: Node, rank: int) -> int:
    """The axis of the weight of a product that its output channels run along."""
    if "kernel_shape" in node.attributes:
        return 1 if node.operator.endswith("Transpose") else 0
    return rank - 1 if node.operator in ROWS_LAST and not node.attributes.get("transB") else 0


def terms_of(node: Node, w: Array) -> Array:
    """The weights of a product as [output channels, channels of the group, taps], of whatever layout it has."""
    if "kernel_shape" not in node.attributes:
        w = w if w.ndim > 1 else w[:, None]
        rows = w.swapaxes(-1, -2) if node.operator in ROWS_LAST and not node.attributes.get("transB") else w
        return rows.reshape(prod(rows.shape[:-1]), rows.shape[-1], 1)
    if node.operator.endswith("Transpose"):
        group = node.int("group")
        channels, filters, *kernel = w.shape
        w = w.reshape(group, channels // group, filters, *kernel).swapaxes(1, 2)
        w = w.reshape(group * filters, channels // group, *kernel)
    return w.reshape(*w.shape[:2], prod(w.shape[2:]))


def columns(node: Node, w: Array) -> Array:
    """The same as [outputs, products of one sum]; of multiple matrices, their widest sums of either sign."""
    if w.ndim > 2 and "kernel_shape" not in node.attributes:
        lead = tuple(range(w.ndim - 2))
        return np.stack([np.maximum(w, 0).sum(-2).max(lead), np.minimum(w, 0).sum(-2).min(lead)], axis=1)
    terms = terms_of(node, w)
    return terms.reshape(len(terms), -1)


def inner_size(a: Shape, b: Shape) -> int | None:
    """How many products MatMul adds up, where either shape tells; a matrix has rows, a vector one size."""
    sizes = (*(a or ())[-1:], *(b or ())[-2:][:1])
    return next((size for size in sizes if isinstance(size, int)), None)
