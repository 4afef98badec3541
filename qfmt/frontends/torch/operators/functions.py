"""Torch's elementwise functions that ONNX has under another name, or as multiple operators."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ....model import numpy_dtype
from ....ops.shapes import axis_of
from .. import arguments, shapes
from ..arguments import operands
from ..building import Builder
from ..lifts import lifts
from ..values import Quotient, Size, TensorValue, Unknown, share
from .logic import cast, in_type, is_tensor, rounded_once
from .pointwise import binary
from .queries import is_open

FUNCTIONS = {
    "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "isnan": "IsNaN", "isinf": "IsInf", "sin": "Sin", "sinh": "Sinh",
    "tan": "Tan",
}  # fmt: skip
"""Functions of one tensor of floats that are one operator."""


def real(lift: Builder, value: Any) -> TensorValue:
    """A tensor of floats: torch computes such functions of integers in float32."""
    x = lift.tensor(value)
    return x if "float" in x.dtype or x.quantization is not None else cast(lift, x, "float32")


@lifts({f"aten::{name}": operator for name, operator in FUNCTIONS.items()})
def function(lift: Builder, operator: str, self: Any) -> Any:
    return lift.emit(operator, [real(lift, self)])


@lifts({"aten::round": "Round", "aten::floor": "Floor", "aten::ceil": "Ceil"})
def rounded(lift: Builder, operator: str, self: Any) -> Any:
    """Of a number, too, which may be a size, or depend on the data."""
    if isinstance(self, Quotient) and operator == "Floor":
        return self.down
    if isinstance(self, Size | Unknown):
        return self if isinstance(self, Size) else Unknown()
    x = lift.tensor(self)
    return x if x.is_whole else lift.emit(operator, [x])


@lifts("aten::sign")
def sign(lift: Builder, self: TensorValue) -> Any:
    """Of NaN it is 0, which it is not in ONNX; dequantized numbers include none. Of a bool it is the bool."""
    if self.dtype == "bool":
        return lift.alias(self)
    maker = lift.makers.get(self.key)
    if "float" in self.dtype and self.quantization is None and not (maker and maker.operator == "DequantizeLinear"):
        self = lift.emit("Where", [lift.emit("IsNaN", [self]), *operands(lift, 0.0, self)])
    return lift.emit("Sign", [self])


@lifts("aten::rsqrt")
@rounded_once
def rsqrt(lift: Builder, self: Any) -> Any:
    return lift.emit("Reciprocal", [lift.emit("Sqrt", [real(lift, self)])])


@lifts("aten::pow")
def power(lift: Builder, self: Any, exponent: Any) -> Any:
    """Torch computes the powers of the numbers 0.5 and -0.5 as roots, which differ for -0 and -∞
    (aten/src/ATen/native/cpu/PowKernel.cpp)."""
    if not isinstance(self, TensorValue) or not isinstance(exponent, float) or abs(exponent) != 0.5:
        return binary(lift, "Pow", self, exponent)
    return lift.emit("Sqrt", [real(lift, self)]) if exponent > 0 else rsqrt(lift, self)


@lifts("aten::square")
def square(lift: Builder, self: Any) -> Any:
    x = lift.tensor(self)
    x = cast(lift, x, "int64") if x.dtype == "bool" else x
    return lift.emit("Mul", [x, x])


@lifts("aten::log2")
@rounded_once
def log2(lift: Builder, self: Any) -> Any:
    return lift.emit("Div", [*operands(lift, lift.emit("Log", [real(lift, self)]), float(np.log(2)))])


@lifts("aten::log1p")
@rounded_once
def log1p(lift: Builder, self: Any) -> Any:
    """log(1 + x); for small x, of which u = 1 + x has few digits, it is log(u) · x / (u - 1), or x if u is 1 (Goldberg,
    "What every computer scientist should know about floating-point arithmetic", theorem 4)."""
    x = real(lift, self)
    u = lift.emit("Add", [*operands(lift, x, 1)])
    logarithm = lift.emit("Log", [u])
    ratio = lift.emit("Div", [x, lift.emit("Sub", [*operands(lift, u, 1)])])
    corrected = lift.emit(
        "Where", [lift.emit("Equal", [*operands(lift, u, 1)]), x, lift.emit("Mul", [logarithm, ratio])]
    )
    is_small = lift.emit("Less", [*operands(lift, lift.emit("Abs", [x]), 0.5)])
    return lift.emit("Where", [is_small, corrected, logarithm])


@lifts("aten::expm1")
@rounded_once
def expm1(lift: Builder, self: Any) -> Any:
    """exp(x) - 1, which has few digits for small x, is tanh(x / 2) (exp(x) + 1)."""
    x = real(lift, self)
    ratio = lift.emit("Tanh", [lift.emit("Mul", [*operands(lift, x, 0.5)])])
    return lift.emit("Mul", [ratio, lift.emit("Add", [*operands(lift, lift.emit("Exp", [x]), 1)])])


@lifts("aten::fmod")
def fmod(lift: Builder, self: Any, other: Any) -> Any:
    return lift.emit("Mod", [*operands(lift, self, other)], {"fmod": 1})


@lifts("aten::addcmul")
@rounded_once
def addcmul(lift: Builder, self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    x, a, b = arguments.alike(lift, [lift.tensor(each) for each in (self, tensor1, tensor2)])
    scaled = a if value == 1 else lift.emit("Mul", [*operands(lift, a, value)])
    return lift.emit("Add", [x, lift.emit("Mul", [scaled, b])])


@lifts("aten::glu")
@rounded_once
def glu(lift: Builder, self: TensorValue, dim: int = -1) -> Any:
    size = shapes.size(lift, self, dim % shapes.rank(lift, self))
    half = lift.constant(np.array([arguments.whole(lift, size) // 2] * 2, np.int64))
    first, second = lift.emit_many("Split", [self, half], {"axis": dim}, outputs=2)
    return lift.emit("Mul", [first, lift.emit("Sigmoid", [second])])


@lifts("aten::log_sigmoid")
def log_sigmoid(lift: Builder, self: Any) -> Any:
    return lift.emit("Neg", [lift.emit("Softplus", [lift.emit("Neg", [self])])])


@lifts("aten::hardshrink")
def hardshrink(lift: Builder, self: Any, lambd: Any = 0.5) -> Any:
    """Shrink has 0 for NaN, which torch keeps."""
    x, limit = lift.tensor(self), arguments.number(lift, lambd)
    small = lift.emit("LessOrEqual", [lift.emit("Abs", [x]), arguments.scalar_like(lift, x, limit)])
    return lift.emit("Where", [small, arguments.scalar_like(lift, x, 0.0), x])


@lifts("aten::softshrink")
def softshrink(lift: Builder, self: Any, lambd: Any = 0.5) -> Any:
    """x - clip(x): Shrink has 0 for NaN, which torch keeps."""
    x, limit = lift.tensor(self), arguments.number(lift, lambd)
    ends = [arguments.scalar_like(lift, x, end) for end in (-limit, limit)]
    return lift.emit("Sub", [x, lift.emit("Clip", [x, *ends])])


@lifts("aten::threshold")
def threshold(lift: Builder, self: Any, threshold: Any, value: Any) -> Any:
    """ThresholdedRelu has 0 for NaN, which torch keeps; integers have none."""
    x, limit, other = lift.tensor(self), arguments.number(lift, threshold), arguments.number(lift, value)
    if x.quantization is not None:
        attributes = {"alpha": float(limit)}
        return (
            NotImplemented if other else lift.emit("ThresholdedRelu", [x], attributes, quantization=arguments.grid(x))
        )
    replaced = lift.emit("LessOrEqual", [x, arguments.scalar_like(lift, x, limit)])
    return lift.emit("Where", [replaced, arguments.scalar_like(lift, x, other), x])


@lifts({"aten::amax": "ReduceMax", "aten::amin": "ReduceMin", "aten::prod": "ReduceProd"})
def extreme(
    lift: Builder, operator: str, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    x = in_type(lift, self, dtype, whole="int64" if operator == "ReduceProd" else "")
    return lift.emit(operator, [x, arguments.axes(lift, dim)], {"keepdims": int(keepdim)})


@lifts({"aten::argmax": "ArgMax", "aten::argmin": "ArgMin"})
def arg_extreme(lift: Builder, operator: str, self: TensorValue, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        place = lift.emit(operator, [shapes.reshape(lift, self, [-1])], {"axis": 0, "keepdims": 0})
        return shapes.reshape(lift, place, [1] * shapes.rank(lift, self)) if keepdim else place
    return lift.emit(operator, [self], {"axis": dim, "keepdims": int(keepdim)})


@lifts({"aten::max": "Max", "aten::min": "Min"})
def max_or_min(
    lift: Builder, name: str, self: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None
) -> Any:
    """Of all elements; of two tensors, or two numbers; or along an axis, with the places."""
    if not is_tensor(self):
        return Unknown() if is_open([self, dim]) else NotImplemented
    second = dim if is_tensor(dim) else other
    if second is not None:
        return lift.emit(name, [*operands(lift, self, second)])
    values = extreme(lift, f"Reduce{name}", self, dim, keepdim)
    return values if dim is None else (values, arg_extreme(lift, f"Arg{name}", self, dim, keepdim))


NORMS = {1: "ReduceL1", 2: "ReduceL2", None: "ReduceL2", inf: "ReduceMax", -inf: "ReduceMin"}


@lifts(
    "aten::linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None)",
    "aten::norm(self, p:ord=2, dim=None, keepdim=False, dtype=None)",
)
def norm(lift: Builder, a: Any) -> Any:
    """(Σ |x|^ord)^(1 / ord) for 1, 2 and the limits."""
    if (operator := NORMS.get(a.ord)) is None:
        return NotImplemented
    x = in_type(lift, a.self, a.dtype)
    x = lift.emit("Abs", [x]) if a.ord in (inf, -inf) else x
    return lift.emit(operator, [x, arguments.axes(lift, a.dim)], {"keepdims": int(a.keepdim)})


@lifts("aten::_weight_norm")
@rounded_once
def weight_norm(lift: Builder, v: Any, g: Any, dim: int = 0) -> Any:
    """v · (g / ‖v‖), of each slice along a dimension; of all of it if that is -1: torch, WeightNorm.cpp."""
    x = lift.tensor(v)
    rank = shapes.rank(lift, x)
    others = [axis for axis in range(rank) if axis != axis_of(dim, rank)] if dim != -1 else None
    length = lift.emit("ReduceL2", [x, arguments.axes(lift, others)], {"keepdims": int(others is not None)})
    return lift.emit("Mul", [x, lift.emit("Div", [lift.tensor(g), length])])


@lifts("aten::logsumexp")
def log_sum_exp(lift: Builder, self: Any, dim: Any, keepdim: bool = False) -> Any:
    return lift.emit("ReduceLogSumExp", [real(lift, self), arguments.axes(lift, dim)], {"keepdims": int(keepdim)})


@lifts("aten::outer")
def outer(lift: Builder, self: Any, vec2: Any) -> Any:
    column = lift.emit("Unsqueeze", [lift.tensor(self), lift.constant(np.array([1]))])
    return lift.emit("Mul", [*operands(lift, column, vec2)])


@lifts("aten::dot")
def dot(lift: Builder, self: Any, tensor: Any) -> Any:
    return lift.emit("MatMul", [*operands(lift, self, tensor)])


@lifts({f"aten::{name}": name for name in ("var", "std", "var_mean")})
@rounded_once
def variance(
    lift: Builder,
    name: str,
    self: Any,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    """Σ (x - mean)² / (n - correction)"""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    x = lift.tensor(self)
    var, mean = _moments(lift, x, dim, keepdim, _correction(unbiased, correction))
    if name == "var_mean":
        return var, mean
    result, grid = var if name == "var" else lift.emit("Sqrt", [var]), arguments.grid(x)
    if name == "var" or grid is None:
        return result
    return lift.emit("QuantizeLinear", [result], quantization=grid, dtype=x.dtype)


def _correction(unbiased: Any, correction: Any) -> float:
    return float(correction if correction is not None else 1 if unbiased is None else int(unbiased))


def _moments(
    lift: Builder, x: TensorValue, dim: Any, keepdim: bool, correction: float
) -> tuple[TensorValue, TensorValue]:
    rank = shapes.rank(lift, x)
    given = range(rank) if dim in (None, []) else dim if isinstance(dim, list | tuple) else [dim]
    dims = [axis_of(axis, rank) for axis in given]
    axes = lift.constant(np.array(dims, np.int64))
    mean = lift.emit("ReduceMean", [x, axes], {"keepdims": 1})
    centred = lift.emit("Sub", [x, mean])
    total = lift.emit("ReduceSum", [lift.emit("Mul", [centred, centred]), axes], {"keepdims": int(keepdim)})
    count = float(np.prod([arguments.whole(lift, shapes.size(lift, x, axis)) for axis in dims]))
    var = lift.emit("Div", [total, lift.constant(np.array(max(count - correction, 0), numpy_dtype(total.dtype)))])
    return var, mean if keepdim else lift.emit("Squeeze", [mean, axes])


@lifts("aten::cumsum")
def cumsum(lift: Builder, self: Any, dim: int, *, dtype: Any = None) -> Any:
    x = in_type(lift, self, dtype, whole="int64")
    return lift.emit("CumSum", [x, lift.constant(np.array(dim, np.int64))])


@lifts({"aten::tril": 0, "aten::triu": 1})
def triangle(lift: Builder, upper: int, self: Any, diagonal: int = 0) -> Any:
    return lift.emit("Trilu", [self, lift.constant(np.array(diagonal, np.int64))], {"upper": upper})


@lifts("aten::einsum")
def einsum(lift: Builder, equation: str, tensors: Any, path: Any = None) -> Any:
    """Torch sums some integers in their type, and others in int64."""
    if any(each.is_whole and each.dtype != "int64" for each in map(lift.tensor, tensors)):
        return NotImplemented
    result = lift.emit("Einsum", list(tensors), {"equation": equation})
    if len(tensors) == 1 and isinstance(tensors[0], TensorValue):
        share("aten::permute", tensors[0], result)  # of one tensor, torch may return a view
    return result
