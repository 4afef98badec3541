"""Dynamic quantization of inputs, dequantization of integer sums, and rows of embedding tables."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..errors import RunError
from ..quantization import Quantization
from .quantizing import NUMPY, Namespace, f32, named, quantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

SMALLEST_SCALE = float(f32(6.1e-5))
"""PyTorch's minimum for a dynamic scale."""


LEAST_SCALE = 2.0**-12
"""The minimum for a dynamic scale in PT2E programs."""

SYMMETRIC_LEAST_SCALE = 2.0**-23
"""torchao's minimum for a dynamic scale of its int8 layers."""

Parameters = Callable[[Any, Any, int], tuple[Any, Any]]
"""Ranges of float32, arrays of at least one dimension, and the greatest integer → scales and zero points."""


class Dynamic(NamedTuple):
    """A rule for dynamic quantization: scale and zero point from the range, the quantize rule (a key of QUANTIZE),
    and the dequantization of exact integer sums. `least_scale` is the smallest scale; `stretches`: if the scale is
    raised to it, so is the range, and the zero point stays."""

    parameters: Parameters
    quantize: str
    real: Callable[[Any, Any, Any, Any], Any]
    least_scale: float
    stretches: bool = False
    is_signed: bool = False


def _parameters(xp: Namespace) -> tuple[Parameters, ...]:
    """From the range of the numbers to scale and zero point."""

    def nudged(low: Any, high: Any, top: int) -> tuple[Any, Any]:
        """`s = (high - low) / top`, `z = rint(-low / s)`, in float64; a scale below the minimum is raised to it, with
        the range"""
        scale = (xp.f64(high) - xp.f64(low)) / top
        scale = xp.lib.where(xp.one / xp.f32(scale) == inf, 0.1, scale)
        stretch = xp.lib.full_like(low, SMALLEST_SCALE) / xp.f32(scale)
        least = xp.f64(xp.lib.where(scale < SMALLEST_SCALE, low * stretch, low))
        scale = scale.clip(SMALLEST_SCALE, None)
        return scale, (-least / scale).round().clip(None, top)

    def divided(low: Any, high: Any, top: int) -> tuple[Any, Any]:
        """`s = f32(f32(high - low) / top)`, `z = rint(f32(-low / s))`; s = 1 for a range of 0"""
        scale = (high - low) / top
        scale = xp.lib.where(scale == 0, 1.0, scale)
        return scale, (-low / scale).round()

    def floored(low: Any, high: Any, top: int) -> tuple[Any, Any]:
        """`s = max(f32(f32(high - low) / top), 2⁻¹²)`, `z = clamp(-rint(f32(low / s)))`"""
        scale = ((high - low) / top).clip(LEAST_SCALE, None)
        return scale, (-(low / scale).round()).clip(0, top)

    def symmetric(low: Any, high: Any, top: int) -> tuple[Any, Any]:
        """`s = max(f32(max(-low, high) / (top / 2)), 2⁻²³)`, `z = 0`"""
        scale = (xp.lib.maximum(-low, high) / (top / 2)).clip(SYMMETRIC_LEAST_SCALE, None)
        return scale, xp.lib.full_like(scale, 0)

    return nudged, divided, floored, symmetric


def dynamic_rules(xp: Namespace) -> dict[str, Dynamic]:
    """Rules that quantize a float32 input to uint8 or int8, and convert exact integer sums to float32. `s` is the scale
    of the input."""

    def once(acc: Any, bias: Any, s: Any, sw: Any) -> Any:
        """`fma(f32(acc), f32(s · sw), b)`"""
        return xp.fma(acc, xp.f32(s) * xp.f32(sw), bias)

    def add(acc: Any, bias: Any, s: Any, sw: Any) -> Any:
        """`f32(f32(acc) · f32(s · sw)) + b`"""
        return acc * (xp.f32(s) * xp.f32(sw)) + bias

    def inverse(acc: Any, bias: Any, s: Any, sw: Any) -> Any:
        """`f32(f32(acc) · f32(i(s) · i(sw))) + b`, `i(s) = f32(1 / f32(1 / s))`"""
        return acc * ((xp.one / xp.f32(xp.one / s)) * (xp.one / xp.f32(xp.one / sw))) + bias

    def twice(acc: Any, bias: Any, s: Any, sw: Any) -> Any:
        """`f32(f32(f32(acc) · s) · sw) + b`"""
        return acc * xp.f32(s) * xp.f32(sw) + bias

    nudged, divided, floored, symmetric = _parameters(xp)
    return {
        "dynamic_fma": Dynamic(nudged, "reciprocal_fma", once, SMALLEST_SCALE, stretches=True),
        "dynamic_add": Dynamic(nudged, "reciprocal_fma", add, SMALLEST_SCALE, stretches=True),
        "dynamic_inverse": Dynamic(nudged, "reciprocal_offset", inverse, SMALLEST_SCALE, stretches=True),
        "dynamic_divide": Dynamic(divided, "divide", add, 0.0),
        "dynamic_reciprocal": Dynamic(floored, "reciprocal", add, LEAST_SCALE),
        "dynamic_symmetric": Dynamic(symmetric, "reciprocal", twice, SYMMETRIC_LEAST_SCALE, is_signed=True),
    }


DYNAMIC = dynamic_rules(NUMPY)
"""`dynamic_rules` of NumPy."""


def quantize_dynamically(x: Floats, rule: str, top: int, *, rows: bool = False) -> tuple[Array, Quantization]:
    """Quantize float32 to uint8, with [min(x, 0), max(x, 0)] mapped to 0..top and clamped to 0..255; also return the
    quantization. `rows`: each row of a matrix has a range, a scale and a zero point of its own.

    A signed rule quantizes to int8, clamped to -(top + 1) / 2..(top - 1) / 2. Raises RunError if x contains NaN or
    infinity, since the range is undefined.
    """
    dynamic: Dynamic = named(DYNAMIC, rule)
    along = 1 if rows else None
    low, high = (np.atleast_1d(extreme(x, axis=along, initial=0)).astype(f32) for extreme in (np.min, np.max))
    if not np.isfinite(high.astype(np.float64) - low).all():
        raise RunError("cannot quantize NaN or infinity: the range is undefined")
    with np.errstate(divide="ignore", over="ignore"):
        scales, zero_points = dynamic.parameters(low, high, top)
    kind, least, most = ("int8", -(top + 1) // 2, top // 2) if dynamic.is_signed else ("uint8", 0, 255)
    grid = Quantization.of(scales, zero_points.astype(np.int64), least, most, 0 if rows else None, "float64")
    return quantize(x, grid, np.dtype(kind), dynamic.quantize), grid


def dequantize_sums(acc: Array, bias: Array | None, input_scale: Array, weight_scale: Array, rule: str) -> Floats:
    """Exact integer sums → float32 by a dynamic rule (a key of DYNAMIC). Arguments are those of `requantize`, but
    the scale of the input also broadcasts against `acc`."""
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
"""Rules for rows of an embedding table: scales and zero points → slopes and offsets of `real = fma(f32(q), slope,
offset)`."""
