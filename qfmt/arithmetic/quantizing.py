"""Dequantize, the quantize rules, the clamp, and the fused multiply-add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import DTYPES, Array
from ..errors import RunError
from ..quantization import Quantization

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

f32 = np.float32

EXACT_IN_FLOAT32 = 1 << 24
"""float32 represents integers up to this exactly; float64 up to 2**53."""


def dequantize(values: Array, quantization: Quantization, rule: str = "") -> Floats:
    """The real numbers in float32 (Quantization.dequantize). The rule `premultiplied` has its own form."""
    shape = np.shape(values)
    if rule != "premultiplied" or not quantization.is_plain or quantization.has_float_zero_points:
        return quantization.dequantize(np.asarray(values))
    scale = quantization.scales(shape, f32)
    return fma(values.astype(f32), scale, scale * -quantization.zero_points(shape).astype(f32))


def quantize(values: Floats, quantization: Quantization, dtype: np.dtype[Any], rule: str) -> Array:
    """float32 → integers by a quantize rule (a key of QUANTIZE). NaN becomes quant_min.

    Floats of 8 and 4 bits: `x / s` by the rule `divide`, `x · f32(1 / s)` by any other, then clamped, and rounded
    half to even to `dtype`. 8-bit floats keep NaN.
    """
    shape = np.shape(values)
    scale = quantization.scales(shape, f32)
    if _is_float(dtype):
        named(QUANTIZE, rule)
        with np.errstate(over="ignore", invalid="ignore"):
            x = values.astype(f32, copy=False)
            scaled = np.asarray(x / scale if rule == "divide" else x * (f32(1) / scale))
        return _clamp_float(scaled, quantization, dtype)
    zero_point = quantization.zero_points(shape).astype(f32)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = named(QUANTIZE, rule)(values.astype(f32, copy=False), scale, zero_point)
    return clamp(rounded, quantization, dtype)


any_numbers = partial(np.errstate, all="ignore")
"""A context or decorator for work on numbers of a file: NumPy would warn of signalling NaN, and of large ones."""


def clamp(rounded: Array, quantization: Quantization, dtype: np.dtype[Any]) -> Array:
    """Clamp integral values (float or integer) to the range of the result, as integers of `dtype`; NaN →
    quant_min."""
    low, high = quantization.quant_min, quantization.quant_max
    if rounded.dtype.kind != "f":
        return np.clip(rounded, low, high).astype(dtype)
    if max(-low, high) > EXACT_IN_FLOAT32:  # float32 would round the upper limit of int32 out of its range
        rounded = rounded.astype(np.float64)
    kind = rounded.dtype.type
    return np.minimum(np.fmax(rounded, kind(low)), kind(high)).astype(dtype)


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float type. Some types of ml_dtypes have the kind of raw bytes in NumPy."""
    return dtype.kind == "f" or DTYPES[dtype.name].kind == "f"


def _clamp_float(scaled: Floats, quantization: Quantization, dtype: np.dtype[Any]) -> Array:
    """Clamp float32 to the range of the result, then round half to even to a float of 8 or 4 bits; 4-bit types have
    no NaN."""
    low, high = f32(quantization.quant_min), f32(quantization.quant_max)
    at_least = np.fmax(scaled, low) if DTYPES[dtype.name].bits < 8 else np.maximum(scaled, low)
    return np.minimum(at_least, high).astype(dtype)


class Namespace(NamedTuple):
    """What the rules need of an array library, besides the operators, `round` (half to even) and `clip` of arrays.

    `lib` is NumPy or torch, `f32` and `f64` convert, `one` is 1 in float32: NumPy 1 divides 1 by a float32 in float64.
    """

    lib: Any
    f32: Callable[[Any], Any]
    f64: Callable[[Any], Any]
    fma: Callable[[Any, Any, Any], Any]
    one: Any


Quantize = Callable[[Any, Any, Any], Any]


def quantize_rules(xp: Namespace) -> dict[str, Quantize]:
    """Rules that quantize a real number, before the clamp."""

    def divide(x: Any, s: Any, z: Any) -> Any:
        """`rint(x / s) + z`"""
        return (x / s).round() + z

    def reciprocal(x: Any, s: Any, z: Any) -> Any:
        """`rint(x · f32(1 / s)) + z`"""
        return (x * (xp.one / s)).round() + z

    def reciprocal_offset(x: Any, s: Any, z: Any) -> Any:
        """`rint(f32(x · f32(1 / s)) + z)`"""
        return (x * (xp.one / s) + z).round()

    def reciprocal_fma(x: Any, s: Any, z: Any) -> Any:
        """`rint(fma(x, f32(1 / s), z))`"""
        return xp.fma(x, xp.one / s, z).round()

    def premultiplied(x: Any, s: Any, z: Any) -> Any:
        """`rint(x · f32(1 / s)) + z`, where inputs are dequantized as `fma(q, s, f32(-z · s))`

        The vectorized kernels of PyTorch; the last elements of a run of 64 are computed by `reciprocal_offset`.
        """
        return reciprocal(x, s, z)

    return {rule.__name__: rule for rule in (divide, reciprocal, reciprocal_offset, reciprocal_fma, premultiplied)}


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """`a · b + c` in float32 with one rounding.

    The product is exact in float64. Rounding the sum to float64 and then to float32 is almost always correct. It may
    be wrong if the float64 is half-way between two float32, or below the normal float32 numbers.
    """
    product = np.asarray(a.astype(np.float64) * b.astype(np.float64))
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    result = np.asarray(total.astype(f32))
    half_way = total.view(np.int64) & 0x1FFFFFFF == 0x10000000
    unsure = half_way | ((np.abs(total) < 2.0**-125) & (total != 0))
    if unsure.any():
        shape = total.shape
        parts = (np.broadcast_to(each, shape)[unsure] for each in (product, addend))
        result[unsure] = sum_rounded_once(np, *parts)
    return result


def sum_rounded_once(lib: Any, a: Any, b: Any) -> Any:
    """The sum of float64 values, rounded to odd in float64, so that rounding it to float32 is as if from the exact sum
    (Boldo and Melquiond, "When double rounding is odd")."""
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    bits = total.view(lib.int64)
    inexact_even = (error != 0) & (bits & 1 == 0) & lib.isfinite(total)
    towards = lib.where((error > 0) == (total > 0), 1, -1)
    return (bits + lib.where(inexact_even, towards, 0)).view(lib.float64)


NUMPY = Namespace(np, partial(np.asarray, dtype=f32), partial(np.asarray, dtype=np.float64), fma, f32(1))
QUANTIZE = quantize_rules(NUMPY)
"""`quantize_rules` of NumPy."""


def named(rules: Mapping[str, Any], rule: str) -> Any:
    """The rule with that name; RunError if this version of qfmt does not support it."""
    if rule not in rules:
        raise RunError(f"the rounding rule {rule!r} is not supported here", hint=f"use one of {', '.join(rules)}")
    return rules[rule]
