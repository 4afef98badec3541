"""Real numbers as fractions, and their roundings: nothing here is computed in floating point.

A number is a Fraction; infinities and NaN are Python floats, which only `quantize` and the bits know.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

Real = Fraction | float

FORMATS = {"float16": ("e", 11, -14), "float32": ("f", 24, -126), "float64": ("d", 53, -1022)}
"""struct's letter, digits of the significand, the least exponent of normal numbers."""

SMALL = {"float8_e4m3fn": (4, 3, 7), "float4_e2m1fn": (2, 1, 1)}
"""Of floats without infinities: bits of the exponent, bits of the fraction, what is taken off the exponent."""


def nearest(value: Fraction | int, name: str) -> Fraction:
    """The nearest number of a binary format, halves to the even neighbour; overflow is an error of the case."""
    _, digits, least = FORMATS[name]
    top, bottom = value.numerator, value.denominator
    size = abs(top).bit_length() - bottom.bit_length()  # 2^(size - 1) < |value| < 2^(size + 1)
    exponent = size - (abs(top) << max(-size, 0) < bottom << max(size, 0))
    unit = max(exponent, least) - digits + 1
    step = bottom << max(unit, 0)
    count, rest = divmod(top << max(-unit, 0), step)
    count += 2 * rest > step or (2 * rest == step and count % 2)
    if abs(count).bit_length() + unit > 2 - least:
        raise OverflowError(f"{float(value)} is beyond {name}")
    return Fraction(count << max(unit, 0), 1 << max(-unit, 0))


def f32(value: Fraction | int) -> Fraction:
    return nearest(value, "float32")


def f16(value: Fraction | int) -> Fraction:
    return nearest(value, "float16")


def f64(value: Fraction | int) -> Fraction:
    return nearest(value, "float64")


def rint(value: Fraction) -> int:
    """Halves to the even neighbour, as `round` has it for fractions."""
    return round(value)


def from_bits(digits: str, name: str) -> Real:
    """The number that hexadecimal digits, the highest byte first, stand for."""
    if name in SMALL:
        return _small(int(digits, 16), *SMALL[name])
    value: float = struct.unpack(">" + FORMATS[name][0], bytes.fromhex(digits))[0]
    return Fraction(value) if math.isfinite(value) else value


def _small(bits: int, exponents: int, fractions: int, bias: int) -> Fraction:
    """A finite float of few bits."""
    fraction, exponent = bits & ((1 << fractions) - 1), bits >> fractions & ((1 << exponents) - 1)
    size = Fraction(fraction, 1 << fractions) + (exponent > 0)
    sign = -1 if bits >> (exponents + fractions) else 1
    return sign * size * Fraction(2) ** (max(exponent, 1) - bias)


def to_bits(value: Real, name: str) -> str:
    if isinstance(value, Fraction) and nearest(value, name) != value:
        raise ValueError(f"{value} is no {name}")
    return struct.pack(">" + FORMATS[name][0], float(value)).hex()
