"""Into and out of integers: QuantizeLinear and DequantizeLinear, or their formulas where they lack a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32
from ...model import DTYPES, Quantization, Tensor
from .constants import onnx_dtype
from .opsets import schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .builder import Builder

CONTRIBUTED = ("int4", "uint4", "int16", "uint16")
"""Element types that ONNX Runtime's own QuantizeLinear and DequantizeLinear have in any opset."""


def dequantized(builder: Builder, tensor: Tensor, stored: ir.Value, name: str) -> ir.Value:
    """The real numbers of a tensor, as a value of that name."""
    grid = _grid(tensor)
    domain = _domain(builder, "DequantizeLinear", tensor.dtype)
    if domain is None or grid.has_float_zero_points or (DTYPES[tensor.dtype].bits == 32 and any(grid.zero_point)):
        return _dequantized_by_formula(builder, tensor, stored, name)
    inputs = [stored, scale(builder, tensor)]
    if DTYPES[tensor.dtype].bits < 32:
        inputs.append(zero_point(builder, tensor))
    return builder.emit("DequantizeLinear", *inputs, name=name, domain=domain, **_axis(grid))


def quantized(builder: Builder, tensor: Tensor, real: ir.Value) -> ir.Value:
    """Real numbers on the grid of a tensor, clamped to its [quant_min, quant_max]."""
    grid, name = _grid(tensor), f"{tensor.name}_quantize"
    domain = _domain(builder, "QuantizeLinear", tensor.dtype)
    if domain is None:
        return _quantized_by_formula(builder, tensor, real)
    inputs = (_limited(builder, tensor, real), scale(builder, tensor), zero_point(builder, tensor))
    return builder.emit("QuantizeLinear", *inputs, name=name, domain=domain, **_axis(grid))


def scale(builder: Builder, tensor: Tensor) -> ir.Value:
    """The scale of a tensor, float32: a scalar, or a vector along its axis."""
    grid = _grid(tensor)
    values = _shaped(grid, np.array(grid.scale, f32))
    return builder.once((tensor.name, "scale"), lambda: builder.constant(f"{tensor.name}.scale", values))


def zero_point(builder: Builder, tensor: Tensor) -> ir.Value:
    """The zero point of a tensor, of its element type: a scalar, or a vector along its axis."""
    grid = _grid(tensor)
    values = _shaped(grid, np.array(grid.zero_point, np.int64))
    name = f"{tensor.name}.zero_point"
    return builder.once((tensor.name, "zero_point"), lambda: builder.constant(name, values, tensor.dtype))


def _shaped(grid: Quantization, values: NDArray[Any]) -> NDArray[Any]:
    return values if grid.is_per_channel else values.reshape(())


def _axis(grid: Quantization) -> dict[str, int]:
    return {} if grid.axis is None else {"axis": grid.axis}


def _grid(tensor: Tensor) -> Quantization:
    assert tensor.quantization is not None
    return tensor.quantization


def _domain(builder: Builder, operator: str, dtype: str) -> str | None:
    """The domain whose operator takes that type in this opset; None if none does."""
    definition = schema(operator, builder.opset)
    integers = definition.inputs[0] if operator == "DequantizeLinear" else definition.outputs[0]
    spelled = f"tensor({dtype.replace('float8_', 'float8')})"
    for constraint in definition.type_constraints:
        if constraint.type_param_str == integers.type_str and spelled in constraint.allowed_type_strs:
            return ""
    return "com.microsoft" if dtype in CONTRIBUTED else None


def _limited(builder: Builder, tensor: Tensor, real: ir.Value) -> ir.Value:
    """Real numbers that QuantizeLinear rounds into [quant_min, quant_max].

    Rounding is monotone, and the real number of an integer is rounded to that integer: so to clamp first is the same.
    """
    grid, dtype = _grid(tensor), DTYPES[tensor.dtype]
    low = _limit(grid, grid.quant_min) if grid.quant_min > dtype.minimum else None
    high = _limit(grid, grid.quant_max) if grid.quant_max < dtype.maximum else None
    if low is not None and high is None and not low.any():
        return builder.emit("Relu", real, name=f"{tensor.name}_relu")
    if grid.is_per_channel:
        for operator, limit in (("Max", low), ("Min", high)):
            if limit is not None:
                bound = builder.constant(f"{tensor.name}.{operator.lower()}", _along(grid, tensor, limit))
                real = builder.emit(operator, real, bound, name=f"{tensor.name}_{operator.lower()}")
        return real
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


def _dequantized_by_formula(builder: Builder, tensor: Tensor, stored: ir.Value, name: str) -> ir.Value:
    """f32(q - z) · f32(s), the difference exact in int64 (or, of float zero points, in float32)."""
    grid = _grid(tensor)
    wide, dtype = (ir.DataType.FLOAT, f32) if grid.has_float_zero_points else (ir.DataType.INT64, np.int64)
    offset = builder.constant(f"{tensor.name}.zero_point", _along(grid, tensor, np.array(grid.zero_point, dtype)))
    difference = builder.emit("Cast", stored, name=f"{tensor.name}_wide", to=int(wide))
    difference = builder.emit("Sub", difference, offset, name=f"{tensor.name}_centred")
    if wide != ir.DataType.FLOAT:
        difference = builder.emit("Cast", difference, name=f"{tensor.name}_float", to=int(ir.DataType.FLOAT))
    step = builder.constant(f"{tensor.name}.scale", _along(grid, tensor, np.array(grid.scale, f32)))
    return builder.emit("Mul", difference, step, name=name)


def _quantized_by_formula(builder: Builder, tensor: Tensor, real: ir.Value) -> ir.Value:
    """clamp(rint(x / s) + z), the sum in float64, which holds every integer of 32 bits."""
    grid, name = _grid(tensor), tensor.name
    step = builder.constant(f"{name}.scale", _along(grid, tensor, np.array(grid.scale, f32)))
    offset = builder.constant(f"{name}.zero_point", _along(grid, tensor, np.array(grid.zero_point, np.float64)))
    limits = (
        builder.constant(f"{name}.{what}", np.array(limit, np.float64))
        for what, limit in (("quant_min", grid.quant_min), ("quant_max", grid.quant_max))
    )
    rounded = builder.emit("Round", builder.emit("Div", real, step, name=f"{name}_div"), name=f"{name}_round")
    rounded = builder.emit("Cast", rounded, name=f"{name}_wide", to=int(ir.DataType.DOUBLE))
    clamped = builder.emit(
        "Clip", builder.emit("Add", rounded, offset, name=f"{name}_add"), *limits, name=f"{name}_clip"
    )
    return builder.emit("Cast", clamped, name=f"{name}_quantize", to=int(onnx_dtype(tensor.dtype)))


def _along(grid: Quantization, tensor: Tensor, values: NDArray[Any]) -> NDArray[Any]:
    """Numbers per tensor, or per slice of the axis, as they broadcast against the tensor."""
    if grid.axis is None:
        return values.reshape(())
    return values.reshape([-1, *(1 for _ in tensor.shape[grid.axis + 1 :])]) if tensor.shape is not None else values
