"""Every rounding rule, once. Formulas as in spec.md, "Arithmetic"; everything else calls these.

`f32` is rounding to float32, `rint` rounding half to even, `clamp` to [quant_min, quant_max] of the
result. `s` and `z` are scale and zero point. A fused multiply-add rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import RunError
from .model import DTYPES, Quantization

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float32]

f32 = np.float32

EXACT_IN_FLOAT32 = 1 << 24
"""Integers up to this are exact in float32; in float64 up to 2**53."""


def dequantize(values: Array, quantization: Quantization, rule: str = "") -> Floats:
    """`f32(q - z) · f32(s)`: float32, of the shape of `values`. The rule `premultiplied` has a form of its own."""
    rank = np.ndim(values)
    scale = quantization.scales(rank, f32)
    if _is_float(np.asarray(values).dtype):
        return values.astype(f32) * scale
    if quantization.has_float_zero_points:
        return (values.astype(f32) - quantization.zero_points(rank)) * scale
    if rule == "premultiplied":
        return fma(values.astype(f32), scale, scale * -quantization.zero_points(rank).astype(f32))
    wide = np.int32 if np.asarray(values).dtype.itemsize < 4 else np.int64  # holds every difference
    centred = np.subtract(values, quantization.zero_points(rank), dtype=wide)
    return centred.astype(f32) * scale


def quantize(values: Floats, quantization: Quantization, dtype: np.dtype[Any], rule: str) -> Array:
    """float32 → integers by a quantize rule (a key of QUANTIZE). NaN becomes quant_min.

    Floats of 8 and 4 bits: `x / s` or, by every rule but `divide`, `x · f32(1 / s)`, clamped, and rounded half to even
    to `dtype`. NaN stays NaN in those of 8 bits.
    """
    rank = np.ndim(values)
    scale = quantization.scales(rank, f32)
    if _is_float(dtype):
        named(QUANTIZE, rule)
        with np.errstate(over="ignore", invalid="ignore"):
            x = values.astype(f32, copy=False)
            scaled = np.asarray(x / scale if rule == "divide" else x * (f32(1) / scale))
        return _clamp_float(scaled, quantization, dtype)
    zero_point = quantization.zero_points(rank).astype(f32)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = named(QUANTIZE, rule)(values.astype(f32, copy=False), scale, zero_point)
    return clamp(rounded, quantization, dtype)


def clamp(rounded: Array, quantization: Quantization, dtype: np.dtype[Any]) -> Array:
    """Integral values (float or integer) into the range of the result, as integers of `dtype`; NaN → quant_min."""
    low, high = quantization.quant_min, quantization.quant_max
    if rounded.dtype.kind != "f":
        return np.clip(rounded, low, high).astype(dtype)
    if max(-low, high) > EXACT_IN_FLOAT32:  # float32 would round the limit of int32 up, and out of its range
        rounded = rounded.astype(np.float64)
    kind = rounded.dtype.type
    return np.minimum(np.fmax(rounded, kind(low)), kind(high)).astype(dtype)


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float type, of ml_dtypes too (some of which NumPy takes for raw bytes)."""
    return dtype.kind == "f" or DTYPES[dtype.name].kind == "f"


def _clamp_float(scaled: Floats, quantization: Quantization, dtype: np.dtype[Any]) -> Array:
    """float32 into the range of the result, then half to even to a float of 8 or 4 bits; 4 bits have no NaN."""
    low, high = f32(quantization.quant_min), f32(quantization.quant_max)
    at_least = np.fmax(scaled, low) if DTYPES[dtype.name].bits < 8 else np.maximum(scaled, low)
    return np.minimum(at_least, high).astype(dtype)


def _divide(x: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(x / s) + z`"""
    return np.rint(x / s) + z


def _reciprocal(x: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(x · f32(1 / s)) + z`"""
    return np.rint(x * (f32(1) / s)) + z


def _reciprocal_offset(x: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(f32(x · f32(1 / s)) + z)`"""
    return np.rint(x * (f32(1) / s) + z)


def _reciprocal_fma(x: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(fma(x, f32(1 / s), z))`"""
    return np.rint(fma(x, f32(1) / s, z))


def _premultiplied(x: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(x · f32(1 / s)) + z`, where inputs are dequantized as `fma(q, s, f32(-z · s))`

    The vectorized kernels of PyTorch; the last elements of a run of 64 are computed by `reciprocal_offset`.
    """
    return _reciprocal(x, s, z)


QUANTIZE: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "divide": _divide,
    "reciprocal": _reciprocal,
    "reciprocal_offset": _reciprocal_offset,
    "reciprocal_fma": _reciprocal_fma,
    "premultiplied": _premultiplied,
}
"""Rules that turn a real number into an integer; before the clamp."""


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """`a · b + c` in float32 with one rounding.

    The product is exact in float64, and the sum nearly always comes out right when it is rounded there and then to
    float32. It may not where float64 ends up half-way between two float32, or below the normal ones.
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
        result[unsure] = _sum_rounded_once(*parts)
    return result


def _sum_rounded_once(a: Array, b: Array) -> Floats:
    """The sum of float64 values, rounded to float32 only.

    It is first rounded to odd in float64, which makes the second rounding come out as if it were the only one
    (Boldo and Melquiond, "When double rounding is odd").
    """
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    bits = total.view(np.int64)
    inexact_even = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    towards = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where(inexact_even, towards, 0)).view(np.float64).astype(f32)


def _float_bias(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(F · f32(at / s)) + z`, `F` = `f32(f32(acc) + b / at)`, or `fma(b, f32(1 / at), f32(acc))` per tensor

    fbgemm with a float bias: the bias is brought to the accumulator's unit. Per tensor is what a 0-d `at` says.
    """
    total = acc.astype(f32, copy=False)
    if bias.any():
        total = fma(bias, np.asarray(f32(1) / at), total) if at.ndim == 0 else total + bias / at
    return np.rint(total * (at / s)) + z


def _integer_bias(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(f32(acc + rint(b / at)) · f32(at / s)) + z`"""
    whole = np.rint(bias / at).astype(np.float64)
    return np.rint((acc + whole).astype(f32) * (at / s)) + z


def _integer_bias_reciprocal(acc: Array, bias: Floats, at: Floats, s: Floats, z: Floats) -> Floats:
    """`rint(f32(acc + rint(b · f32(1 / at))) · f32(at · f32(1 / s))) + z`"""
    whole = np.rint(bias * (f32(1) / at)).astype(np.float64)
    return np.rint((acc + whole).astype(f32) * (at * (f32(1) / s))) + z


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


SMALLEST_SCALE = float(f32(6.1e-5))
"""What PyTorch raises the scale of a dynamic grid to."""


def _nudged_grid(low: float, high: float, top: int) -> tuple[float, int]:
    """`s = (high - low) / top`, `z = rint(-low / s)`, in float64; narrow ranges are stretched"""
    scale = (high - low) / top
    if f32(scale) == 0 or np.isinf(f32(1) / f32(scale)):
        scale = 0.1
    if scale < SMALLEST_SCALE:
        low, scale = float(f32(low) * (f32(SMALLEST_SCALE) / f32(scale))), SMALLEST_SCALE
    return scale, min(round(-low / scale), top)


def _divided_grid(low: float, high: float, top: int) -> tuple[float, int]:
    """`s = f32(f32(high - low) / top)`, `z = rint(f32(-low / s))`; s = 1 for a range of 0"""
    scale = (f32(high) - f32(low)) / f32(top) or f32(1)
    return float(scale), int(np.rint(-f32(low) / scale))


LEAST_SCALE = 2.0**-12
"""What PT2E puts into a program as the least scale of a dynamic grid."""


def _floored_grid(low: float, high: float, top: int) -> tuple[float, int]:
    """`s = max(f32(f32(high - low) / top), 2⁻¹²)`, `z = clamp(-rint(f32(low / s)))`"""
    scale = max((f32(high) - f32(low)) / f32(top), f32(LEAST_SCALE))
    return float(scale), min(max(-int(np.rint(f32(low) / scale)), 0), top)


SYMMETRIC_LEAST_SCALE = 2.0**-23
"""What torchao raises the scale of the dynamic grids of its int8 layers to."""


def _symmetric_grid(low: float, high: float, top: int) -> tuple[float, int]:
    """`s = max(f32(max(-low, high) / (top / 2)), 2⁻²³)`, `z = 0`"""
    return float(max(f32(max(-low, high)) / f32(top / 2), f32(SYMMETRIC_LEAST_SCALE))), 0


def _dynamic_fma(acc: Floats, bias: Floats, s: Array, sw: Array) -> Floats:
    """`fma(f32(acc), f32(s · sw), b)`"""
    return fma(acc, s.astype(f32) * sw.astype(f32), bias)


def _dynamic_add(acc: Floats, bias: Floats, s: Array, sw: Array) -> Floats:
    """`f32(f32(acc) · f32(s · sw)) + b`"""
    return acc * (s.astype(f32) * sw.astype(f32)) + bias


def _dynamic_inverse(acc: Floats, bias: Floats, s: Array, sw: Array) -> Floats:
    """`f32(f32(acc) · f32(i(s) · i(sw))) + b`, `i(s) = f32(1 / f32(1 / s))`"""
    return acc * ((f32(1) / (1 / s).astype(f32)) * (f32(1) / (1 / sw).astype(f32))) + bias


def _dynamic_twice(acc: Floats, bias: Floats, s: Array, sw: Array) -> Floats:
    """`f32(f32(f32(acc) · s) · sw) + b`"""
    return acc * s.astype(f32) * sw.astype(f32) + bias


class Dynamic(NamedTuple):
    """A rule for an input that is quantized while the network runs: how its range becomes a grid, the quantize rule
    (a key of QUANTIZE), and how exact sums of integers become real numbers."""

    grid: Callable[[float, float, int], tuple[float, int]]
    quantize: str
    real: Callable[[Floats, Floats, Array, Array], Floats]
    is_signed: bool = False


DYNAMIC: dict[str, Dynamic] = {
    "dynamic_fma": Dynamic(_nudged_grid, "reciprocal_fma", _dynamic_fma),
    "dynamic_add": Dynamic(_nudged_grid, "reciprocal_fma", _dynamic_add),
    "dynamic_inverse": Dynamic(_nudged_grid, "reciprocal_offset", _dynamic_inverse),
    "dynamic_divide": Dynamic(_divided_grid, "divide", _dynamic_add),
    "dynamic_reciprocal": Dynamic(_floored_grid, "reciprocal", _dynamic_add),
    "dynamic_symmetric": Dynamic(_symmetric_grid, "reciprocal", _dynamic_twice, is_signed=True),
}
"""Rules that quantize a float32 input to uint8, or int8, and turn exact integer sums into float32. `s` is the scale of
the input."""


def quantize_dynamically(x: Floats, rule: str, top: int) -> tuple[Array, Quantization]:
    """float32 → uint8, and the grid that its range gives: [min(x, 0), max(x, 0)] on 0..top, clamped to 0..255.

    A rule that is signed gives int8, clamped to -(top + 1) / 2..(top - 1) / 2. Raises RunError if x holds NaN or
    infinity, and has no range.
    """
    dynamic: Dynamic = named(DYNAMIC, rule)
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if not np.isfinite(high - low):
        raise RunError("NaN or infinity cannot be quantized: there is no range")
    scale, zero_point = dynamic.grid(low, high, top)
    if dynamic.is_signed:
        grid = Quantization((scale,), (zero_point,), -(top + 1) // 2, top // 2)
        return quantize(x, grid, np.dtype(np.int8), dynamic.quantize), grid
    grid = Quantization.per_tensor(scale, zero_point, "uint8", scale_dtype="float64")
    return quantize(x, grid, np.dtype(np.uint8), dynamic.quantize), grid


def dequantize_sums(acc: Array, bias: Array | None, input_scale: Array, weight_scale: Array, rule: str) -> Floats:
    """Exact integer sums → float32 by a dynamic rule (a key of DYNAMIC); arguments as in `requantize`, but the scale of
    the input broadcasts against `acc`, too."""
    addend = np.zeros((), f32) if bias is None else bias.astype(f32, copy=False)
    dynamic: Dynamic = named(DYNAMIC, rule)
    return dynamic.real(acc.astype(f32, copy=False), addend, input_scale, np.asarray(weight_scale))


def _lookup_float32(s: Floats, z: Floats) -> tuple[Floats, Floats]:
    """`fma(f32(q), s, f32(-z · s))`"""
    return s, -z * s


def _lookup_float16(s: Floats, z: Floats) -> tuple[Floats, Floats]:
    """`fma(f32(q), f16(s), f16(f32(-z · s)))`"""
    return s.astype(np.float16).astype(f32), (-z * s).astype(np.float16).astype(f32)


LOOKUP: dict[str, Callable[[Floats, Floats], tuple[Floats, Floats]]] = {
    "lookup_float32": _lookup_float32,
    "lookup_float16": _lookup_float16,
}
"""Rules for rows of a table: scales and zero points → slopes and offsets, `real = fma(f32(q), slope, offset)`."""


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
"""Rules that turn an int32 x into an output integer by integers alone, in int64; before zero point and clamp.

`half` is 2^(shift - 1), and 0 where shift is 0. `>>` rounds down. Arguments that a rule does not take are ignored.
"""


def named(rules: Mapping[str, Any], rule: str) -> Any:
    """The rule of that name; RunError if this version of qfmt does not know it."""
    if rule not in rules:
        raise RunError(f"arithmetic rule {rule!r} is not known here", hint=f"known are {', '.join(rules)}")
    return rules[rule]
