"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import fma
from ..errors import QfmtError
from ..model import Shape
from .accumulation import centred, exact_dtype, requantize_sums, whole
from .registry import REQUANTIZE_ENGINES, Inference, Operand, Quantized, Result, by_engine, operator
from .shapes import broadcast_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def linear_shape(given: Inference) -> list[Shape]:
    x, w = given.shapes[0], given.known(1)
    if x is None:
        return [None]
    if not x:
        raise QfmtError("Linear needs an input of at least one dimension")
    if isinstance(x[-1], int) and isinstance(w[1], int) and x[-1] != w[1]:
        raise QfmtError(f"the input has {x[-1]} features, the weight takes {w[1]}")
    return [(*x[:-1], w[0])]


def _linear_integer(x: Operand, w: Operand, b: Operand | None, *, result: Result) -> Array:
    """acc = Σ (x - zx)·(w - zw), exact; then the requantize rule. A bias is real, or int32 in units of sx·sw."""
    return requantize_sums(linear_sums(x, w), x, w, b, result, channels=-1)


def linear_sums(x: Operand, w: Operand) -> Array:
    """Σ (x - zx)·(w - zw), exact."""
    weights = whole(w)
    dtype = exact_dtype(x, weights, (1,))
    return np.matmul(centred(x, dtype), weights.T.astype(dtype))


@operator(
    "qfmt.Linear",
    1,
    "X W B? -> Y",
    shape=linear_shape,
    quantized=Quantized.ACCUMULATES,
    integer=_linear_integer,
    engines=REQUANTIZE_ENGINES | {"x86": "float_bias"},
    torch=("aten::linear(input:X, weight:W, bias:B=None)",),
)
def linear(x: Array, w: Array, b: Array | None) -> Array:
    """Y = X · Wᵀ + B over the last dimension of X.

    X is [..., in], W is [out, in], B is [out]; X may have any number of leading dimensions. A W of float16 is
    multiplied in the order of its columns k, y = fma(X[..., k], f32(W[:, k]), y) from y = 0, and B is added at last.
    """
    y = _in_order(x, w) if w.dtype == np.float16 else np.matmul(x, w.T)
    return y if b is None else y + b


def _in_order(x: Array, w: Array) -> Array:
    """As fbgemm multiplies with float16 weights, if there are not more than 512 columns.

    (Of more it takes blocks of 512, in its last columns, those that fill no block of 32: sums of sums.)
    """
    y = np.zeros((*x.shape[:-1], w.shape[0]), np.float32)
    columns = w.astype(np.float32)
    for k in range(w.shape[1]):
        y = fma(x[..., k, None], columns[:, k], y)
    return y


def _matmul_shape(given: Inference) -> list[Shape]:
    a, b = given.shapes[0], given.shapes[1]
    if a is None or b is None:
        return [None]
    if not a or not b:
        raise QfmtError("MatMul needs inputs of at least one dimension")
    inner = (a[-1], b[-2] if len(b) > 1 else b[-1])
    if isinstance(inner[0], int) and isinstance(inner[1], int) and inner[0] != inner[1]:
        raise QfmtError(f"MatMul cannot multiply rows of {inner[0]} with columns of {inner[1]}")
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return [(*broadcast_pair(a[:-2], b[:-2]), *rows, *columns)]


def _matmul_integer(a: Operand, b: Operand, *, result: Result) -> Array:
    """acc = Σ (a - za)·(b - zb), exact; then the requantize rule, without a bias."""
    if b.quantization is not None and b.quantization.axis not in (None, b.array.ndim - 1):
        raise QfmtError("MatMul takes a second input quantized per tensor or per column")
    right = whole(b)
    dtype = exact_dtype(a, right, (max(0, right.ndim - 2),))
    acc = np.asarray(np.matmul(centred(a, dtype), right.astype(dtype)))
    return requantize_sums(acc, a, b, None, result, channels=-1)


@operator(
    "MatMul",
    13,
    "A B -> Y",
    shape=_matmul_shape,
    quantized=Quantized.ACCUMULATES,
    integer=_matmul_integer,
    engines=by_engine("affine", onnx="integer_bias"),
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
