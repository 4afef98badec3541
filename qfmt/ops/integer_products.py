"""Products of integers as in ONNX: zero points are inputs, sums are int32."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import quantize_dynamically
from ..arrays import Array
from .convolution import ATTRIBUTES, conv, conv_shape, of_convolution
from .linear import matmul_shape
from .overflow import as_computed, of_product
from .registry import Quantized, Trait, operator
from .shapes import check_broadcasts


def _less(x: Array, zero_point: Array | None, axis: int) -> Array:
    """x - zero_point in float64, in which sums of products are exact; a vector of zero points runs along the axis."""
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    points = zero_point.astype(np.float64)
    if points.size == 1:
        return wide - points.reshape(())
    if points.ndim == 1:
        points = points.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    check_broadcasts(points.shape, x.shape, "a zero point")
    return wide - points


def _sums(exact: Array) -> Array:
    """As int32, which wraps around."""
    return exact.astype(np.int64).astype(np.int32)


@operator(
    "MatMulInteger",
    10,
    "A B a_zero_point? b_zero_point? -> Y",
    shape=matmul_shape,
    quantized=Quantized.FLOAT_ONLY,
    weights=(1,),
    dtype="int32",
    traits=Trait.PLAIN,
)
def matmul_integer(a: Array, b: Array, a_zero_point: Array | None, b_zero_point: Array | None) -> Array:
    """Y = (A - a_zero_point) · (B - b_zero_point), exact sums as int32. A and B are int8 or uint8.

    A zero point is a scalar or a vector: one per row of A, one per column of B.
    """
    exact = np.matmul(_less(a, a_zero_point, -2), _less(b, b_zero_point, -1))
    return _sums(as_computed(exact, lambda kernel: of_product(kernel, a, b)))


@operator(
    "ConvInteger",
    10,
    "x w x_zero_point? w_zero_point? -> y",
    attributes=ATTRIBUTES,
    shape=lambda given: conv_shape(given._replace(shapes=given.shapes[:2])),  # the other inputs are not a bias
    quantized=Quantized.FLOAT_ONLY,
    weights=(1,),
    dtype="int32",
    traits=Trait.PLAIN,
)
def conv_integer(
    x: Array, w: Array, x_zero_point: Array | None, w_zero_point: Array | None, **attributes: Any
) -> Array:
    """y = Conv of (x - x_zero_point) and (w - w_zero_point), exact sums as int32; padding is x_zero_point.

    x and w are int8 or uint8; w_zero_point is a scalar, or a vector along the output channels.
    """
    exact = conv(_less(x, x_zero_point, 1), _less(w, w_zero_point, 0), None, **attributes)
    padding = 0 if x_zero_point is None else int(x_zero_point.reshape(-1)[0])
    return _sums(as_computed(exact, lambda kernel: of_convolution(kernel, x, w, padding, **attributes)))


@operator(
    "DynamicQuantizeLinear",
    11,
    "x -> y y_scale y_zero_point",
    shape=lambda given: [given.shapes[0], (), ()],
    quantized=Quantized.FLOAT_ONLY,
    dtype="uint8 float32 uint8",
)
def dynamic_quantize_linear(x: Array) -> list[Array]:
    """y = x as uint8, quantized by its range with the rule `dynamic_divide`; the others are scale and zero point."""
    y, grid = quantize_dynamically(x, "dynamic_divide", 255)
    return [y, np.array(grid.scale[0], np.float32), np.array(grid.zero_point[0], np.uint8)]
