"""Compares every rounding rule with its formula in exact fractions, rounded to float32 where the formula rounds."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qfmt.arithmetic import MEAN, QUANTIZE, REQUANTIZE, clamp, dequantize, fma, quantize, requantize, rescale
from qfmt.errors import RunError
from qfmt.model import DTYPES, Quantization

LARGEST = (2 - Fraction(1, 2**23)) * 2**127


def f32(x: Fraction | int) -> Fraction:
    """The float32 nearest to x, half to even; x itself beyond the largest float32."""
    x = Fraction(x)
    if x == 0:
        return x
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    if abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    return round(x / step) * step


def fused(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return f32(a * b + c)


def real(value: np.float32 | float) -> Fraction:
    return Fraction(float(value))


def test_the_witness_rounds_as_float32_does() -> None:
    rng = np.random.default_rng(0)
    for value in [*rng.normal(0, 1, 500) * 10.0 ** rng.integers(-46, 38, 500), 2.0**-149, 2.0**-150, 1e-60, 0.1]:
        assert f32(Fraction(value)) == real(np.float32(value))


# The fused multiply-add

floats = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(floats, floats, floats)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    check_fma(np.array([a], np.float32), np.array([b], np.float32), np.array([c], np.float32))


@given(
    odd=st.integers(2**22, 2**23 - 1).map(lambda k: 2 * k + 1),
    step=st.integers(1, 1000),
    exponent=st.integers(-120, 100),
    signs=st.tuples(st.sampled_from([1, -1]), st.sampled_from([1, -1])),
)
def test_fma_rounds_once_where_two_roundings_would_not_do(
    odd: int, step: int, exponent: int, signs: tuple[int, int]
) -> None:
    """The last bit of c is set, and a · b is (1 - step² / 2⁴⁶) / 2 of that bit: float64 cannot tell it from a
    half."""
    scale = 2.0**exponent
    a = np.array([(1 + step * 2.0**-23) * scale], np.float32)
    b = np.array([(1 - step * 2.0**-23) / 2 * signs[0]], np.float32)
    c = np.array([odd * scale * signs[1]], np.float32)
    check_fma(a, b, c)


@given(odd=st.integers(2**20, 2**22 - 1).map(lambda k: 2 * k + 1), step=st.integers(1, 1000))
def test_fma_rounds_once_below_the_normal_numbers(odd: int, step: int) -> None:
    """The same for subnormal numbers: c is an odd multiple of the smallest float32."""
    a = np.array([(1 + step * 2.0**-23) * 2.0**-70], np.float32)
    b = np.array([(1 - step * 2.0**-23) * 2.0**-80], np.float32)
    check_fma(a, b, np.array([odd * 2.0**-149], np.float32))


def check_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        found = fma(a, b, c)
    assert found.dtype == np.float32
    for x, y, z, result in zip(a, b, c, found, strict=True):
        expected = fused(real(x), real(y), real(z))
        if abs(expected) > LARGEST:
            assert np.isinf(result)
        else:
            assert real(result) == expected, (x, y, z)


def test_fma_of_infinity_and_nan_is_that_of_floats() -> None:
    infinity, nan, one = (np.array([value], np.float32) for value in (np.inf, np.nan, 1))
    with np.errstate(invalid="ignore"):
        assert fma(infinity, one, one)[0] == np.inf
        assert np.isnan(fma(infinity, one, -infinity)[0])
        assert np.isnan(fma(nan, one, one)[0])


# The rules: x or acc, then scale s, zero point z, as float32

Rule = Callable[..., Fraction]

QUANTIZE_FORMULAS: dict[str, Rule] = {
    "divide": lambda x, s, z: f32(round(f32(x / s)) + z),
    "reciprocal": lambda x, s, z: f32(round(f32(x * f32(1 / s))) + z),
    "reciprocal_offset": lambda x, s, z: Fraction(round(f32(f32(x * f32(1 / s)) + z))),
    "reciprocal_fma": lambda x, s, z: Fraction(round(fused(x, f32(1 / s), z))),
    "premultiplied": lambda x, s, z: f32(round(f32(x * f32(1 / s))) + z),
}

REQUANTIZE_FORMULAS: dict[str, Rule] = {
    "float_bias": lambda acc, b, at, s, z: f32(round(f32(fused(b, f32(1 / at), f32(acc)) * f32(at / s))) + z),
    "integer_bias": lambda acc, b, at, s, z: f32(round(f32(f32(acc + round(f32(b / at))) * f32(at / s))) + z),
    "integer_bias_reciprocal": lambda acc, b, at, s, z: f32(
        round(f32(f32(acc + round(f32(b * f32(1 / at)))) * f32(at * f32(1 / s)))) + z
    ),
    "affine": lambda acc, b, at, s, z: Fraction(round(f32(f32(f32(f32(f32(acc) * at) + b) * f32(1 / s)) + z))),
}

MEAN_FORMULAS: dict[str, Rule] = {
    "mean_divide_offset": lambda total, n, z: Fraction(round(f32(f32(f32(total) / n) + z))),
    "mean_reciprocal": lambda total, n, z: f32(round(f32(f32(total) * f32(1 / n))) + z),
    "mean_reciprocal_fma": lambda total, n, z: Fraction(round(fused(f32(total), f32(1 / n), z))),
    "mean_stored": lambda total, n, z: Fraction(round(f32(f32(total + n * z) * f32(1 / n)))),
}


def test_every_rule_has_a_formula_here() -> None:
    assert QUANTIZE_FORMULAS.keys() == QUANTIZE.keys()
    assert REQUANTIZE_FORMULAS.keys() == REQUANTIZE.keys()
    assert MEAN_FORMULAS.keys() == MEAN.keys()


scales = st.floats(2.0**-16, 128, width=32)
zero_points = st.integers(0, 255)
halves = st.integers(-1000, 1000).map(lambda k: k / 2)


def near(steps: float, unit: np.float32, ulps: int) -> np.float32:
    """`steps` units, or a float32 that is `ulps` away."""
    value = np.float32(steps) * unit
    for _ in range(abs(ulps)):
        value = np.nextafter(value, np.float32(np.copysign(np.inf, ulps)))
    return value


@pytest.mark.parametrize("rule", QUANTIZE)
@given(steps=halves, ulps=st.integers(-2, 2), scale=scales, zero_point=zero_points)
def test_quantize_rules(rule: str, steps: float, ulps: int, scale: float, zero_point: int) -> None:
    s = np.float32(scale)
    x = near(steps, s, ulps)
    expected = QUANTIZE_FORMULAS[rule](real(x), real(s), Fraction(zero_point))
    q = Quantization.of((float(s),), (zero_point,), -(2**15), 2**15 - 1)
    assert int(quantize(np.array(x), q, np.dtype(np.int16), rule)) == expected


@pytest.mark.parametrize("rule", REQUANTIZE)
@given(
    acc=st.one_of(st.integers(-(2**20), 2**20), st.integers(-(2**31), 2**31 - 1)),
    steps=halves,
    at=st.floats(2.0**-20, 2.0**-6, width=32),
    scale=st.floats(2.0**-10, 128, width=32),
    zero_point=zero_points,
)
def test_requantize_rules(rule: str, acc: int, steps: float, at: float, scale: float, zero_point: int) -> None:
    """The bias brings the sum close to a tie; per channel, float_bias divides instead of multiplying."""
    unit, s = np.float32(at), np.float32(scale)
    b = np.float32(steps * float(s) - acc * float(unit)) if abs(acc) <= 2**20 else np.float32(0)
    arguments = (Fraction(acc), real(b), real(unit), real(s), Fraction(zero_point))
    expected = REQUANTIZE_FORMULAS[rule](*arguments)
    q = Quantization.of((float(s),), (zero_point,), -(2**31), 2**31 - 1)
    given_ = (np.array(acc, np.int64), np.array(b), 1.0)
    ours = requantize(*given_, np.array(float(unit)), q, np.dtype(np.int64), rule)
    assert int(ours) == max(-(2**31), min(expected, 2**31 - 1))
    if rule == "float_bias":
        total = f32(f32(acc) + f32(real(b) / real(unit)))
        divided = f32(round(f32(total * f32(real(unit) / real(s)))) + zero_point)
        ours = requantize(np.array([acc]), np.array([b]), 1.0, np.array([float(unit)]), q, np.dtype(np.int64), rule)
        assert int(ours[0]) == max(-(2**31), min(divided, 2**31 - 1))


@pytest.mark.parametrize("rule", MEAN)
@given(total=st.integers(-(2**22), 2**22), count=st.integers(1, 3000), zero_point=zero_points)
def test_mean_rules(rule: str, total: int, count: int, zero_point: int) -> None:
    expected = MEAN_FORMULAS[rule](Fraction(total), Fraction(count), Fraction(zero_point))
    assert MEAN[rule](np.array(total), np.array(count, np.float32), np.float32(zero_point)) == expected


@given(total=st.integers(-(2**33), 2**33), multiplier=st.floats(2.0**-20, 8, width=32), zero_point=zero_points)
def test_rescale(total: int, multiplier: float, zero_point: int) -> None:
    q = Quantization.per_tensor(1.0, zero_point, "int32")
    expected = f32(round(f32(f32(total) * real(np.float32(multiplier)))) + zero_point)
    ours = rescale(np.array(total, np.int64), np.float32(multiplier), q, np.dtype(np.int64))
    assert int(ours) == max(-(2**31), min(expected, 2**31 - 1))


# Grids


@given(scale=scales, zero_point=zero_points)
def test_quantize_inverts_dequantize_for_every_integer(scale: float, zero_point: int) -> None:
    q = Quantization.per_tensor(float(np.float32(scale)), zero_point, "uint8")
    every = np.arange(256).astype(np.uint8)
    for rule in QUANTIZE:
        assert (quantize(dequantize(every, q, rule), q, every.dtype, rule) == every).all()


@given(q=st.integers(0, 255), scale=scales, zero_point=zero_points)
def test_dequantize(q: int, scale: float, zero_point: int) -> None:
    s = real(np.float32(scale))
    grid = Quantization.per_tensor(float(s), zero_point, "uint8")
    value = np.array([q], np.uint8)
    assert real(dequantize(value, grid)[0]) == f32((q - zero_point) * s)
    assert real(dequantize(value, grid, "premultiplied")[0]) == fused(Fraction(q), s, f32(-zero_point * s))


@pytest.mark.parametrize(("dtype", "q", "zero_point"), [("int32", -(1 << 31), 1 << 30), ("uint32", 3_000_000_000, 0)])
def test_dequantize_does_not_wrap(dtype: str, q: int, zero_point: int) -> None:
    grid = Quantization.per_tensor(1.0, zero_point, dtype)
    assert dequantize(np.array([q], dtype), grid).item() == f32(Fraction(q - zero_point))


@pytest.mark.parametrize("rule", QUANTIZE)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_along_an_axis_are_quantized_each_by_its_own_scale(axis: int, rule: str) -> None:
    rng = np.random.default_rng(axis)
    x = rng.normal(0, 5, (3, 3, 3)).astype(np.float32)
    many = Quantization.of((0.1, 0.25, 0.03), (3, 200, 100), 0, 255, axis)
    whole = quantize(x, many, np.dtype(np.uint8), rule)
    for i in range(3):
        one = Quantization.of((many.scale[i],), (many.zero_point[i],), 0, 255)
        part = quantize(np.take(x, i, axis), one, np.dtype(np.uint8), rule)
        assert (np.take(whole, i, axis) == part).all()
        assert (np.take(dequantize(whole, many), i, axis) == dequantize(part, one)).all()


@pytest.mark.parametrize(
    "dtype", [name for name, each in DTYPES.items() if each.is_integer and each.bits in (8, 16, 32)]
)
def test_clamp_keeps_to_the_range_and_makes_nan_the_least(dtype: str) -> None:
    limits = DTYPES[dtype]
    q = Quantization.of((1.0,), (0,), limits.minimum + 1, limits.maximum - 1)
    inside = [limits.minimum + 1, 0 if limits.minimum < 0 else 5, limits.maximum - 1]
    outside = [float(limits.minimum) - 3, float(limits.maximum) + 3, -np.inf, np.inf, np.nan]
    low, high = q.quant_min, q.quant_max
    kind = np.dtype(dtype)
    assert clamp(np.array(outside), q, kind).tolist() == [low, high, low, high, low]
    assert clamp(np.array(outside, np.float32), q, kind).tolist() == [low, high, low, high, low]
    assert clamp(np.array(inside, np.int64), q, kind).tolist() == inside
    assert clamp(np.array(inside, np.float64), q, kind).dtype == kind


def test_a_rule_that_is_not_known_is_named() -> None:
    q = Quantization.per_tensor(1.0, 0, "uint8")
    with pytest.raises(RunError, match=r"rounding rule 'upwards' is not supported here; use one of divide, .*fma"):
        quantize(np.zeros(1, np.float32), q, np.dtype(np.uint8), "upwards")
    with pytest.raises(RunError, match=r"'upwards' is not supported here; use one of float_bias"):
        requantize(np.zeros(1), None, 1.0, np.array(1.0), q, np.dtype(np.uint8), "upwards")
