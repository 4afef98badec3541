"""Into and out of integers."""

from __future__ import annotations

from math import prod
from typing import Any, TypeGuard

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..model import DTYPES, Shape, numpy_dtype
from .elementwise import cast
from .registry import (
    ELEMENT_TYPES,
    QUANTIZE_RULES,
    Inference,
    Quantized,
    Trait,
    by_engine,
    operator,
    optional,
    required,
    truth,
)
from .shapes import axis_of, same


@operator(
    "QuantizeLinear",
    23,
    "X -> Y",
    shape=same,
    quantized=Quantized.COMPUTES,
    rules=QUANTIZE_RULES,
    engines=by_engine("reciprocal_fma"),
)
def quantize_linear(x: Array) -> Array:
    """Y is X with Y's scales and zero points, by the stated quantize rule.

    Scale and zero point are the quantization of Y, not inputs. If X is quantized itself, this is a requantization.
    """
    return x


@operator(
    "DequantizeLinear", 23, "X -> Y", shape=same, quantized=Quantized.COMPUTES, rules=(), engines={}, dtype="float32"
)
def dequantize_linear(x: Array) -> Array:
    """Y = f32(X - zero_point) · f32(scale), by X's quantization."""
    return x


def _with_scale(given: Inference) -> list[Shape]:
    """The shape of X; QfmtError for scales or zero points that do not fit it.

    The scale is a scalar, a vector along the axis, or has the rank of X, with one element for each block.
    """
    x, scale, points = given.shapes[:3]
    if is_static(scale) and is_static(points) and prod(scale) != prod(points):
        raise QfmtError(f"the zero points are {list(points)}, the scales {list(scale)}")
    if x is None or scale is None or not is_static(scale):
        return [x]
    block_size = given.attributes["block_size"]
    if block_size < 0:
        raise QfmtError(f"blocks of {block_size} elements")
    if prod(scale) == 1 and not block_size:
        return [x]
    axis = axis_of(given.attributes["axis"], len(x))
    wanted = list(x) if block_size else [x[axis]]
    if block_size and isinstance(size := x[axis], int):
        wanted[axis] = -(-size // block_size)
    if len(scale) != len(wanted) or any(
        isinstance(size, int) and size != count for size, count in zip(wanted, scale, strict=True)
    ):
        raise QfmtError(f"scales of shape {list(scale)} do not fit an input of shape {list(x)} along axis {axis}")
    return [x]


def is_static(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    """Whether all sizes are known."""
    return shape is not None and all(isinstance(size, int) for size in shape)


def spread(values: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """A scale or zero point of ONNX so that it broadcasts against a tensor of `shape`.

    A scalar (or one element) unchanged; a vector along `axis`; with a block size, each element is repeated along it.
    """
    if values.size == 1 and not block_size:
        return values.reshape(())
    along = axis_of(axis, len(shape))
    if block_size:
        inside = min(block_size, shape[along])  # a block may be much larger than the tensor
        return np.repeat(values, inside, along)[tuple(slice(size) for size in shape)]
    return values.reshape([-1 if position == along else 1 for position in range(len(shape))])


BLOCKS = {
    "axis": optional(1, "the dimension that scales run along, if there is more than one"),
    "block_size": optional(0, "how many elements along the axis share a scale; 0: all of a slice"),
}


@operator(
    "ai.onnx.QuantizeLinear",
    23,
    "x y_scale y_zero_point? -> y",
    attributes={
        **BLOCKS,
        "output_dtype": required("s", "the element type of y", ELEMENT_TYPES),
        "saturate": truth(1, "0: values beyond a float8 type become infinite or NaN"),
    },
    shape=_with_scale,
    quantized=Quantized.FLOAT_ONLY,
    dtype="attribute:output_dtype",
)
def quantize_with(
    x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int, output_dtype: str, saturate: int
) -> Array:
    """y = saturate(rint(x / y_scale) + y_zero_point), if scale or zero point are computed, or y is read as integers.

    The division is in float32; a float8 or float4 y is x / y_scale rounded to it. NaN becomes the smallest integer.
    Otherwise QuantizeLinear is used.
    """
    points = _points(zero_point, x, axis, block_size)
    scaled = x.astype(np.float32) / spread(scale, x.shape, axis, block_size).astype(np.float32)
    limits = DTYPES[output_dtype]
    if limits.is_integer:
        rounded = np.rint(scaled).astype(np.float64) + (0 if points is None else points)
        return np.fmin(np.fmax(rounded, limits.minimum), limits.maximum).astype(_held(output_dtype))
    return cast(scaled, saturate=saturate, to=output_dtype)


@operator(
    "ai.onnx.DequantizeLinear",
    23,
    "x x_scale x_zero_point? -> y",
    attributes={**BLOCKS, "output_dtype": required("s", "the element type of y", ELEMENT_TYPES)},
    shape=_with_scale,
    quantized=Quantized.FLOAT_ONLY,
    dtype="attribute:output_dtype",
    traits=Trait.PLAIN,
)
def dequantize_with(
    x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int, output_dtype: str
) -> Array:
    """y = (x - x_zero_point) · x_scale, if scale or zero point are computed, or x is also used as integers.

    The product is in float32, or in float64 for that output type. Otherwise DequantizeLinear is used.
    """
    kind = np.dtype(np.float64 if output_dtype == "float64" else np.float32)
    points = _points(zero_point, x, axis, block_size)
    centred = x.astype(kind) if points is None else _difference(x, points).astype(kind)
    return (centred * spread(scale, x.shape, axis, block_size).astype(kind)).astype(numpy_dtype(output_dtype))


def _held(dtype: str) -> np.dtype[Any]:
    """The type of arrays that hold integers of `dtype`: those of less than 8 bits have one byte each."""
    limits = DTYPES[dtype]
    return numpy_dtype(dtype) if limits.bits >= 8 else np.dtype(np.int8 if limits.kind == "i" else np.uint8)


def _points(zero_point: Array | None, x: Array, axis: int, block_size: int) -> Array | None:
    return None if zero_point is None else spread(zero_point, x.shape, axis, block_size)


def _difference(x: Array, points: Array) -> Array:
    if x.dtype.kind not in "iu" or points.dtype.kind not in "iu":  # 4-bit weights have zero points of floats, too
        return x.astype(np.float32) - points.astype(np.float32)
    return x.astype(np.int64) - points.astype(np.int64)
