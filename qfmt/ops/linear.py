"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import requantize
from ..errors import QfmtError
from ..model import Shape
from .convolution import multiply_exactly
from .registry import Inference, Operand, Quantized, Result, operator
from .shapes import broadcast_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def _linear_shape(given: Inference) -> list[Shape]:
    x, w = given.shapes[0], given.known(1)
    if x is None:
        return [None]
    if not x:
        raise QfmtError("Linear needs an input of at least one dimension")
    if isinstance(x[-1], int) and isinstance(w[1], int) and x[-1] != w[1]:
        raise QfmtError(f"the input has {x[-1]} features, the weight takes {w[1]}")
    return [(*x[:-1], w[0])]


def _linear_integer(x: Operand, w: Operand, b: Operand | None, *, result: Result) -> Array:
    """acc = Σ (x - zx)·(w - zw), exact; then the requantize rule."""
    if x.quantization is None or w.quantization is None:
        raise QfmtError("a quantized Linear needs a quantized input and weight")
    centred = x.array.astype(np.int32) - x.quantization.zero_point[0]
    weight = w.array.astype(np.int32) - w.quantization.zero_points(2)
    acc = multiply_exactly(centred, weight.T)
    bias = None if b is None else b.array.astype(np.float32)
    scales = np.array(w.quantization.scale)
    return requantize(acc, bias, x.quantization.scale[0], scales, result.quantization, result.dtype, result.rule)


@operator(
    "qfmt.Linear",
    1,
    "X W B? -> Y",
    shape=_linear_shape,
    quantized=Quantized.ACCUMULATES,
    integer=_linear_integer,
    torch=("aten::linear(input:X, weight:W, bias:B=None)",),
)
def linear(x: Array, w: Array, b: Array | None) -> Array:
    """Y = X · Wᵀ + B over the last dimension of X.

    X is [..., in], W is [out, in], B is [out]; X may have any number of leading dimensions.
    """
    y = np.matmul(x, w.T)
    return y if b is None else y + b


def _matmul_shape(given: Inference) -> list[Shape]:
    a, b = given.shapes[0], given.shapes[1]
    if a is None or b is None:
        return [None]
    if not a or not b:
        raise QfmtError("MatMul needs inputs of at least one dimension")
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return [(*broadcast_pair(a[:-2], b[:-2]), *rows, *columns)]


def _matmul_integer(a: Operand, b: Operand, *, result: Result) -> Array:
    """acc = Σ (a - za)·(b - zb), exact; then the requantize rule, without a bias."""
    if a.quantization is None or b.quantization is None:
        raise QfmtError("a quantized MatMul needs two quantized inputs")
    left = a.array.astype(np.int32) - a.quantization.zero_points(a.array.ndim)
    right = b.array.astype(np.int32) - b.quantization.zero_points(b.array.ndim)
    acc = multiply_exactly(left, right)
    scales = np.array(b.quantization.scale)
    return requantize(acc, None, a.quantization.scale[0], scales, result.quantization, result.dtype, result.rule)


@operator(
    "MatMul",
    13,
    "A B -> Y",
    shape=_matmul_shape,
    quantized=Quantized.ACCUMULATES,
    integer=_matmul_integer,
    torch=(
        "aten::matmul(self:A, other:B)",
        "aten::mm(self:A, mat2:B)",
        "aten::bmm(self:A, mat2:B)",
        "quantized::matmul(qa:A, qb:B, scale:$scale, zero_point:$zero_point)",
    ),
)
def matmul(a: Array, b: Array) -> Array:
    """NumPy's matrix product: over the last two dimensions, the leading ones broadcast."""
    return np.matmul(a, b)
