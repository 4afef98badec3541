"""Exact sums of integers onto a grid: with real numbers, as engines do, and with integers only."""

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

    fbgemm with a float bias: the bias is brought to the accumulator's unit. Per tensor is what a 0-d `at` says.
    """
    total = acc.astype(f32, copy=False)
    if bias.any():
        total = fma(bias, np.asarray(f32(1) / at), total) if at.ndim == 0 else total + bias / at
    return np.rint(total * (at / s)) + z


def whole_bias(bias: Array, at: Array, rule: str) -> Array:
    """A real bias in units of sums, `at`, as a requantize rule rounds it: by division, unless it takes the reciprocal.

    In float64, since int32 may not hold it.
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
"""Rules that turn an exact integer accumulator into an output integer; before the clamp.

`at` = `f32(f32(sx) · f32(sw))` is the accumulator's unit, `s` and `z` are the output's.
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
    """Accumulators → output integers by a requantize rule (a key of REQUANTIZE).

    `acc` holds exact integers, of any dtype. `weight_scale` is 0-d if the weight is quantized per tensor; else it
    broadcasts against `acc`, as does `bias`, which is real (float32) or None.
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
"""Rules that turn an exact integer sum of n centred integers into their mean, on the same grid; before the clamp."""


def rescale(total: Array, multiplier: np.float32, output: Quantization, dtype: np.dtype[Any]) -> Array:
    """Exact integers → output integers: `rint(f32(total) · multiplier) + z`."""
    return clamp(np.rint(total.astype(f32) * multiplier) + f32(output.zero_point[0]), output, dtype)


def _half(shift: Array) -> Array:
    return (np.int64(1) << shift) >> 1


def _multiply_shift(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x · m + add) >> shift`"""
    return (x * m + add) >> shift


def _fixed_point_single(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x · m + half) >> shift`

    TFLite and CMSIS-NN where they are built to round once, and TOSA's RESCALE with SINGLE_ROUND.
    """
    return (x * m + _half(shift)) >> shift


def _fixed_point_double(x: Array, m: Array, shift: Array, add: Array) -> Array:
    """`(x · m + half ± 2³⁰) >> shift`, + where x ≥ 0, and 0 instead of 2³⁰ where shift ≤ 31

    As if the product were rounded at bit 31, halves up, and the quotient once more, halves away from zero: gemmlowp,
    TFLite and CMSIS-NN. TOSA's RESCALE with DOUBLE_ROUND, whose formula this is.
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
"""Rules that turn an int32 x into an output integer with integers only, in int64; before zero point and clamp.

`half` is 2^(shift - 1), and 0 where shift is 0. `>>` rounds down. Arguments that a rule does not take are ignored.
"""
