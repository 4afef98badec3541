"""Exact sums of products of integers, by the fastest arithmetic that keeps them exact; then one requantization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..arithmetic import EXACT_IN_FLOAT32, dequantize, dequantize_sums, f32, requantize, whole_bias
from ..arrays import Array
from ..errors import QfmtError, RunError
from ..model import DTYPES, INT32, Node, Quantization, Shape, Tensor
from .registry import OPERATORS, SUM_RULES, Operand, Result, Sums

EXACT_IN_FLOAT64 = 1 << 53


def whole(operand: Operand) -> Array:
    """The integers minus their zero points, in an integer type that fits them: int32 for types of up to 16 bits."""
    return centred(operand, np.dtype(np.int32 if operand.array.dtype.itemsize < 4 else np.int64))


def centred(operand: Operand, dtype: np.dtype[Any]) -> Array:
    """The integers minus their zero points, in a type that represents them."""
    if operand.quantization is None:
        return operand.array.astype(dtype)
    if operand.quantization.has_float_zero_points:
        raise QfmtError("cannot sum integers whose zero points are floats")
    zero_points = operand.quantization.zero_points(operand.array.shape)
    return np.subtract(operand.array, zero_points.astype(dtype), dtype=dtype, casting="unsafe")


def real_scalar(value: Operand | None) -> Array:
    """The real number of an input that is one number: 0 for an absent one."""
    if value is None:
        return np.zeros((), np.float32)
    scalar = value.array.reshape(())
    return scalar.astype(np.float32) if value.quantization is None else dequantize(scalar, value.quantization)


def exact_dtype(x: Operand, weights: Array, axes: tuple[int, ...]) -> np.dtype[Any]:
    """The fastest type in which all sums of x · weights over `axes` of the weights are exact, in any order.

    If the type represents every integer up to the `reach` of the sums, floating point is exact, fused or not, and BLAS
    can be used. QfmtError if one could exceed int64.
    """
    farthest = reach(x, weights, axes)
    require_int64(farthest)
    if farthest <= EXACT_IN_FLOAT32:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if farthest < EXACT_IN_FLOAT64 // 2 else np.int64)


def exact_product(a: Array, b: Array) -> Array:
    """a · b of integers or real numbers: in int64 if both are integers; QfmtError if that could not hold it."""
    if a.dtype.kind == b.dtype.kind == "i":
        require_int64(largest(a) * largest(b))
    return np.asarray(a * b)


def require_int64(farthest: float) -> None:
    """QfmtError if exact sums or products of that magnitude could exceed int64."""
    if farthest >= 1 << 63:
        raise QfmtError(f"exact sums may reach {farthest:.4g}, which exceeds int64")


def largest(integers: Array) -> float:
    """The largest magnitude."""
    return float(np.abs(integers.astype(np.float64)).max(initial=0))


def reach(x: Operand, weights: Array, axes: tuple[int, ...]) -> float:
    """The largest magnitude of any partial sum of x · weights over `axes` of the weights, and of the factors.

    No partial sum exceeds the sum of all positive products, or that of all negative ones.
    """
    limits = DTYPES[x.array.dtype.name]
    points = (0,) if x.quantization is None else x.quantization.zero_point
    low, high = min(0, limits.minimum - max(points)), max(0, limits.maximum - min(points))
    magnitudes = np.abs(weights)
    sums, sizes = weights.sum(axes, dtype=np.float64), magnitudes.sum(axes, dtype=np.float64)
    positive, negative = (sizes + sums) / 2, (sizes - sums) / 2
    most, least = positive * high - negative * low, negative * high - positive * low
    return float(max(most.max(initial=0), least.max(initial=0), high, -low, int(magnitudes.max(initial=0))))


def requantize_sums(
    acc: Array, x: Operand, w: Operand, b: Operand | None, result: Result, attributes: Mapping[str, Any] = {}
) -> Array:
    """Sums of (x - zx) · (w - zw) → output integers by the stated requantize rule; the attributes of a convolution."""
    if x.quantization is None or w.quantization is None:
        raise QfmtError("needs a quantized input and a quantized weight for its quantized output")
    if x.quantization.is_per_channel:
        raise QfmtError("needs an input that is quantized per tensor")
    along = _along(acc, attributes)
    scales = _scales(w.quantization, along, attributes)
    bias = None
    if b is not None and in_units_of_sums(b.quantization, x.quantization, w.quantization, attributes):
        acc = acc + _spread(b.array.astype(np.float64), along)
    elif b is not None:
        bias = _spread(real(b), along)
    return requantize(acc, bias, x.quantization.scale[0], scales, result.quantization, result.dtype, result.rule)


def accumulating(
    sums: Callable[..., Array], integer: str, exact: str, rules: tuple[str, ...] = SUM_RULES
) -> dict[str, Any]:
    """`integer` and `sums` of a product, with these meanings, from its exact sums of centred integers: a function
    `sums(x, w, padding=0, **attributes)`, in which `padding` is the integer beside x."""

    def requantized(x: Operand, w: Operand, b: Operand | None = None, *, result: Result, **attributes: Any) -> Array:
        return requantize_sums(sums(x, w, **attributes), x, w, b, result, attributes)

    def stated(x: Operand, w: Operand, b: Operand | None = None, *, rule: str, **attributes: Any) -> Array:
        factors = (as_stored(x), as_stored(w), stored_zero(x)) if rule == "folded" else (x, w)
        return with_bias(sums(*factors, **attributes), b, attributes)

    requantized.__doc__, stated.__doc__ = integer, exact
    return {"integer": requantized, "sums": Sums(stated, rules)}


def real_sums(
    acc: Array, x: Operand, w: Operand, b: Operand | None, rule: str, attributes: Mapping[str, Any] = {}
) -> Array:
    """Sums of (x - zx) · (w - zw) → float32 by the stated dynamic rule.

    x may have a scale for each slice of an axis, which the sums have, too.
    """
    if x.quantization is None or w.quantization is None:
        raise QfmtError("needs a quantized weight")
    along = _along(acc, attributes)
    bias = None if b is None else real(b).reshape(along)
    scale = x.quantization.scales(acc.shape)
    return dequantize_sums(acc, bias, scale, _scales(w.quantization, along, attributes), rule)


def real(operand: Operand) -> Array:
    """The real values of an operand, quantized or not."""
    return operand.array if operand.quantization is None else dequantize(operand.array, operand.quantization)


def _spread(bias: Array, along: list[int]) -> Array:
    """A bias of each channel along that axis; that of Gemm may have two dimensions, and broadcasts unchanged."""
    return bias.reshape(along) if bias.ndim == 1 else bias


def _along(acc: Array, attributes: Mapping[str, Any]) -> list[int]:
    """The shape that numbers for each output channel have beside sums."""
    channels = 1 if "kernel_shape" in attributes else acc.ndim - 1
    return [-1 if axis == channels else 1 for axis in range(acc.ndim)]


def _scales(w: Quantization, along: list[int], attributes: Mapping[str, Any]) -> Array:
    return scales_of_channels(w, attributes).reshape(along if w.is_per_channel else ())


def scales_of_channels(w: Quantization, attributes: Mapping[str, Any]) -> Array:
    """The scales of a weight for all output channels, or the one; groups of a transposed convolution share them."""
    shared = attributes["group"] if w.is_per_channel and _is_transposed(attributes) else 1
    return np.tile(w.scale.real.astype(float).reshape(-1), shared)


def _is_transposed(attributes: Mapping[str, Any]) -> bool:
    """Whether they are those of a transposed convolution."""
    return "output_padding" in attributes


def as_stored(operand: Operand) -> Operand:
    """The stored integers, whatever they represent."""
    return Operand(operand.array, None)


def stored_zero(x: Operand | Tensor) -> int:
    """The integer that represents zero."""
    return 0 if x.quantization is None else int(x.quantization.zero_point[0])


def with_bias(acc: Array, b: Operand | None, attributes: Mapping[str, Any] = {}) -> Array:
    """Exact sums and a bias of plain integers, in int64."""
    total = acc.astype(np.int64)
    return total if b is None else total + _spread(b.array, _along(acc, attributes))


def int32_sums(exact: Array) -> Array:
    """Exact sums of any type as int32; RunError if they do not fit."""
    low, high = (int(exact.min()), int(exact.max())) if exact.size else (0, 0)
    if not DTYPES["int32"].holds(low, high):
        raise RunError(
            f"sums in [{low}, {high}] exceed int32", hint="with `exact` or `folded`, no sum may exceed int32"
        )
    return exact.astype(np.int32)


def in_units_of_sums(
    bias: Quantization | None, x: Quantization, w: Quantization, attributes: Mapping[str, Any]
) -> bool:
    """Whether a bias is integers of scale sx · sw (up to the rounding of float32): ONNX's int32 bias."""
    if bias is None or any(bias.zero_point):
        return False
    units = x.scale[0] * scales_of_channels(w, attributes)
    return np.allclose(bias.scale.real.reshape(-1), units, rtol=1e-6, atol=0)


def unit_of_sums(x: Quantization, w: Quantization, attributes: Mapping[str, Any]) -> Array:
    """f32(sx · sw): what one of an accumulator is worth; one number, or one per output channel."""
    return f32(x.scale[0]) * scales_of_channels(w, attributes).astype(f32)


QUANTIZED = "_quantized"
"""What ONNX Runtime's quantizer, and this project, append to the name of a real tensor to name its integers."""


def int32_bias(node: Node, x: Tensor, w: Tensor, b: Tensor) -> Tensor | None:
    """A constant real bias as the rule of its node rounds it, in units of sums: ONNX's. None where int32 holds none."""
    if b.quantization is not None or not b.is_constant or b.array.ndim != 1 or not (x.quantization and w.quantization):
        return None
    unit = unit_of_sums(x.quantization, w.quantization, node.attributes)
    with np.errstate(over="ignore"):  # what is infinite, int32 does not hold
        whole = whole_bias(b.array, unit, node.rule)
    if not np.abs(whole).max(initial=0) <= INT32:
        return None
    axis = 0 if unit.size > 1 else None
    grid = Quantization.of(unit, 0, -INT32 - 1, INT32, axis)
    return Tensor.constant(b.name, whole.astype(np.int32), grid, aliases=b.aliases)


def range_met(node: Node, low: int, high: int, zero: int) -> tuple[int, int]:
    """The least and the greatest of what weights meet beside inputs in [low, high]: padding is `zero`, and so is what a
    transposed convolution does not paint."""
    padded = any(node.ints("pads", ())) or _is_transposed(node.attributes)
    return (min(low, zero), max(high, zero)) if padded else (low, high)


def reach_of_sums(weights: Array, low: int, high: int) -> tuple[Array, Array]:
    """The least and the greatest sum of inputs in [low, high] times weights [outputs, terms], or [outputs, matrices,
    terms], for each output."""
    positive, negative = np.maximum(weights, 0).sum(-1, dtype=np.int64), np.minimum(weights, 0).sum(-1, dtype=np.int64)
    matrices = tuple(range(1, positive.ndim))
    return (positive * low + negative * high).min(matrices), (positive * high + negative * low).max(matrices)


ROWS_LAST = ("MatMul", "MatMulInteger", "Gemm")
"""Operators whose weights have the output channels last, Gemm unless `transB` is set."""


def _has_rows_last(node: Node) -> bool:
    return node.operator in ROWS_LAST and not node.attributes.get("transB")


def output_axis(node: Node, rank: int) -> int | None:
    """The axis of the weight of a product that its output channels run along; None for a vector, which has none.

    A rank of 0: axes from the end are negative."""
    stated = OPERATORS[node.operator].attributes
    if "kernel_shape" in stated:
        return 1 if _is_transposed(stated) else 0
    if _has_rows_last(node):
        return None if rank == 1 else rank - 1
    return 0


def input_size(node: Node, w: Sequence[int]) -> int:
    """How many channels, or features, a product with a weight of that shape takes."""
    stated = OPERATORS[node.operator].attributes
    if "kernel_shape" in stated:
        return w[0] if _is_transposed(stated) else w[1] * node.int("group", 1)
    return w[-2] if _has_rows_last(node) else w[-1]


def terms_of(node: Node, w: Array) -> Array:
    """The weights of a product as [output channels, channels of the group, taps], for any layout of the weight."""
    if "kernel_shape" not in node.attributes:
        w = w if w.ndim > 1 else w[:, None]
        rows = w.swapaxes(-1, -2) if _has_rows_last(node) else w
        return rows.reshape(prod(rows.shape[:-1]), rows.shape[-1], 1)
    if _is_transposed(node.attributes):
        group = node.int("group")
        channels, filters, *kernel = w.shape
        w = w.reshape(group, channels // group, filters, *kernel).swapaxes(1, 2)
        w = w.reshape(group * filters, channels // group, *kernel)
    return w.reshape(*w.shape[:2], prod(w.shape[2:]))


def columns(node: Node, w: Array) -> Array:
    """The same as [outputs, matrices, products of one sum]. Only a MatMul of more dimensions has multiple matrices."""
    terms = terms_of(node, w)
    matrices = 1 if w.ndim < 3 or "kernel_shape" in node.attributes else prod(w.shape[:-2])
    if not matrices:
        return np.zeros((w.shape[-1], 1, w.shape[-2]), w.dtype)
    return terms.reshape(matrices, len(terms) // matrices, prod(terms.shape[1:])).swapaxes(0, 1)


def inner_size(a: Shape, b: Shape) -> int | None:
    """How many products MatMul sums, if either shape is known; a matrix has rows, a vector one size."""
    sizes = (*(a or ())[-1:], *(b or ())[-2:][:1])
    return next((size for size in sizes if isinstance(size, int)), None)
