"""The grids of calls of `quantized_decomposed`: element type, limits, scales and zero points."""

from __future__ import annotations

from typing import Any

from ....errors import SourceError
from ....model import DTYPES, Quantization, first_holding
from ...stored import StoredTensor
from .. import arguments
from ..building import Builder
from ..values import DTYPE_CODES, TensorValue, narrowest


def dtype_of(code: Any) -> str:
    kind = DTYPE_CODES.get(code, "") if isinstance(code, int) else ""
    if kind not in DTYPES:
        raise SourceError(f"quantizes to the element type {code}, which is not supported")
    return kind


def per_tensor(lift: Builder, scale: Any, zero_point: Any, dtype: str, limits: tuple[Any, Any]) -> Quantization:
    factor = _positive(float(arguments.number(lift, scale)))
    low, high = limits_of(lift, dtype, limits)
    return Quantization.of((factor,), (arguments.whole(lift, zero_point),), low, high, None, narrowest(factor))


def per_channel(
    lift: Builder, scales: Any, zero_points: Any, axis: int, dtype: str, limits: tuple[Any, Any]
) -> Quantization:
    factors = tuple(_positive(float(factor)) for factor in _constants(lift, scales))
    points = tuple(int(point) for point in _constants(lift, zero_points))
    if len(factors) != len(points) or axis < 0:
        raise SourceError(f"has {len(factors)} scales and {len(points)} zero points along the axis {axis}")
    low, high = limits_of(lift, dtype, limits)
    kind = "float32" if all(narrowest(factor) == "float32" for factor in factors) else "float64"
    return Quantization.of(factors, points, low, high, axis, kind)


def _positive(scale: float) -> float:
    if not 0 < scale < float("inf"):
        raise SourceError(f"has the scale {scale}", hint="calibrate the model before it is converted")
    return scale


def limits_of(lift: Builder, dtype: str, limits: tuple[Any, Any]) -> tuple[int, int]:
    low, high = (arguments.whole(lift, limit) for limit in limits)
    if not DTYPES[dtype].minimum <= low < high <= DTYPES[dtype].maximum:
        raise SourceError(f"quantizes to {low}..{high}, which is not a range of {dtype}")
    return low, high


def _constants(lift: Builder, value: Any) -> list[Any]:
    if isinstance(value, TensorValue) and lift.is_constant(value):
        return list(lift.tensors[value.key].array.reshape(-1).tolist())
    if not isinstance(value, StoredTensor):
        raise SourceError("has scales that are known only at run time")
    return list(value.array().reshape(-1).tolist())


def holding(low: int, high: int) -> str:
    """The smallest type that contains a range."""
    kinds = ("int8", "int16", "int32") if low < 0 else ("uint8", "uint16", "uint32")
    return first_holding(kinds, low, high) or kinds[-1]
