"""Torch's `quantized_decomposed` operators: integers with their scales and zero points.

torch/ao/quantization/fx/_decomposed.py: `q = clamp(rint(x · (1 / s)) + z)`, `real = (f32(q) - z) · s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....budget import READ
from ....errors import SourceError
from ....model import DTYPES, Quantization
from ....ops.shapes import axis_of
from ...stored import StoredTensor
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue
from .logic import cast
from .qparams import back, holding, is_computed, limits_of, on_the_spot, per_channel, per_tensor

RECIPROCAL = "reciprocal"


@lifts("quantized_decomposed::quantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype)")
def quantize_per_tensor(lift: Builder, a: Any) -> Any:
    kind, limits = arguments.dtype(a.dtype), (a.quant_min, a.quant_max)
    if is_computed(lift, a.scale):
        return on_the_spot(lift, lift.tensor(a.input), a.scale, a.zero_point, limits_of(lift, kind, limits))
    return _quantize(lift, a.input, kind, per_tensor(lift, a.scale, a.zero_point, kind, limits))


@lifts(
    "quantized_decomposed::dequantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype, out_dtype=None)"
)
def dequantize_per_tensor(lift: Builder, a: Any) -> Any:
    if is_computed(lift, a.scale):
        return back(lift, lift.tensor(a.input), a.scale, a.zero_point)
    grid = per_tensor(lift, a.scale, a.zero_point, arguments.dtype(a.dtype), (a.quant_min, a.quant_max))
    return _dequantize(lift, a.input, grid, a.out_dtype)


@lifts("quantized_decomposed::quantize_per_channel(input, scales, zero_points, axis, quant_min, quant_max, dtype)")
def quantize_per_channel(lift: Builder, a: Any) -> Any:
    return _quantize(lift, a.input, arguments.dtype(a.dtype), _per_channel(lift, a))


@lifts(
    "quantized_decomposed::dequantize_per_channel(input, scales, zero_points, axis, quant_min, quant_max, dtype,"
    " out_dtype=None)"
)
def dequantize_per_channel(lift: Builder, a: Any) -> Any:
    points, value = a.zero_points, a.input
    are_floats = isinstance(points, StoredTensor) and points.dtype == "float32"  # as for embeddings
    if are_floats and isinstance(value, StoredTensor) and value.dtype == arguments.dtype(a.dtype):
        a.scale, a.zero_point, a.output_dtype = a.scales, a.zero_points, a.out_dtype
        axis = _axis(lift, value, arguments.whole(lift, a.axis))
        return _by_blocks(lift, a, [1 if at == axis else size for at, size in enumerate(value.shape)])
    return _dequantize(lift, a.input, _per_channel(lift, a), a.out_dtype)


def _per_channel(lift: Builder, a: Any) -> Quantization:
    axis, limits = _axis(lift, a.input, arguments.whole(lift, a.axis)), (a.quant_min, a.quant_max)
    return per_channel(lift, a.scales, a.zero_points, axis, arguments.dtype(a.dtype), limits)


def _axis(lift: Builder, value: Any, axis: int) -> int:
    """A dimension, counted from the front."""
    if axis >= 0:
        return axis
    return axis_of(axis, len(value.shape) if isinstance(value, StoredTensor) else shapes.rank(lift, lift.tensor(value)))


def _quantize(lift: Builder, value: Any, dtype: str, grid: Quantization) -> TensorValue:
    if DTYPES[dtype].kind == "f":  # torch.ao.quantization.fx._decomposed rounds to integers, then to the float type
        raise SourceError(f"quantizes to {dtype} after rounding to integers, which is not supported")
    x = lift.tensor(value)
    if x.dtype in ("float16", "bfloat16"):
        x = lift.emit("Cast", [x], {"to": "float32"})
    q = lift.emit("QuantizeLinear", [x], quantization=grid, dtype=dtype, rule=RECIPROCAL)
    if lift.is_constant(q):
        lift.name_like(q, x)
    else:
        lift.integers.add(q.key)
    return q


def _dequantize(lift: Builder, value: Any, grid: Quantization, out_dtype: int | None) -> TensorValue:
    q = lift.stored(value, quantization=_covering(value, grid)) if isinstance(value, StoredTensor) else value
    q = lift.tensor(q)
    if q.quantization is None:
        _declare(lift, q, grid)
    elif not q.quantization.same_grid(grid):
        raise SourceError("reads integers with a scale or zero point other than those they were quantized with")
    real = lift.emit("DequantizeLinear", [q], dtype="float32", fold=False)
    return real if out_dtype is None else cast(lift, real, arguments.dtype(out_dtype))


def _covering(value: StoredTensor, grid: Quantization) -> Quantization:
    """The grid with limits that include all stored integers: dequantizing does not check them."""
    limits = DTYPES[value.dtype]
    if (grid.quant_min, grid.quant_max) == (limits.minimum, limits.maximum):
        return grid
    value.charge(READ)
    stored = value.array()
    low, high = (int(stored.min()), int(stored.max())) if stored.size else (grid.quant_min, grid.quant_max)
    return replace(grid, quant_min=min(low, grid.quant_min), quant_max=max(high, grid.quant_max))


def _declare(lift: Builder, q: TensorValue, grid: Quantization) -> None:
    """Declare the quantization of an integer input or result; its first reader determines it."""
    tensor = lift.tensors[q.key]
    if not DTYPES[tensor.dtype].is_integer:
        raise SourceError(f"dequantizes {tensor.dtype}, which is not an integer type")
    if tensor.data is None and q.key not in lift.inputs:
        raise SourceError("dequantizes integers that were not quantized but computed")
    if q.key in lift.read:
        raise SourceError("dequantizes integers that other calls computed with before")
    lift.tensors[q.key] = replace(tensor, quantization=grid)
    q.quantization = grid
    if tensor.data is None:
        lift.integers.add(q.key)


@lifts(
    "quantized_decomposed::dequantize_per_channel_group(input, scales:scale, zero_points:zero_point, quant_min,"
    " quant_max, dtype, group_size=128, output_dtype=6)"
)
def dequantize_per_channel_group(lift: Builder, a: Any) -> Any:
    rank = shapes.rank(lift, lift.tensor(a.input))
    return _by_blocks(lift, a, [*[1] * (rank - 1), a.group_size])


@lifts(
    "torchao::dequantize_affine(input, block_size, scale, zero_point, input_dtype, quant_min=None, quant_max=None,"
    " output_dtype=6)"
)
def dequantize_affine(lift: Builder, a: Any) -> Any:
    return _by_blocks(lift, a, a.block_size)


def _by_blocks(lift: Builder, a: Any, blocks: Sequence[Any]) -> TensorValue:
    """Dequantize stored integers with block-wise scales."""
    value, limits = a.input, (a.quant_min, a.quant_max)
    if not isinstance(value, StoredTensor) or not isinstance(a.scale, StoredTensor):
        raise SourceError("dequantizes block-wise a tensor that is known only at run time")
    sizes = tuple(arguments.whole(lift, size) for size in blocks)
    scales, points = a.scale.array(), 0 if a.zero_point is None else a.zero_point.array()
    lift.budget.hold(scales.size)
    known = None if None in limits else limits_of(lift, value.dtype, limits)
    grid = Quantization.of_blocks(value.dtype, value.shape, sizes, scales, points, limits=known)
    return _dequantize(lift, value, grid, a.output_dtype)


@lifts("aten::fake_quantize_per_tensor_affine")
def fake_quantize(lift: Builder, self: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any) -> Any:
    dtype = holding(arguments.whole(lift, quant_min), arguments.whole(lift, quant_max))
    grid = per_tensor(lift, scale, zero_point, dtype, (quant_min, quant_max))
    return _fake(lift, self, dtype, grid)


def _fake(lift: Builder, value: Any, dtype: str, grid: Quantization) -> TensorValue:
    x = lift.tensor(value)
    real = _dequantize(lift, _quantize(lift, x, dtype, grid), grid, None)
    return cast(lift, real, lift.dtype_like(x))


@lifts("aten::fake_quantize_per_channel_affine", "quantized_decomposed::fake_quant_per_channel")
def fake_quantize_per_channel(
    lift: Builder, self: Any, scale: Any, zero_point: Any, axis: int, quant_min: Any, quant_max: Any
) -> Any:
    dtype = holding(arguments.whole(lift, quant_min), arguments.whole(lift, quant_max))
    grid = per_channel(lift, scale, zero_point, axis, dtype, (quant_min, quant_max))
    return _fake(lift, self, dtype, grid)
