"""Arithmetic on elements of broadcast tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import clamp, f32
from ..errors import QfmtError
from ..model import Shape, numpy_dtype
from .registry import (
    FBGEMM_QUANTIZE,
    QUANTIZE_RULES,
    Inference,
    Operand,
    Quantized,
    Result,
    operator,
    required,
)
from .shapes import broadcast, same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@operator(
    "Add",
    14,
    "A B -> C",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    torch=(
        "aten::add(self:A, other:B, alpha==1=1)",
        "quantized::add(qa:A, qb:B, scale:$scale, zero_point:$zero_point)",
    ),
)
def add(a: Array, b: Array) -> Array:
    """C = A + B."""
    return np.add(a, b)


@operator(
    "Sub",
    14,
    "A B -> C",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    torch=("aten::sub(self:A, other:B, alpha==1=1)",),
)
def sub(a: Array, b: Array) -> Array:
    """C = A - B."""
    return np.subtract(a, b)


def _mul_integer(a: Operand, b: Operand, *, result: Result) -> Array:
    """`product`: rint(f32((qa - za) · (qb - zb)) · f32(f32(sa · sb) · f32(1 / s))) + z"""
    if a.quantization is None or b.quantization is None:
        raise QfmtError("the rule `product` needs two quantized inputs")
    left = a.array.astype(np.int32) - a.quantization.zero_points(a.array.ndim)
    right = b.array.astype(np.int32) - b.quantization.zero_points(b.array.ndim)
    q = result.quantization
    multiplier = f32(a.quantization.scale[0]) * f32(b.quantization.scale[0]) * (f32(1) / f32(q.scale[0]))
    return clamp(np.rint((left * right).astype(f32) * multiplier) + f32(q.zero_point[0]), q, result.dtype)


@operator(
    "Mul",
    14,
    "A B -> C",
    shape=broadcast,
    quantized=Quantized.OWN,
    integer=_mul_integer,
    rules=("product", *QUANTIZE_RULES),
    engines=dict.fromkeys(FBGEMM_QUANTIZE, "product") | {"onnx": "divide"},
    torch=(
        "aten::mul(self:A, other:B)",
        "quantized::mul(qa:A, qb:B, scale:$scale, zero_point:$zero_point)",
    ),
)
def mul(a: Array, b: Array) -> Array:
    """C = A · B."""
    return np.multiply(a, b)


@operator("Div", 14, "A B -> C", shape=broadcast, quantized=Quantized.COMPUTES, torch=("aten::div(self:A, other:B)",))
def div(a: Array, b: Array) -> Array:
    """C = A / B; integers round towards zero."""
    if np.issubdtype(np.result_type(a, b), np.integer):
        return np.trunc(np.divide(a, b)).astype(np.result_type(a, b))
    return np.divide(a, b)


@operator("Pow", 15, "X Y -> Z", shape=broadcast, quantized=Quantized.COMPUTES)
def power(x: Array, y: Array) -> Array:
    """Z = X to the power of Y, of the dtype of X."""
    return np.power(x, y).astype(x.dtype, copy=False)


@operator("Sqrt", 13, "X -> Y", shape=same, quantized=Quantized.COMPUTES, torch=("aten::sqrt(self:X)",))
def square_root(x: Array) -> Array:
    """Y = √X."""
    return np.sqrt(x)


@operator("Exp", 13, "input -> output", shape=same, quantized=Quantized.COMPUTES, torch=("aten::exp(self:input)",))
def exponential(x: Array) -> Array:
    """output = e to the power of input."""
    return np.exp(x)


@operator("Log", 13, "input -> output", shape=same, quantized=Quantized.COMPUTES, torch=("aten::log(self:input)",))
def logarithm(x: Array) -> Array:
    """output = the natural logarithm of input."""
    return np.log(x)


@operator("Neg", 13, "X -> Y", shape=same, quantized=Quantized.COMPUTES, torch=("aten::neg(self:X)",))
def negate(x: Array) -> Array:
    """Y = -X."""
    return np.negative(x)


@operator("Abs", 13, "X -> Y", shape=same, quantized=Quantized.COMPUTES, torch=("aten::abs(self:X)",))
def absolute(x: Array) -> Array:
    """Y = |X|."""
    return np.abs(x)


@operator("Reciprocal", 13, "X -> Y", shape=same, quantized=Quantized.COMPUTES, torch=("aten::reciprocal(self:X)",))
def reciprocal(x: Array) -> Array:
    """Y = 1 / X."""
    return x.dtype.type(1) / x


@operator(
    "Min",
    13,
    "data_0* -> min",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    torch=("aten::minimum(self:data_0, other:data_0)",),
)
def minimum(*data: Array) -> Array:
    """min = the smallest of the inputs, element by element."""
    result = data[0]
    for other in data[1:]:
        result = np.minimum(result, other)
    return result


@operator(
    "Max",
    13,
    "data_0* -> max",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    torch=("aten::maximum(self:data_0, other:data_0)",),
)
def maximum(*data: Array) -> Array:
    """max = the largest of the inputs, element by element."""
    result = data[0]
    for other in data[1:]:
        result = np.maximum(result, other)
    return result


def _where_shape(given: Inference) -> list[Shape]:
    return broadcast(given)


@operator(
    "Cast",
    23,
    "input -> output",
    attributes={"to": required("s", "the dtype of the output, by name")},
    shape=same,
    quantized=Quantized.FLOAT_ONLY,
    dtype="attribute:to",
)
def cast(x: Array, *, to: str) -> Array:
    """output = input, converted to another dtype; floats to integers by truncation."""
    return x.astype(numpy_dtype(to))


@operator(
    "Identity",
    23,
    "input -> output",
    shape=same,
    quantized=Quantized.MOVES,
    torch=("aten::clone(self:input, memory_format:_=None)", "aten::contiguous(self:input, memory_format:_=None)"),
)
def identity(x: Array) -> Array:
    """output = input."""
    return x
