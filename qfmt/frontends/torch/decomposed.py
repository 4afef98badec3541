"""Torch's `quantized_decomposed` operators: integers, and the scales that say what they mean.

torch/ao/quantization/fx/_decomposed.py: `q = clamp(rint(x · (1 / s)) + z)`, `real = (f32(q) - z) · s`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import SourceError
from ...model import DTYPES, Quantization
from ..stored import StoredTensor
from .lift import Lifter, lifts
from .values import DTYPE_CODES, TensorValue, narrowest

RECIPROCAL = "reciprocal"


@lifts("quantized_decomposed::quantize_per_tensor")
def quantize_per_tensor(
    lift: Lifter, input: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: int
) -> Any:
    kind = _dtype(dtype)
    grid = _per_tensor(lift, scale, zero_point, kind, (quant_min, quant_max))
    return _quantize(lift, input, kind, grid)


@lifts("quantized_decomposed::dequantize_per_tensor")
def dequantize_per_tensor(
    lift: Lifter,
    input: Any,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: int,
    *,
    out_dtype: int | None = None,
) -> Any:
    grid = _per_tensor(lift, scale, zero_point, _dtype(dtype), (quant_min, quant_max))
    return _dequantize(lift, input, grid, out_dtype)


@lifts("quantized_decomposed::quantize_per_channel")
def quantize_per_channel(
    lift: Lifter, input: Any, scales: Any, zero_points: Any, axis: int, quant_min: Any, quant_max: Any, dtype: int
) -> Any:
    kind = _dtype(dtype)
    grid = _per_channel(lift, scales, zero_points, axis, kind, (quant_min, quant_max))
    return _quantize(lift, input, kind, grid)


@lifts("quantized_decomposed::dequantize_per_channel")
def dequantize_per_channel(
    lift: Lifter,
    input: Any,
    scales: Any,
    zero_points: Any,
    axis: int,
    quant_min: Any,
    quant_max: Any,
    dtype: int,
    *,
    out_dtype: int | None = None,
) -> Any:
    grid = _per_channel(lift, scales, zero_points, axis, _dtype(dtype), (quant_min, quant_max))
    return _dequantize(lift, input, grid, out_dtype)


def _dtype(code: Any) -> str:
    kind = DTYPE_CODES.get(code, "") if isinstance(code, int) else ""
    if kind not in DTYPES:
        raise SourceError(f"quantizes to the element type {code}, which qfmt does not know")
    return kind


def _per_tensor(lift: Lifter, scale: Any, zero_point: Any, dtype: str, limits: tuple[Any, Any]) -> Quantization:
    factor = _positive(float(lift.number(scale)))
    low, high = _limits(lift, dtype, limits)
    return Quantization((factor,), (lift.whole(zero_point),), low, high, None, narrowest(factor))


def _per_channel(
    lift: Lifter, scales: Any, zero_points: Any, axis: int, dtype: str, limits: tuple[Any, Any]
) -> Quantization:
    factors = tuple(_positive(float(factor)) for factor in _constants(lift, scales))
    points = tuple(int(point) for point in _constants(lift, zero_points))
    if len(factors) != len(points) or axis < 0:
        raise SourceError(f"has {len(factors)} scales and {len(points)} zero points along the axis {axis}")
    low, high = _limits(lift, dtype, limits)
    kind = "float32" if all(narrowest(factor) == "float32" for factor in factors) else "float64"
    return Quantization(factors, points, low, high, axis, kind)


def _positive(scale: float) -> float:
    if not 0 < scale < float("inf"):
        raise SourceError(f"has the scale {scale}", hint="calibrate the model before it is converted")
    return scale


def _limits(lift: Lifter, dtype: str, limits: tuple[Any, Any]) -> tuple[int, int]:
    low, high = (lift.whole(limit) for limit in limits)
    if not DTYPES[dtype].minimum <= low < high <= DTYPES[dtype].maximum:
        raise SourceError(f"quantizes to {low}..{high}, which is no range of {dtype}")
    return low, high


def _constants(lift: Lifter, value: Any) -> list[Any]:
    if isinstance(value, TensorValue) and lift.is_constant(value):
        return list(lift.tensors[value.key].array.reshape(-1).tolist())
    if not isinstance(value, StoredTensor):
        raise SourceError("takes scales that are known only when the network runs")
    return list(value.array().reshape(-1).tolist())


def _quantize(lift: Lifter, value: Any, dtype: str, grid: Quantization) -> TensorValue:
    x = lift.tensor(value)
    if x.dtype in ("float16", "bfloat16"):
        x = lift.emit("Cast", [x], {"to": "float32"})
    q: TensorValue = lift.emit("QuantizeLinear", [x], quantization=grid, dtype=dtype, rule=RECIPROCAL)
    if lift.is_constant(q):
        lift.name_like(q, x)
    return q


def _dequantize(lift: Lifter, value: Any, grid: Quantization, out_dtype: int | None) -> TensorValue:
    q = lift.stored(value, quantization=_covering(value, grid)) if isinstance(value, StoredTensor) else value
    q = lift.tensor(q)
    if q.quantization is None:
        _declare(lift, q, grid)
    elif not q.quantization.same_grid(grid):
        raise SourceError("reads integers with another scale or zero point than they were made with")
    real: TensorValue = lift.emit("DequantizeLinear", [q], dtype="float32", fold=False)
    if out_dtype is None or _dtype(out_dtype) == "float32":
        return real
    cast: TensorValue = lift.emit("Cast", [real], {"to": _dtype(out_dtype)})
    return cast


def _covering(value: StoredTensor, grid: Quantization) -> Quantization:
    """The grid with limits that hold all stored integers: dequantizing does not ask for them."""
    limits = DTYPES[value.dtype]
    if (grid.quant_min, grid.quant_max) == (limits.minimum, limits.maximum):
        return grid
    stored = value.array()
    low, high = (int(stored.min()), int(stored.max())) if stored.size else (grid.quant_min, grid.quant_max)
    return replace(grid, quant_min=min(low, grid.quant_min), quant_max=max(high, grid.quant_max))


def _declare(lift: Lifter, q: TensorValue, grid: Quantization) -> None:
    """An input or a result of integers is what the first that reads it says."""
    tensor = lift.tensors[q.key]
    if not DTYPES[tensor.dtype].is_integer:
        raise SourceError(f"dequantizes {tensor.dtype}, which are no integers")
    if tensor.data is None and q.key not in lift.inputs:
        raise SourceError("dequantizes integers that were not quantized but computed")
    lift.tensors[q.key] = replace(tensor, quantization=grid)
    q.quantization = grid
