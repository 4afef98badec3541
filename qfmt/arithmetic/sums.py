"""Requantization of exact integer sums: with floats, as engines do, and integer-only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Array
from ..quantization import Quantization
from .quantizing import NUMPY, Namespace, clamp, f32, fma, named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


Step = tuple[str, Any]
"""A step after an exact sum, rounded once to float32, and its numbers: add, mul, round; `sum`: add an integer, exactly;
`fma`: of two numbers, the first times the second plus the sum."""

Steps = Callable[[Any, Any, Any, Any], list[Step]]


def requantize_steps(xp: Namespace) -> dict[str, Steps]:
    """Rules that requantize an exact integer accumulator, before the clamp: functions that return the steps.

    `at` = `f32(f32(sx) · f32(sw))` is the scale of the accumulator, 0-d if the weight is per tensor; `s` and `z` are
    scale and zero point of the output.
    """

    def float_bias(bias: Any, at: Any, s: Any, z: Any) -> list[Step]:
        """`rint(F · f32(at / s)) + z`, `F` = `f32(f32(acc) + b / at)`, or `fma(b, f32(1 / at), f32(acc))` per tensor

        fbgemm with a float bias, which is converted to the accumulator's unit.
        """
        first = ("fma", (bias, xp.one / at)) if at.ndim == 0 else ("add", bias / at)
        return [first, ("mul", at / s), ("round", None), ("add", z)]

    def integer_bias(bias: Any, at: Any, s: Any, z: Any) -> list[Step]:
        """`rint(f32(acc + rint(b / at)) · f32(at / s)) + z`"""
        return [("sum", (bias / at).round()), ("mul", at / s), ("round", None), ("add", z)]

    def integer_bias_reciprocal(bias: Any, at: Any, s: Any, z: Any) -> list[Step]:
        """`rint(f32(acc + rint(b · f32(1 / at))) · f32(at · f32(1 / s))) + z`"""
        return [("sum", (bias * (xp.one / at)).round()), ("mul", at * (xp.one / s)), ("round", None), ("add", z)]

    def affine(bias: Any, at: Any, s: Any, z: Any) -> list[Step]:
        """`rint(f32(f32(f32(acc) · at + b) · f32(1 / s)) + z)`"""
        return [("mul", at), ("add", bias), ("mul", xp.one / s), ("add", z), ("round", None)]

    return {rule.__name__: rule for rule in (float_bias, integer_bias, integer_bias_reciprocal, affine)}


def has_effect(step: Step) -> bool:
    """Whether a step may change a sum: adding zeros does not."""
    name, numbers = step
    return name in ("mul", "round") or bool((numbers[0] if name == "fma" else numbers).any())


def _after(steps: Steps) -> Callable[[Array, Floats, Floats, Floats, Floats], Floats]:
    """The rule as a function of the accumulator and the arguments of `steps`."""

    @wraps(steps)
    def rule(acc: Any, *numbers: Floats) -> Any:
        for name, given in filter(has_effect, steps(*numbers)):
            if name == "sum":
                acc = f32(acc + given.astype(np.float64))
            elif name == "fma":
                acc = fma(given[0], given[1], NUMPY.f32(acc))
            elif name == "mul":
                acc = NUMPY.f32(acc) * given
            else:
                acc = np.rint(acc) if name == "round" else NUMPY.f32(acc) + given
        return acc

    return rule


REQUANTIZE = {name: _after(steps) for name, steps in requantize_steps(NUMPY).items()}
"""`requantize_steps` as functions of NumPy: (accumulator, bias, at, s, z) → rounded results, before the clamp."""


def whole_bias(bias: Array, at: Array, rule: str) -> Array:
    """Quantize a real bias with the scale of the sums, `at`, by division or by the reciprocal, depending on the
    requantize rule.

    The result is float64, since it may exceed int32.
    """
    real = bias.astype(f32, copy=False)
    with np.errstate(all="ignore"):  # scales may underflow to 0
        return np.rint(real * (f32(1) / at) if rule == "integer_bias_reciprocal" else real / at).astype(np.float64)


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


Mean = Callable[[Any, Any, Any], Any]


def mean_rules(xp: Namespace) -> dict[str, Mean]:
    """Rules that compute the mean of n centred integers from their exact sum, with the same scale and zero point,
    before the clamp."""

    def mean_divide_offset(total: Any, count: Any, z: Any) -> Any:
        """`rint(f32(f32(Σ) / n) + z)`"""
        return (xp.f32(total) / count + z).round()

    def mean_reciprocal(total: Any, count: Any, z: Any) -> Any:
        """`rint(f32(Σ) · f32(1 / n)) + z`"""
        return (xp.f32(total) * (xp.one / count)).round() + z

    def mean_reciprocal_fma(total: Any, count: Any, z: Any) -> Any:
        """`rint(fma(f32(Σ), f32(1 / n), z))`"""
        return xp.fma(xp.f32(total), xp.one / count, z).round()

    def mean_stored(total: Any, count: Any, z: Any) -> Any:
        """`rint(f32(Σ + n · z) · f32(1 / n))`"""
        return (xp.f32(xp.f64(total) + xp.f64(count) * z) * (xp.one / count)).round()

    rules = (mean_divide_offset, mean_reciprocal, mean_reciprocal_fma, mean_stored)
    return {rule.__name__: rule for rule in rules}


MEAN = mean_rules(NUMPY)
"""`mean_rules` of NumPy."""


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
    """`(x · m + half + c) >> shift`: c is 0 if shift ≤ 31, otherwise 2³⁰ if x ≥ 0 and -2³⁰ if x < 0

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
