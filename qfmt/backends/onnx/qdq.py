"""Quantize and dequantize: QuantizeLinear and DequantizeLinear, or their formulas for types that these lack."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32
from ...model import DTYPES, Quantization, Tensor, static_shape
from .constants import onnx_dtype
from .opsets import Lacks, has_cast, schema, takes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .builder import Builder

CONTRIBUTED = ("int4", "uint4", "int16", "uint16")
"""Element types that ONNX Runtime's own QuantizeLinear and DequantizeLinear have in any opset."""


HALVES = ("float16", "bfloat16")
"""Types of scales that are kept if there are many."""


def dequantized(builder: Builder, tensor: Tensor, stored: ir.Value, axis: int | None = None) -> ir.Value:
    """The real numbers of a tensor, or of its transpose, whose scales are along another axis."""
    if not grid_of(tensor).is_plain:
        raise Lacks("has a quantization with offsets, a table, or quantized scales")
    grid, name = grid_of(tensor), f"{tensor.name}_dequantized"
    if axis is not None and grid.is_per_channel:
        grid = grid.along(axis)
    domain = domain_of(builder, "DequantizeLinear", tensor.dtype)
    wide, is_computed = DTYPES[tensor.dtype].bits == 32, tensor.data is None
    # ONNX Runtime quantizes int32 to uint8 behind a node that only moves, has few kernels of 4 bits for what it
    # fuses, and fuses nodes as if there were one scale.
    is_fused = is_computed and (DTYPES[tensor.dtype].bits not in (8, 16) or len(grid.scale) > 1)
    if domain is None or grid.has_float_zero_points or is_fused or (wide and any(grid.zero_point)):
        return _dequantized_by_formula(builder, tensor, grid, stored)
    attributes = _layout(builder, tensor, grid, domain)
    if builder.opset >= 23 and grid.is_blocked and grid.scale_dtype in HALVES:
        attributes["output_dtype"] = int(ir.DataType.FLOAT)
    inputs = [stored, scale(builder, tensor)]
    may_go = wide or (grid.is_blocked and not any(grid.zero_point))  # zero points of 0
    if grid.names[1] or not may_go:
        inputs.append(zero_point(builder, tensor))
    real = builder.emit("DequantizeLinear", *inputs, name=name, domain=domain, **attributes)
    return kept_apart(builder, tensor.name, real) if builder.apart.from_readers(tensor) else real


def quantized(builder: Builder, tensor: Tensor, real: ir.Value, inside: bool = False) -> ir.Value:
    """Real numbers on the grid of a tensor, clamped to its [quant_min, quant_max] unless they are `inside` it."""
    grid, name = grid_of(tensor), f"{tensor.name}_quantize"
    domain = domain_of(builder, "QuantizeLinear", tensor.dtype)
    if grid.is_blocked:
        raise Lacks("has a block-wise quantized output")
    if domain is None or len(grid.scale) > 1:  # ONNX Runtime would fuse nodes as if there were one scale
        return _quantized_by_formula(builder, tensor, real)
    real = real if inside else _limited(builder, tensor, real)
    if builder.apart.from_quantization(tensor, real, builder.is_output):
        real = kept_apart(builder, tensor.name, real)
    inputs = (real, scale(builder, tensor), zero_point(builder, tensor))
    return builder.emit("QuantizeLinear", *inputs, name=name, domain=domain, **_layout(builder, tensor, grid, domain))


def scale(builder: Builder, tensor: Tensor) -> ir.Value:
    """The scale of a tensor, float32: a scalar, a vector along its axis, or one for each block."""
    grid = grid_of(tensor)

    def make() -> ir.Value:
        name = grid.names[0] or f"{tensor.name}.scale"
        if not grid.is_blocked:
            return builder.constant(name, _shaped(grid, np.array(grid.scale, f32)))
        kept = builder.opset >= 23 and grid.scale_dtype in HALVES
        values = _of_blocks(tensor, grid, grid.scale.array)
        return builder.constant(name, values if kept else values.astype(f32))

    return builder.once(_key(tensor, "scale", grid.names[0], grid.scale), make)


def zero_point(builder: Builder, tensor: Tensor) -> ir.Value:
    """The zero point of a tensor, of its element type: a scalar, a vector along its axis, or one for each block."""
    grid = grid_of(tensor)

    def make() -> ir.Value:
        name = grid.names[1] or f"{tensor.name}.zero_point"
        if not grid.is_blocked:
            return builder.constant(name, _shaped(grid, np.array(grid.each_zero_point, np.int64)), tensor.dtype)
        values = np.broadcast_to(grid.zero_point.array, grid.scale.shape)
        return builder.constant(name, _of_blocks(tensor, grid, values), tensor.dtype)

    values = tensor.dtype, len(grid.scale), grid.zero_point
    return builder.once(_key(tensor, "zero_point", grid.names[1], values), make)


def _key(tensor: Tensor, role: str, name: str, values: Hashable) -> tuple[Hashable, ...]:
    """The cache key of a scale or zero point: tensors share one if its name in the source and its values are
    equal."""
    grid = grid_of(tensor)
    if not name or grid.is_blocked:
        return (tensor.name, role)
    return role, name, grid.axis is not None, values


def grid_of(tensor: Tensor) -> Quantization:
    """The quantization of a tensor that has one."""
    assert tensor.quantization is not None
    return tensor.quantization


def has_infinite(tensor: Tensor) -> bool:
    """Whether some integers of a tensor are infinite as float32."""
    grid = tensor.quantization
    if grid is None or not grid.is_plain:
        return False
    points = grid.zero_point.array.astype(np.float64)
    reach = max(grid.quant_max - points.min(initial=0), points.max(initial=0) - grid.quant_min)
    with np.errstate(over="ignore"):
        return bool(np.isinf(f32(reach) * grid.scale.array.astype(f32).max(initial=0)))


def _shaped(grid: Quantization, values: NDArray[Any]) -> NDArray[Any]:
    return values if grid.is_per_channel else values.reshape(())


def _layout(builder: Builder, tensor: Tensor, grid: Quantization, domain: str) -> dict[str, int]:
    """The axis of the scales, and how many elements share one."""
    if not grid.is_blocked:
        return {} if grid.axis is None else {"axis": grid.axis}
    if domain or builder.opset < 21:
        raise Lacks("has block-wise scales, which ONNX supports from opset 21 on")
    sizes = grid.block_sizes(static_shape(tensor))
    axis = _block_axis(sizes)
    return {"axis": axis, "block_size": sizes[axis]}


def _block_axis(sizes: Sequence[int]) -> int:
    """The axis of ONNX's blocks: the one along which they are largest."""
    return int(np.argmax(sizes))


def _of_blocks(tensor: Tensor, grid: Quantization, values: NDArray[Any]) -> NDArray[Any]:
    """One value for each block, as in ONNX: blocks have a size along one axis only, values of tiles are repeated."""
    shape = static_shape(tensor)
    sizes = grid.block_sizes(shape)
    values = values.reshape(*values.shape, *(1 for _ in shape[values.ndim :]))
    for axis, size in enumerate(sizes):
        if size > 1 and axis != _block_axis(sizes):
            values = values.repeat(size, axis).take(range(shape[axis]), axis)
    return values


def domain_of(builder: Builder, operator: str, dtype: str) -> str | None:
    """The domain whose operator supports that type in this opset; None if none does."""
    definition = schema(operator, builder.opset)
    integers = definition.inputs[0] if operator == "DequantizeLinear" else definition.outputs[0]
    if takes(definition, integers, dtype):
        return ""
    if dtype in CONTRIBUTED:
        return "com.microsoft"
    if dtype.startswith("float") or not has_cast(builder.opset, dtype):
        raise Lacks(f"has a tensor of {dtype}, which that opset cannot quantize")
    return None


def kept_apart(builder: Builder, name: str, real: ir.Value) -> ir.Value:
    """The same numbers through a Max of one tensor, across which ONNX Runtime does not fuse."""
    return builder.emit("Max", real, name=f"{name}_apart")


def _limited(builder: Builder, tensor: Tensor, real: ir.Value) -> ir.Value:
    """Real numbers that QuantizeLinear rounds into [quant_min, quant_max] by one scale.

    Rounding is monotone, and the real number of an integer is rounded to that integer: so clamping first is equivalent.
    """
    grid, dtype = grid_of(tensor), DTYPES[tensor.dtype]
    low = _limit(grid, grid.quant_min) if grid.quant_min > dtype.minimum else None
    high = _limit(grid, grid.quant_max) if grid.quant_max < dtype.maximum else None
    if low is not None and high is None and not low.any():
        producer = real.producer()
        if producer is not None and producer.op_type == "Relu":
            return real
        return builder.emit("Relu", real, name=f"{tensor.name}_relu")
    if low is None and high is None:
        return real
    bounds = (
        None if limit is None else builder.constant(f"{tensor.name}.{what}", limit.reshape(()))
        for what, limit in (("min", low), ("max", high))
    )
    return builder.emit("Clip", real, *bounds, name=f"{tensor.name}_clip")


def _limit(grid: Quantization, integer: int) -> NDArray[Any]:
    """The real numbers of an integer: f32(q - z) · f32(s)."""
    return (integer - np.array(grid.zero_point)).astype(f32) * np.array(grid.scale).astype(f32)


def _dequantized_by_formula(builder: Builder, tensor: Tensor, grid: Quantization, stored: ir.Value) -> ir.Value:
    """f32(q - z) · f32(s), the difference exact in int64 (or, of float zero points, in float32; of 4 bits both are)."""
    is_centred, casts = bool(grid.zero_point.array.any()), has_cast(builder.opset, tensor.dtype)
    exact = is_centred and not grid.has_float_zero_points and casts
    wide, dtype = (ir.DataType.INT64, np.int64) if exact else (ir.DataType.FLOAT, f32)
    name = f"{tensor.name}_wide"
    if casts:
        difference = builder.emit("Cast", stored, name=name, to=int(wide))
    else:  # 4 bits before opset 21
        unit = builder.constant(f"{tensor.name}.unit", np.ones((), f32))
        difference = builder.emit("DequantizeLinear", stored, unit, name=name, domain="com.microsoft")
    if is_centred:
        offset = _spread(builder, tensor, grid, "zero_point", dtype)
        difference = builder.emit("Sub", difference, offset, name=f"{tensor.name}_centred")
    if wide != ir.DataType.FLOAT:
        difference = builder.emit("Cast", difference, name=f"{tensor.name}_float", to=int(ir.DataType.FLOAT))
    step = _spread(builder, tensor, grid, "scale", f32)
    return builder.emit("Mul", difference, step, name=f"{tensor.name}_dequantized")


def _quantized_by_formula(builder: Builder, tensor: Tensor, real: ir.Value) -> ir.Value:
    """clamp(rint(x / s) + z), the sum in float32, the limits in float64, which holds every integer of 32 bits."""
    grid, name = grid_of(tensor), tensor.name
    if not has_cast(builder.opset, tensor.dtype):
        raise Lacks(f"rounds to {tensor.dtype} per channel, which that opset has no Cast for")
    step = _spread(builder, tensor, grid, "scale", f32)
    offset = _spread(builder, tensor, grid, "zero_point", f32)
    low, high = (_limit_of_integers(builder, limit) for limit in (grid.quant_min, grid.quant_max))
    rounded = builder.emit("Round", builder.emit("Div", real, step, name=f"{name}_div"), name=f"{name}_round")
    moved = builder.emit("Add", rounded, offset, name=f"{name}_add")
    moved = builder.emit("Cast", moved, name=f"{name}_wide", to=int(ir.DataType.DOUBLE))
    above = builder.emit("Greater", moved, low, name=f"{name}_above")  # NaN is not: it becomes quant_min
    clamped = builder.emit(
        "Min", builder.emit("Where", above, moved, low, name=f"{name}_max"), high, name=f"{name}_min"
    )
    return builder.emit("Cast", clamped, name=f"{name}_quantize", to=int(onnx_dtype(tensor.dtype)))


def _limit_of_integers(builder: Builder, limit: int) -> ir.Value:
    return builder.once(("limit", limit), lambda: builder.constant(f"limit.{limit}", np.array(limit, np.float64)))


def _spread(
    builder: Builder,
    tensor: Tensor,
    grid: Quantization,
    role: str,
    dtype: type[np.integer[Any]] | type[np.floating[Any]],
) -> ir.Value:
    """The scales or zero points as they broadcast against a tensor; equal ones are one constant."""
    if tensor.shape is None and grid.is_per_channel:
        raise Lacks("requires a known rank")
    channels = [len(grid.scale) if axis == grid.axis else 1 for axis, _ in enumerate(tensor.shape or ())]
    sizes = channels if grid.is_affine else static_shape(tensor)

    def make() -> ir.Value:
        values = grid.scales(sizes, f32) if role == "scale" else grid.zero_points(sizes)
        return builder.constant(f"{tensor.name}.{role}", values.astype(dtype))

    stored = grid.scale, grid.zero_point, grid.group_index, grid.block
    return builder.once(("spread", role, stored, tuple(sizes), np.dtype(dtype).name), make)
