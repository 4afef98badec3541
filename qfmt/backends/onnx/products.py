"""Convolutions and matrix products, and their biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32
from ...model import INT32, Quantization, Tensor
from . import grids
from .lowering import Site, lowers, plain


@lowers("Conv", "ConvTranspose", "Gemm")
def with_bias(site: Site) -> Sequence[ir.Value]:
    return plain(site, [site.real(0), site.real(1), bias(site)], site.attributes)


@lowers("qfmt.Linear")
def linear(site: Site) -> ir.Value:
    """Gemm for matrices; else MatMul, which takes any number of leading dimensions, with the weight transposed."""
    x, b = site.real(0), bias(site)
    shape = site.tensor(0).shape
    if shape is not None and len(shape) == 2:
        return site.emit("Gemm", x, real_weight(site, 1), b, transB=1)
    return product(site, x, transposed_weight(site, 1), b)


def product(site: Site, x: ir.Value | None, transposed: ir.Value, b: ir.Value | None) -> ir.Value:
    """X · Wᵀ + B over the last dimension of X."""
    y = site.emit("MatMul", x, transposed)
    return y if b is None else site.emit("Add", y, b)


def transposed_weight(site: Site, index: int) -> ir.Value:
    """The real numbers of the transpose of a matrix. Integers are transposed: runtimes do that once, and then see
    DequantizeLinear before MatMul."""
    tensor = site.tensor(index)
    if tensor.quantization is None:
        return site.emit("Transpose", real_weight(site, index), perm=[1, 0])
    if tensor.quantization.is_blocked:
        return site.emit("Transpose", site.real(index), perm=[1, 0])
    axis = None if tensor.quantization.axis is None else 1 - tensor.quantization.axis
    return grids.dequantized(site.builder, tensor, site.emit("Transpose", site.stored(index), perm=[1, 0]), axis)


def real_weight(site: Site, index: int) -> ir.Value | None:
    """The real numbers of a weight, float32: PyTorch keeps some as float16 and multiplies in float32."""
    w = site.real(index)
    if site.tensor(index).dtype == "float16":
        return site.emit("Cast", w, to=int(ir.DataType.FLOAT))
    return w


def bias(site: Site) -> ir.Value | None:
    """The bias of a product: as it is; or, where the stated rule rounds it to whole accumulators, as int32 of them."""
    if not site.has(2) or not site.node.rule.startswith("integer_bias"):
        return site.real(2)
    b, x, w = (site.tensor(index) for index in (2, 0, 1))
    if b.quantization is not None or not b.is_constant or b.array.ndim != 1 or not _has_scales(x, w):
        return site.real(2)
    unit, values = units(grids.grid_of(x), grids.grid_of(w), b.array.size), b.array.astype(f32)
    with np.errstate(over="ignore"):  # what is too large stays real
        quotient = values * (f32(1) / unit) if site.node.rule == "integer_bias_reciprocal" else values / unit
    whole = np.rint(quotient).astype(np.float64)
    if np.array_equal(whole.astype(f32) * unit, values) or np.abs(whole).max(initial=0) > INT32:
        return site.real(2)
    axis = 0 if unit.size > 1 else None
    grid = Quantization(tuple(unit.tolist()), (0,) * unit.size, -INT32 - 1, INT32, axis)
    name = site.builder.fresh(f"{b.name}_quantized")
    return site.builder.added(Tensor.constant(name, whole.astype(np.int32), grid))


def _has_scales(*tensors: Tensor) -> bool:
    return all(tensor.quantization is not None and tensor.quantization.scale for tensor in tensors)


def units(x: Quantization, w: Quantization, channels: int) -> Any:
    """f32(sx · sw): what one of an accumulator is worth; one number, or one per output channel."""
    scales = f32(x.scale[0]) * np.array(w.scale, f32)
    return np.tile(scales, channels // scales.size) if w.is_per_channel else scales
