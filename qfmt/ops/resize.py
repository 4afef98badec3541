"""Resizing by nearest neighbour or linear interpolation."""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import clamp, f32, fma
from ..errors import QfmtError
from ..model import Dimension, Shape
from .registry import QUANTIZE_RULES, Inference, Operand, Quantized, Result, by_engine, operator, optional

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def _resize_shape(given: Inference) -> list[Shape]:
    x = given.known(0)
    scales, sizes = given.values[2], given.values[3] if len(given.values) > 3 else None
    for values in (scales, sizes):
        if values is not None and np.shape(values) != (len(x),):
            raise QfmtError(f"Resize needs {len(x)} scales or sizes, one per dimension, not {np.size(values)}")
    if sizes is not None:
        return [tuple(int(size) for size in sizes)]
    if scales is None:
        return [(None,) * len(x)]
    return [tuple(_scaled(size, float(scale)) for size, scale in zip(x, scales, strict=True))]


def _scaled(size: Dimension, scale: float) -> Dimension:
    if isinstance(size, int):
        return floor(size * scale)
    return size if scale == 1 else None


def _geometry(x: Array, scales: Array | None, sizes: Array | None) -> list[tuple[int, np.float32]]:
    """For each axis the output size, and the step in the input that one step in the output is, float32."""
    if sizes is not None:
        return [(int(out), f32(size) / f32(out)) for size, out in zip(x.shape, sizes, strict=True)]
    if scales is None:
        raise QfmtError("Resize needs scales or sizes")
    return [(floor(n * float(scale)), f32(1 / float(scale))) for n, scale in zip(x.shape, scales, strict=True)]


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _places(size: int, out: int, step: np.float32, mode: str, multiply_add: Callable[..., Array]) -> Array:
    """Where each element of the output lies in the input, float32."""
    i = np.arange(out, dtype=f32)
    if mode == "asymmetric":
        return i * step
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        return multiply_add(i + f32(0.5), np.asarray(step), np.asarray(f32(-0.5)))
    if mode == "align_corners" and out > 1:
        return i * (f32(size - 1) / f32(out - 1))
    return np.zeros(out, f32)


def _rounded(places: Array, rounding: str) -> Array:
    if rounding == "round_prefer_floor":
        return np.ceil(places - f32(0.5))
    if rounding == "round_prefer_ceil":
        return np.floor(places + f32(0.5))
    return np.floor(places) if rounding == "floor" else np.ceil(places)


def _nearest(x: Array, geometry: list[tuple[int, np.float32]], mode: str, rounding: str) -> Array:
    for axis, (out, step) in enumerate(geometry):
        size = x.shape[axis]
        if out != size:
            places = _rounded(_places(size, out, step, mode, _multiply_add), rounding)
            x = np.take(x, np.clip(places, 0, size - 1).astype(np.int64), axis)
    return x


def _linear(x: Array, geometry: list[tuple[int, np.float32]], mode: str, multiply_add: Callable[..., Array]) -> Array:
    """Along each axis, the last first: (1 - t) · x[low] + t · x[low + 1]; the second product may be fused."""
    for axis in reversed(range(x.ndim)):
        out, step = geometry[axis]
        size = x.shape[axis]
        if out != size:
            place = np.clip(_places(size, out, step, mode, multiply_add), 0, size - 1)
            low = np.floor(place).astype(np.int64)
            t = (place - low.astype(f32)).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))
            high = np.minimum(low + 1, size - 1)
            x = multiply_add(np.take(x, high, axis), t, np.take(x, low, axis) * (x.dtype.type(1) - t))
    return x


def _resize_integer(
    x: Operand, roi: Operand | None, scales: Operand | None, sizes: Operand | None, *, result: Result, **a: str
) -> Array:
    """nearest: moves integers. linear: rint(f32(R(f32(q)) - z) + z), R the formula above in float32.

    By the rule `interpolate_fma` i · r - ½ is a fused multiply-add, as is (t · high) + ((1 - t) · low).
    """
    result.expect("interpolate", "interpolate_fma")
    q = result.quantization
    if x.quantization is None or not x.quantization.same_grid(q):
        raise QfmtError("an interpolation of integers keeps the quantization of the input")
    geometry = _geometry(x.array, None if scales is None else scales.array, None if sizes is None else sizes.array)
    if a["mode"] == "nearest":
        return _nearest(x.array, geometry, a["coordinate_transformation_mode"], a["nearest_mode"])
    multiply_add = fma if result.rule == "interpolate_fma" else _multiply_add
    between = _linear(x.array.astype(f32), geometry, a["coordinate_transformation_mode"], multiply_add)
    zero_point = f32(q.zero_point[0])
    return clamp(np.rint((between - zero_point) + zero_point), q, result.dtype)


@operator(
    "Resize",
    19,
    "X roi? scales? sizes? -> Y",
    attributes={
        "coordinate_transformation_mode": optional(
            "half_pixel", "`half_pixel`, `pytorch_half_pixel`, `asymmetric` or `align_corners`"
        ),
        "mode": optional("nearest", "`nearest` or `linear`"),
        "nearest_mode": optional("round_prefer_floor", "`floor`, `ceil`, `round_prefer_floor` or `round_prefer_ceil`"),
    },
    shape=_resize_shape,
    quantized=Quantized.OWN,
    integer=_resize_integer,
    rules=("interpolate", "interpolate_fma", *QUANTIZE_RULES),
    engines=by_engine("interpolate_fma"),
)
def resize(
    x: Array,
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    nearest_mode: str,
) -> Array:
    """Y[i] = X at the place that i has in X: asymmetric i · r, half_pixel (i + ½) · r - ½, align_corners
    i · (in - 1) / (out - 1), in float32, moved to the edge where it lies outside. pytorch_half_pixel is half_pixel,
    but 0 where out = 1.

    Either scales (out = floor(in · scale), r = f32(1 / scale)) or sizes (r = f32(in / out)) is given, for
    all axes; roi is ignored. Scales are float32, or float64 where the source held doubles. nearest takes the element
    at the rounded place; linear weighs the two neighbours along each axis, the last axis first.
    """
    geometry = _geometry(x, scales, sizes)
    if mode == "nearest":
        return _nearest(x, geometry, coordinate_transformation_mode, nearest_mode)
    if mode == "linear":
        return _linear(x, geometry, coordinate_transformation_mode, _multiply_add)
    raise QfmtError(f"Resize by {mode!r} is not known", hint="known are nearest and linear")
