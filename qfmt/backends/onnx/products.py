"""Convolutions and matrix products, and their biases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32
from ...model import Quantization, Tensor
from .lowering import Site, lowers, plain


@lowers("Conv", "ConvTranspose")
def convolution(site: Site) -> Sequence[ir.Value]:
    return plain(site, [site.real(0), site.real(1), bias(site)], site.attributes)


@lowers("qfmt.Linear")
def linear(site: Site) -> ir.Value:
    """Gemm for matrices; else MatMul, which takes any number of leading dimensions, with the weight transposed."""
    x, w, b = site.real(0), site.real(1), bias(site)
    shape = site.tensor(0).shape
    if shape is not None and len(shape) == 2:
        return site.emit("Gemm", x, w, b, transB=1)
    y = site.emit("MatMul", x, site.emit("Transpose", w, perm=[1, 0]))
    return y if b is None else site.emit("Add", y, b)


def bias(site: Site) -> ir.Value | None:
    """The bias of a product: as it is; or, where the stated rule rounds it to whole accumulators, as int32 of them."""
    if not site.has(2) or not site.node.arithmetic.startswith("integer_bias"):
        return site.real(2)
    b, x, w = (site.tensor(index) for index in (2, 0, 1))
    if b.quantization is not None or not b.is_constant or x.quantization is None or w.quantization is None:
        return site.real(2)
    repeat = b.array.size // len(w.quantization.scale) if w.quantization.is_per_channel else 1
    unit = np.tile(f32(x.quantization.scale[0]) * np.array(w.quantization.scale, f32), repeat)
    values = b.array.astype(f32)
    quotient = values * (f32(1) / unit) if site.node.arithmetic == "integer_bias_reciprocal" else values / unit
    whole = np.rint(quotient).astype(np.float64)
    if np.array_equal(whole.astype(f32) * unit, values) or np.abs(whole).max(initial=0) >= 1 << 31:
        return site.real(2)
    axis = 0 if unit.size > 1 else None
    grid = Quantization(tuple(unit.tolist()), (0,) * unit.size, -(1 << 31), (1 << 31) - 1, axis)
    name = site.builder.fresh(f"{b.name}_quantized")
    return site.builder.added(Tensor.constant(name, whole.astype(np.int32), grid))
