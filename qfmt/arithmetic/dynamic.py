"""Dynamic quantization of inputs, dequantization of integer sums, and rows of embedding tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..arrays import Array
from ..errors import RunError
from ..quantization import Quantization
from .grids import f32, fma, named, quantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

SMALLEST_SCALE = float(f32(6.1e-5))
"""PyTorch's minimum for a dynamic scale."""


def _nudged_grid(low: float, high: float, top: int) -> tuple[float, int]:
    """`s = (high - low) / top`, `z = rint(-low / s)`, in float64; a scale below the minimum is raised to it, with
    the range"""
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
"""The minimum for a dynamic scale in PT2E programs."""


def _floored_grid(low: float, high: float, top: int) -> tuple[float, int]:
    """`s = max(f32(f32(high - low) / top), 2⁻¹²)`, `z = clamp(-rint(f32(low / s)))`"""
    scale = max((f32(high) - f32(low)) / f32(top), f32(LEAST_SCALE))
    return float(scale), min(max(-int(np.rint(f32(low) / scale)), 0), top)


SYMMETRIC_LEAST_SCALE = 2.0**-23
"""torchao's minimum for a dynamic scale of its int8 layers."""


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
    """A rule for dynamic quantization: scale and zero point from the range, the quantize rule (a key of QUANTIZE),
    and the dequantization of exact integer sums."""

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
"""Rules that quantize a float32 input to uint8 or int8, and convert exact integer sums to float32. `s` is the scale
of the input."""


def quantize_dynamically(x: Floats, rule: str, top: int) -> tuple[Array, Quantization]:
    """Quantize float32 to uint8, with [min(x, 0), max(x, 0)] mapped to 0..top and clamped to 0..255; also return the
    quantization.

    A signed rule quantizes to int8, clamped to -(top + 1) / 2..(top - 1) / 2. Raises RunError if x contains NaN or
    infinity, since the range is undefined.
    """
    dynamic: Dynamic = named(DYNAMIC, rule)
    low, high = float(x.min(initial=0)), float(x.max(initial=0))
    if not np.isfinite(high - low):
        raise RunError("cannot quantize NaN or infinity: the range is undefined")
    scale, zero_point = dynamic.grid(low, high, top)
    if dynamic.is_signed:
        grid = Quantization.of(scale, zero_point, -(top + 1) // 2, top // 2)
        return quantize(x, grid, np.dtype(np.int8), dynamic.quantize), grid
    grid = Quantization.per_tensor(scale, zero_point, "uint8", scale_dtype="float64")
    return quantize(x, grid, np.dtype(np.uint8), dynamic.quantize), grid


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
