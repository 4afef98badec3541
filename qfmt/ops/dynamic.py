"""Products whose input is quantized at run time: exact integer sums, real results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..arithmetic import DYNAMIC, dequantize, quantize_dynamically
from ..arrays import Array
from ..model import numpy_dtype
from .accumulation import real, real_sums, requantize_sums
from .convolution import (
    ATTRIBUTES,
    TRANSPOSED,
    conv,
    conv_shape,
    conv_sums,
    conv_transpose,
    conv_transpose_shape,
    conv_transpose_sums,
)
from .linear import linear, linear_shape, linear_sums
from .registry import (
    DYNAMIC_RULES,
    REQUANTIZE_ENGINES,
    REQUANTIZE_RULES,
    Operand,
    Quantized,
    Result,
    operator,
    truth,
)

REDUCE_RANGE = {"reduce_range": truth(0, "1: the range of the input is spread over 0..127 instead of 0..255")}
PER_TOKEN = {
    "per_token": truth(0, "1: each row of the input, along its last axis, has a scale and a zero point of its own")
}

_dynamic = partial(operator, version=1, signature="X W B? -> Y", quantized=Quantized.WEIGHTS, dtype="float32")


def quantized_now(x: Operand, rule: str, reduce_range: int, *, rows: bool = False) -> Operand:
    """A float input as uint8, quantized by its range; `rows`: each row of a matrix by its own."""
    return Operand(*quantize_dynamically(real(x), rule, 127 if reduce_range else 255, rows=rows))


def linear_integer(
    x: Operand, w: Operand, b: Operand | None, *, rule: str, reduce_range: int, per_token: int = 0
) -> Array:
    """X is quantized by the stated dynamic rule, as a whole, or row by row if `per_token` is 1;
    acc = Σ (x - zx)·(w - zw), exact; then to float32 by the rule.
    """
    shape = x.array.shape
    if per_token:
        x = Operand(real(x).reshape(-1, shape[-1]), None)
    q = quantized_now(x, rule, reduce_range, rows=bool(per_token))
    y = real_sums(linear_sums(q, w), q, w, b, rule)
    return y.reshape(*shape[:-1], y.shape[-1])


@_dynamic("qfmt.DynamicLinear", attributes={**REDUCE_RANGE, **PER_TOKEN}, shape=linear_shape, integer=linear_integer)
def dynamic_linear(x: Array, w: Array, b: Array | None, *, reduce_range: int, per_token: int) -> Array:
    """Y = X · Wᵀ + B over the last dimension of X, real like B; W is quantized, and X is quantized at run time.

    X is [..., in], W is [out, in], B is [out]. All of X has one scale and zero point, unless `per_token` is 1.
    """
    return linear(x, w, b)


def _convolved(sums: Callable[..., Array], meaning: str) -> Callable[..., Array]:
    """The quantized form of a convolution with these sums."""

    def integer(x: Operand, w: Operand, b: Operand | None, *, rule: str, reduce_range: int, **a: Any) -> Array:
        if rule in DYNAMIC:
            q = quantized_now(x, rule, reduce_range)
            return real_sums(sums(q, w, **a), q, w, b, rule, a)
        q = quantized_now(x, "dynamic_fma", reduce_range)
        assert q.quantization is not None
        result = Result(numpy_dtype("uint8"), q.quantization, rule)
        y = requantize_sums(sums(q, w, **a), q, w, b, result, a)
        return dequantize(y, q.quantization)

    integer.__doc__ = meaning
    return integer


CONV_RULES = (*REQUANTIZE_RULES, *DYNAMIC_RULES)
CONV_ENGINES = REQUANTIZE_ENGINES | {"onnx": "dynamic_divide", "pt2e": "dynamic_reciprocal"}


@_dynamic(
    "qfmt.DynamicConv",
    attributes={**ATTRIBUTES, **REDUCE_RANGE},
    shape=conv_shape,
    integer=_convolved(
        conv_sums,
        """With a dynamic rule, as in qfmt.DynamicLinear. With a requantize rule, as in PyTorch: X is quantized as by
        `dynamic_fma`, Conv requantizes with the scale and zero point of the quantized X, clamped to 0..255, and the
        result is dequantized.
        """,
    ),
    rules=CONV_RULES,
    engines=CONV_ENGINES,
)
def dynamic_conv(x: Array, w: Array, b: Array | None, *, reduce_range: int, **attributes: Any) -> Array:
    """Y as in Conv, real; W is quantized, and X is quantized at run time, with one scale and zero point."""
    return conv(x, w, b, **attributes)


@_dynamic(
    "qfmt.DynamicConvTranspose",
    attributes={**TRANSPOSED, **REDUCE_RANGE},
    shape=conv_transpose_shape,
    integer=_convolved(conv_transpose_sums, "As in qfmt.DynamicConv, with the sums of ConvTranspose."),
    rules=CONV_RULES,
    engines=CONV_ENGINES,
)
def dynamic_conv_transpose(x: Array, w: Array, b: Array | None, *, reduce_range: int, **attributes: Any) -> Array:
    """Y as in ConvTranspose, real; W is quantized, and X is quantized at run time, with one scale and zero point."""
    return conv_transpose(x, w, b, **attributes)
