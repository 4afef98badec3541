"""Into and out of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import QUANTIZE_RULES, Quantized, by_engine, operator
from .shapes import same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


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
    """Y is X on the grid of Y's quantization, by the stated quantize rule.

    Scale and zero point are the quantization of Y, not inputs. X may be quantized itself: then this is a
    requantization.
    """
    return x


@operator(
    "DequantizeLinear", 23, "X -> Y", shape=same, quantized=Quantized.COMPUTES, rules=(), engines={}, dtype="float32"
)
def dequantize_linear(x: Array) -> Array:
    """Y = f32(X - zero_point) · f32(scale), by X's quantization."""
    return x
