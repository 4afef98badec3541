"""Arithmetic on elements of broadcast tensors."""

from __future__ import annotations

from functools import reduce

import numpy as np

from ..arithmetic import f32, rescale
from ..arrays import Array
from ..errors import QfmtError
from ..model import DTYPES, numpy_dtype
from .accumulation import centred, exact_product
from .functions import function
from .registry import (
    ELEMENT_TYPES,
    QUANTIZE_ENGINES,
    QUANTIZE_RULES,
    Operand,
    Quantized,
    Result,
    Sums,
    by_engine,
    operator,
    required,
    truth,
)
from .shapes import broadcast, same


def _add_integer(a: Operand, b: Operand, *, result: Result) -> Array:
    """`sum`, for inputs of one scale sx: rint(f32((qa - za) + (qb - zb)) · f32(sx · f32(1 / s))) + z"""
    result.expect("sum")
    if a.quantization is None or b.quantization is None or a.quantization.scale != b.quantization.scale:
        raise QfmtError("the rule `sum` needs two inputs quantized with one scale")
    multiplier = f32(a.quantization.scale[0]) * (f32(1) / f32(result.quantization.scale[0]))
    return rescale(_exact(a) + _exact(b), multiplier, result.quantization, result.dtype)


def _exact(operand: Operand) -> Array:
    """q - z in int64; or the values of a tensor that is not quantized, in float64."""
    return centred(operand, np.dtype(np.float64 if operand.quantization is None else np.int64))


@operator(
    "Add",
    14,
    "A B -> C",
    shape=broadcast,
    quantized=Quantized.OWN,
    integer=_add_integer,
    rules=(*QUANTIZE_RULES, "sum"),
    engines=QUANTIZE_ENGINES,
    torch=("quantized::add(qa:A, qb:B, scale:$scale, zero_point:$zero_point)",),
)
def add(a: Array, b: Array) -> Array:
    """C = A + B."""
    return np.add(a, b)


@operator("Sub", 14, "A B -> C", shape=broadcast, quantized=Quantized.COMPUTES)
def sub(a: Array, b: Array) -> Array:
    """C = A - B."""
    return np.subtract(a, b)


def _mul_integer(a: Operand, b: Operand, *, result: Result) -> Array:
    """`product`: rint(f32((qa - za) · (qb - zb)) · f32(f32(sa · sb) · f32(1 / s))) + z.

    An input that is not quantized is used unchanged, with scale 1 and zero point 0.
    """
    result.expect("product")
    scales = [f32(1) if x.quantization is None else f32(x.quantization.scale[0]) for x in (a, b)]
    multiplier = scales[0] * scales[1] * (f32(1) / f32(result.quantization.scale[0]))
    return rescale(exact_product(_exact(a), _exact(b)), multiplier, result.quantization, result.dtype)


def _mul_exact(a: Operand, b: Operand, *, rule: str) -> Array:
    """(qa - za) · (qb - zb)"""
    return exact_product(*(centred(each, np.dtype(np.int64)) for each in (a, b)))


@operator(
    "Mul",
    14,
    "A B -> C",
    shape=broadcast,
    quantized=Quantized.OWN,
    integer=_mul_integer,
    sums=Sums(_mul_exact, ("exact",)),
    rules=("product", *QUANTIZE_RULES),
    engines=by_engine("product"),
    torch=("quantized::mul(qa:A, qb:B, scale:$scale, zero_point:$zero_point)",),
)
def mul(a: Array, b: Array) -> Array:
    """C = A · B."""
    return np.multiply(a, b)


@operator("Div", 14, "A B -> C", shape=broadcast, quantized=Quantized.COMPUTES)
def div(a: Array, b: Array) -> Array:
    """C = A / B; the quotient of integers is exact, rounded towards zero.

    An integer divided by 0 is 0, and the lowest integer divided by -1 is itself; floats follow IEEE 754.
    """
    if not np.issubdtype(np.result_type(a, b), np.integer):
        return np.divide(a, b)
    with np.errstate(all="ignore"):
        quotient, remainder = np.divmod(a, b)  # rounded down
    return np.asarray(quotient + ((remainder != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype))


@operator("Pow", 15, "X Y -> Z", shape=broadcast, quantized=Quantized.COMPUTES)
def power(x: Array, y: Array) -> Array:
    """Z = X to the power of Y, of the dtype of X; of ±0 and infinities as C's `pow`."""
    each = np.array(np.broadcast_to(y, np.broadcast_shapes(x.shape, y.shape)))  # NumPy takes roots of a single 0.5
    return np.power(x, each).astype(x.dtype, copy=False)


for _entry in (
    ("Sqrt", 13, np.sqrt, "Y = √X.", "X -> Y", "aten::sqrt(self:X)"),
    ("Exp", 13, np.exp, "output = e to the power of input.", "input -> output", "aten::exp(self:input)"),
    ("Log", 13, np.log, "output = the natural logarithm of input.", "input -> output", "aten::log(self:input)"),
    ("Neg", 13, np.negative, "Y = -X.", "X -> Y"),
    ("Abs", 13, np.abs, "Y = |X|.", "X -> Y", "aten::abs(self:X)"),
    ("Reciprocal", 13, lambda x: x.dtype.type(1) / x, "Y = 1 / X.", "X -> Y", "aten::reciprocal(self:X)"),
):
    function(__name__, *_entry)


@operator(
    "Min",
    13,
    "data_0* -> min",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    torch=("aten::minimum(self:data_0*, other:data_0*)",),
)
def minimum(*data: Array) -> Array:
    """min = the smallest of the inputs, element by element."""
    return reduce(np.minimum, data)


@operator(
    "Max",
    13,
    "data_0* -> max",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    torch=("aten::maximum(self:data_0*, other:data_0*)",),
)
def maximum(*data: Array) -> Array:
    """max = the largest of the inputs, element by element."""
    return reduce(np.maximum, data)


@operator("Sum", 13, "data_0* -> sum", shape=broadcast, quantized=Quantized.COMPUTES)
def total(*data: Array) -> Array:
    """sum = the sum of the inputs, element by element, starting with the first."""
    return reduce(np.add, data)


@operator("Mean", 13, "data_0* -> mean", shape=broadcast, quantized=Quantized.COMPUTES)
def mean(*data: Array) -> Array:
    """mean = Sum of the inputs, divided by their number."""
    added = reduce(np.add, data)
    return np.asarray(added / added.dtype.type(len(data)))


@operator(
    "Cast",
    23,
    "input -> output",
    attributes={
        "saturate": truth(1, "0: values beyond the range of an 8-bit float become infinite or NaN"),
        "to": required("s", "the dtype of the output, by name", ELEMENT_TYPES),
    },
    shape=same,
    quantized=Quantized.FLOAT_ONLY,
    dtype="attribute:to",
)
def cast(x: Array, *, saturate: int, to: str) -> Array:
    """output = input, converted to another dtype. To a float: the nearest one, or, beyond an 8-bit float, the largest.

    Floats are truncated to integers; integers that are too large keep their low bits.
    """
    kind, limits = numpy_dtype(to), DTYPES[to]
    if DTYPES[x.dtype.name].is_from_ml_dtypes:  # which has no casts between some of its types; float32 holds them all
        x = x.astype(np.float32)
    if limits.kind == "f" and limits.maximum and saturate:
        wide = x.astype(np.float32)
        return np.where(np.isnan(wide), wide, np.clip(wide, limits.minimum, limits.maximum)).astype(kind)
    if limits.bits < 8 and limits.is_integer:
        low = x.astype(np.int64) & ((1 << limits.bits) - 1)
        return np.where(low > limits.maximum, low - (1 << limits.bits), low).astype(kind)
    return x.astype(kind)


@operator("Identity", 23, "input -> output", shape=same, quantized=Quantized.MOVES)
def identity(x: Array) -> Array:
    """output = input."""
    return x
