"""Matrix products."""

from __future__ import annotations

import numpy as np

from ..arithmetic import fma
from ..arrays import Array
from ..errors import QfmtError
from ..graph import MAXIMUM_RANK
from ..model import Dimension, Shape
from .accumulation import accumulating, centred, exact_dtype, whole
from .overflow import as_computed, of_product
from .registry import (
    QUANTIZE_RULES,
    REQUANTIZE_ENGINES,
    REQUANTIZE_RULES,
    Inference,
    Operand,
    Quantized,
    by_engine,
    operator,
    optional,
    required,
    truth,
)
from .shapes import broadcast_pair, check_bias, check_broadcasts


def linear_shape(given: Inference) -> list[Shape]:
    x, w = given.shapes[0], given.known(1)
    if len(w) != 2:
        raise QfmtError(f"Linear needs a matrix of weights, not {len(w)} dimensions")
    check_bias(given, w[0])
    if x is None:
        return [None]
    if not x:
        raise QfmtError("Linear needs an input of at least one dimension")
    if isinstance(x[-1], int) and isinstance(w[1], int) and x[-1] != w[1]:
        raise QfmtError(f"the input has {x[-1]} features, the weight expects {w[1]}")
    return [(*x[:-1], w[0])]


def linear_sums(x: Operand, w: Operand, _: int = 0) -> Array:
    """Σ (x - zx)·(w - zw), exact."""
    weights = whole(w)
    dtype = exact_dtype(x, weights, (1,))
    exact = np.matmul(centred(x, dtype), weights.T.astype(dtype))
    return as_computed(exact, lambda kernel: of_product(kernel, x.array, w.array.T))


@operator(
    "qfmt.Linear",
    1,
    "X W B? -> Y",
    shape=linear_shape,
    quantized=Quantized.ACCUMULATES,
    engines=REQUANTIZE_ENGINES | {"x86": "float_bias"},
    torch=("aten::linear(input:X, weight:W, bias:B=None)",),
    **accumulating(
        linear_sums,
        "acc = Σ (x - zx)·(w - zw), exact; then the requantize rule. A bias is real, or int32 in units of sx·sw.",
        "by `exact`, Σ (x - zx)·(w - zw) + B; by `folded`, Σ x·w + B.",
    ),
)
def linear(x: Array, w: Array, b: Array | None) -> Array:
    """Y = X · Wᵀ + B over the last dimension of X.

    X is [..., in], W is [out, in], B is [out]; X may have any number of leading dimensions. A float16 W is multiplied
    in the order of its columns k, y = fma(X[..., k], f32(W[:, k]), y) from y = 0, and B is added last. (fbgemm computes
    the same, except for the last row or two on processors without AVX-512, where it adds multiple partial sums.)
    """
    y = _in_order(x, w) if w.dtype == np.float16 else np.matmul(x, w.T)
    return y if b is None else y + b


def _in_order(x: Array, w: Array) -> Array:
    """As fbgemm multiplies with float16 weights, if there are not more than 512 columns.

    (With more columns it uses blocks of 512 in the last columns that do not fill a block of 32: sums of sums.)
    """
    y = np.zeros((*x.shape[:-1], w.shape[0]), np.float32)
    columns = w.astype(np.float32)
    for k in range(w.shape[1]):
        y = fma(x[..., k, None], columns[:, k], y)
    return y


def matmul_shape(given: Inference) -> list[Shape]:
    a, b = given.shapes[0], given.shapes[1]
    if () in (a, b):
        raise QfmtError("MatMul needs inputs of at least one dimension")
    if a is None or b is None:
        return [None]
    inner = (a[-1], b[-2] if len(b) > 1 else b[-1])
    if isinstance(inner[0], int) and isinstance(inner[1], int) and inner[0] != inner[1]:
        raise QfmtError(f"MatMul cannot multiply rows of {inner[0]} with columns of {inner[1]}")
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return [(*broadcast_pair(a[:-2], b[:-2]), *rows, *columns)]


def _matmul_sums(a: Operand, b: Operand, _: int = 0) -> Array:
    """Σ (a - za)·(b - zb), exact."""
    right = whole(b)
    dtype = exact_dtype(a, right, (max(0, right.ndim - 2),))
    exact = np.asarray(np.matmul(centred(a, dtype), right.astype(dtype)))
    return as_computed(exact, lambda kernel: of_product(kernel, a.array, b.array))


@operator(
    "MatMul",
    13,
    "A B -> Y",
    shape=matmul_shape,
    quantized=Quantized.ACCUMULATES,
    engines=by_engine("affine", onnx="integer_bias", pt2e="affine"),
    torch=(
        "aten::matmul(self:A, other:B)",
        "aten::mv(self:A, vec:B)",
        "aten::mm(self:A, mat2:B)",
        "aten::bmm(self:A, mat2:B)",
        "quantized::matmul(qa:A, qb:B, scale:$scale, zero_point:$zero_point)",
    ),
    **accumulating(
        _matmul_sums,
        "acc = Σ (a - za)·(b - zb), exact; then the requantize rule, without a bias.",
        "by `exact`, Σ (a - za)·(b - zb); by `folded`, Σ a·b.",
    ),
)
def matmul(a: Array, b: Array) -> Array:
    """NumPy's matrix product: over the last two dimensions, the leading ones broadcast."""
    return np.matmul(a, b)


def _gemm_shape(given: Inference) -> list[Shape]:
    a, b = ((None, None) if shape is None else shape for shape in given.shapes[:2])
    for name, shape in (("A", a), ("B", b)):
        if len(shape) != 2:
            raise QfmtError(f"Gemm requires matrices, but {name} has {len(shape)} dimensions")
    rows, inner = reversed(a) if given.attributes["transA"] else a
    columns, other = b if given.attributes["transB"] else reversed(b)
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise QfmtError(f"Gemm cannot multiply rows of {inner} with columns of {other}")
    if given.shapes[2] is not None:
        check_broadcasts(given.shapes[2], (rows, columns), "C")
    return [(rows, columns)]


def _gemm_sums(a: Operand, b: Operand, _: int = 0, *, alpha: float, beta: float, **transposed: int) -> Array:
    """Σ (a - za)·(b - zb), exact."""
    transposes_a, transposes_b = transposed["transA"], transposed["transB"]
    if alpha != 1 or beta != 1:
        raise QfmtError("on integers, Gemm requires an alpha and a beta of 1", hint="a quantize rule supports any")
    right = whole(b)
    dtype = exact_dtype(a, right, (1 if transposes_b else 0,))
    left = centred(a, dtype)
    exact = np.matmul(left.T if transposes_a else left, (right.T if transposes_b else right).astype(dtype))
    stored = (a.array.T if transposes_a else a.array, b.array.T if transposes_b else b.array)
    return as_computed(exact, lambda kernel: of_product(kernel, *stored))


@operator(
    "Gemm",
    13,
    "A B C? -> Y",
    attributes={
        "alpha": optional(1.0, "factor of the product"),
        "beta": optional(1.0, "factor of C"),
        "transA": truth(0, "1: A is transposed"),
        "transB": truth(0, "1: B is transposed"),
    },
    shape=_gemm_shape,
    quantized=Quantized.ACCUMULATES,
    rules=(*REQUANTIZE_RULES, *QUANTIZE_RULES),
    engines=REQUANTIZE_ENGINES | {"x86": "float_bias"},
    **accumulating(
        _gemm_sums,
        "if alpha and beta are 1: acc = Σ (a - za)·(b - zb), exact; then the requantize rule, with C as the bias.",
        "if alpha and beta are 1: by `exact`, Σ (a - za)·(b - zb) + C; by `folded`, Σ a·b + C.",
    ),
)
def gemm(a: Array, b: Array, c: Array | None, *, alpha: float, beta: float, **transposed: int) -> Array:
    """Y = alpha · A · B + beta · C, A and B matrices, transposed first if so stated; C broadcasts to the product."""
    kind = a.dtype.type
    y = np.matmul(a.T if transposed["transA"] else a, b.T if transposed["transB"] else b)
    if alpha != 1:
        y = (y * alpha).astype(a.dtype) if a.dtype.kind in "iu" else y * kind(alpha)
    if c is None:
        return y
    if beta != 1:
        c = (c * beta).astype(c.dtype) if c.dtype.kind in "iu" else c * kind(beta)
    return y + c


def _einsum_shape(given: Inference) -> list[Shape]:
    """Sizes by their letters; an ellipsis represents axes that broadcast."""
    terms, output = _equation(given.attributes["equation"], len(given.shapes))
    sizes: dict[str, Dimension] = {}
    shared: tuple[Dimension, ...] = ()
    for index, term in enumerate(terms):
        shape = given.known(index)
        before, dots, after = term.partition("...")
        rest = len(shape) - len(before) - len(after)
        if rest < 0 or (rest and not dots):
            raise QfmtError(f"the term {term[:100]!r} does not fit an input of {len(shape)} dimensions")
        shared = broadcast_pair(shared, shape[len(before) : len(before) + rest])
        own = (*shape[: len(before)], *shape[len(before) + rest :])
        for letter, size in zip(before + after, own, strict=True):
            first = own[(before + after).index(letter)]
            if isinstance(first, int) and isinstance(size, int) and first != size:  # one of another input broadcasts
                raise QfmtError(f"axes {letter!r} of an input have the sizes {first} and {size}")
            known = sizes.get(letter, 1)
            sizes[letter] = broadcast_pair((known,), (size,))[0]
    before, dots, after = output.partition("...")
    if shared and not dots:
        raise QfmtError("the output lacks the axes of the ellipsis", hint="sum over axes that have letters")
    return [(*(sizes[each] for each in before), *(shared if dots else ()), *(sizes[each] for each in after))]


def _equation(text: str, count: int) -> tuple[list[str], str]:
    """The terms of the inputs, and that of the output: if not stated, all letters that occur once, in order."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise QfmtError(f"the equation {text[:100]!r} has {len(terms)} terms for {count} inputs")
    if count > MAXIMUM_RANK:
        raise QfmtError(f"{count} inputs are more than {MAXIMUM_RANK}")
    letters = "".join(terms).replace(".", "")
    if arrow:
        if missing := set(right.replace(".", "")) - set(letters):
            raise QfmtError(f"the equation {text[:100]!r} does not define {min(missing)}")
        return terms, right
    once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return terms, ("..." if "..." in left else "") + once


@operator(
    "Einsum",
    12,
    "Inputs* -> Output",
    attributes={"equation": required("s", "letters for the axes of the inputs, and of the output: `bij,bjk->bik`")},
    shape=_einsum_shape,
    quantized=Quantized.FLOAT_ONLY,
)
def einsum(*inputs: Array, equation: str) -> Array:
    """Output = the products of input elements at equal letters, summed over the letters that the output lacks."""
    total = np.einsum(equation.replace(" ", ""), *inputs, optimize=len(inputs) > 2)
    return np.asarray(total).astype(inputs[0].dtype, copy=False)
