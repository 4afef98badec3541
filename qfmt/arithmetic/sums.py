"""Requantization of exact integer sums: with floats, as engines do, and integer-only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Array
from ..quantization import Quantization
from .grids import clamp, f32, fma, named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def _float_bias(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(F · f32(at / s)) + z`, `F` = `f32(f32(acc) + b / at)`, or `fma(b, f32(1 / at), f32(acc))` per tensor

    fbgemm with a float bias, which is converted to the accumulator's unit. `at` is 0-d if the weight is per tensor.
    """
    total = acc.astype(f32, copy=False)
    if bias.any():
        total = fma(bias, np.asarray(f32(1) / at), total) if at.ndim == 0 else total + bias / at
    return np.rint(total * (at / s)) + z


def whole_bias(bias: Array, at: Array, rule: str) -> Array:
    """Quantize a real bias with the scale of the sums, `at`, by division or by the reciprocal, depending on the
    requantize rule.

    The result is float64, since it may exceed int32.
    """
    real = bias.astype(f32, copy=False)
    return np.rint(real * (f32(1) / at) if rule == "integer_bias_reciprocal" else real / at).astype(np.float64)


def _integer_bias(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(f32(acc + rint(b / at)) · f32(at / s)) + z`"""
    return np.rint((acc + whole_bias(bias, at, "integer_bias")).astype(f32) * (at / s)) + z


def _integer_bias_reciprocal(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(f32(acc + rint(b · f32(1 / at))) · f32(at · f32(1 / s))) + z`"""
    return np.rint((acc + whole_bias(bias, at, "integer_bias_reciprocal")).astype(f32) * (at * (f32(1) / s))) + z


def _affine(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(f32(f32(f32(acc) · at + b) · f32(1 / s)) + z)`"""
    return np.rint((acc.astype(f32, copy=False) * at + bias) * (f32(1) / s) + z)


REQUANTIZE: dict[str, Callable[[Array, Floats, Floats, Floats, Floats], Floats]] = {
    "float_bias": _float_bias,
    "integer_bias": _integer_bias,
    "integer_bias_reciprocal": _integer_bias_reciprocal,
    "affine": _affine,
}
"""Rules that requantize an exact integer accumulator, before the clamp.

`at` = `f32(f32(sx) · f32(sw))` is the scale of the accumulator, `s` and `z` are scale and zero point of the output.
"""


def requantize(
    acc: Array,
    bias: Array | None,
    input_scale: float,
    weight_scale: Array,
    output: Quantization,
    dtype: np.dtype[Any],
    rule: str,
) -> Array:
    """Requantize accumulators to output integers by a requantize rule (a key of REQUANTIZE).

    `acc` contains exact integers of any dtype. `weight_scale` is 0-d for a per-tensor weight; else it broadcasts
    against `acc`. `bias` is None, or a float32 array that broadcasts against `acc`.
    """
    at = f32(input_scale) * np.asarray(weight_scale).astype(f32)
    addend = np.zeros((), f32) if bias is None else bias.astype(f32, copy=False)
    scale, zero_point = f32(output.scale[0]), f32(output.zero_point[0])
    return clamp(named(REQUANTIZE, rule)(acc, addend, at, scale, zero_point), output, dtype)


def _mean_divide_offset(total: Array, count: Floats, z: Floats) -> Floats:
    """`rint(f32(f32(Σ) / n) + z)`"""
    return np.rint(total.astype(f32) / count + z)


def _mean_reciprocal(total: Array, count: Floats, z: Floats) -> Floats:
    """`rint(f32(Σ) · f32(1 / n)) + z`"""
    return np.rint(total.astype(f32) * (f32(1) / count)) + z


def _mean_reciprocal_fma(total: Array, count: Floats, z: Floats) -> Floats:
    """`rint(fma(f32(Σ), f32(1 / n), z))`"""
    return np.rint(fma(total.astype(f32), np.asarray(f32(1) / count), np.asarray(z)))


def _mean_stored(total: Array, count: Floats, z: Floats) -> Floats:
    """`rint(f32(Σ + n · z) · f32(1 / n))`"""
    return np.rint((total + count.astype(np.float64) * z).astype(f32) * (f32(1) / count))


MEAN: dict[str, Callable[[Array, Floats, Floats], Floats]] = {
    "mean_divide_offset": _mean_divide_offset,
    "mean_reciprocal": _mean_reciprocal,
    "mean_reciprocal_fma": _mean_reciprocal_fma,
    "mean_stored": _mean_stored,
}
"""Rules that compute the mean of n centred integers from their exact sum, with the same scale and zero point, before
the clamp."""


def rescale(total: Array, multiplier: np.float32, output: Quantization, dtype: np.dtype[Any]) -> Array:
    """Rescale exact integers to output integers: `rint(f32(total) · multiplier) + z`."""
    return clamp(np.rint(total.astype(f32) * multiplier) + f32(output.zero_point[0]), output, dtype)


def _half(shift: Array) -> Array:
    return (np.int64(1) << shift) >> 1


def _multiply_shift(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x · m + add) >> shift`"""
    return (x * m + add) >> shift


def _fixed_point_single(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x · m + half) >> shift`

    TFLite and CMSIS-NN if they are built with single rounding, and TOSA's RESCALE with SINGLE_ROUND.
    """
    return (x * m + _half(shift)) >> shift


def _fixed_point_double(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x · m + half ± 2³⁰) >> shift`: + if x ≥ 0, else -; 0 instead of 2³⁰ if shift ≤ 31

    The formula is that of TOSA's RESCALE with DOUBLE_ROUND. It equals rounding the product at bit 31, half up, then
    rounding the quotient half away from zero, as gemmlowp, TFLite and CMSIS-NN do.
    """
    first = np.where(shift > 31, np.int64(1 << 30), np.int64(0))
    return (x * m + _half(shift) + np.where(x >= 0, first, -first)) >> shift


def _power_of_two(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x + half) >> shift`"""
    return (x + _half(shift)) >> shift


FIXED_POINT: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "multiply_shift": _multiply_shift,
    "fixed_point_single": _fixed_point_single,
    "fixed_point_double": _fixed_point_double,
    "power_of_two": _power_of_two,
}
"""Integer-only rules that requantize an int32 x, in int64, before zero point and clamp.

`half` is 2^(shift - 1), or 0 if shift is 0. `>>` rounds down. A rule ignores the arguments that it does not need.
"""
