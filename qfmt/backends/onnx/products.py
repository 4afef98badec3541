"""Convolutions and matrix products, and their biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ...model import DTYPES, Tensor
from ...ops.accumulation import QUANTIZED, int32_bias
from . import qdq
from .lowering import Site, lowers, one_to_one, plain, real_type
from .opsets import schema, takes


@lowers("Conv", "Gemm")
def with_bias(site: Site) -> Sequence[ir.Value]:
    return plain(site, [_first(site), alike(site, 1), bias(site)], site.attributes)


@lowers("ConvTranspose")
def transposed(site: Site) -> Sequence[ir.Value]:
    """What a pad below 0 adds to the sums are zeros: ONNX has no such pads, and ONNX Runtime no output_padding of a
    stride or more. The bias is added to them, too."""
    a = site.attributes
    pads, more = np.array(a["pads"], np.int64).reshape(2, -1), np.array(a["output_padding"], np.int64)
    grows = (pads < 0).any(0) | (more >= a["strides"])
    if not grows.any():
        return plain(site, [_first(site), alike(site, 1), bias(site)], a)
    kept = {"pads": np.where(grows, 0, pads).ravel().tolist(), "output_padding": np.where(grows, 0, more).tolist()}
    (y,) = plain(site, [_first(site), alike(site, 1)], a | kept)
    pads = np.where(grows, pads - [0 * more, more], 0)
    for widths in np.maximum(-pads, 0), np.minimum(-pads, 0):  # it grows before it is cropped
        if widths.any():
            y = site.emit("Pad", y, site.constant("pads", np.pad(widths, ((0, 0), (2, 0))).ravel()))
    if b := bias(site):
        y = site.emit("Add", y, site.emit("Reshape", b, site.constant("channels", np.array([-1, *(1 for _ in more)]))))
    return [y]


def _first(site: Site) -> ir.Value | None:
    """The real numbers of the first input, kept apart if ONNX Runtime would quantize the weight beside it."""
    x, name = site.real(0), site.node.outputs[0]
    return x if x is None or name not in site.builder.apart.products else qdq.kept_apart(site.builder, name, x)


@lowers("qfmt.Linear")
def linear(site: Site) -> ir.Value:
    """Gemm for matrices; else MatMul, which supports any number of leading dimensions, with the weight transposed."""
    x, b = _first(site), bias(site)
    shape = site.tensor(0).shape
    if shape is not None and len(shape) == 2:
        return site.emit("Gemm", x, alike(site, 1), b, transB=1)
    return product(site, x, transposed_weight(site, 1), b)


def product(site: Site, x: ir.Value | None, transposed: ir.Value, b: ir.Value | None) -> ir.Value:
    """X · Wᵀ + B over the last dimension of X."""
    y = site.emit("MatMul", x, transposed)
    return y if b is None else site.emit("Add", _before_add(site, y), b)


@lowers("MatMul")
def matrix_product(site: Site) -> ir.Value:
    (y,) = one_to_one(site)
    if site.node.outputs[0] in site.builder.apart.products:
        return qdq.kept_apart(site.builder, site.name, y)
    return _before_add(site, y)


def _before_add(site: Site, y: ir.Value) -> ir.Value:
    is_apart = site.builder.apart.from_add(site.tensor(0), site.tensor(1), site.opset)
    return qdq.kept_apart(site.builder, site.name, y) if is_apart else y


def transposed_weight(site: Site, index: int) -> ir.Value:
    """The real numbers of the transpose of a matrix. Integers are transposed: runtimes fold that, and then find
    DequantizeLinear before MatMul."""
    tensor = site.tensor(index)
    if tensor.quantization is None:
        return site.emit("Transpose", alike(site, index), perm=[1, 0])
    definition = schema("Transpose", site.opset)
    if not (tensor.quantization.is_affine and takes(definition, definition.inputs[0], tensor.dtype)):
        return site.emit("Transpose", site.real(index), perm=[1, 0])
    axis = None if tensor.quantization.axis is None else 1 - tensor.quantization.axis
    if tensor.is_constant and DTYPES[tensor.dtype].bits == 2:  # ONNX Runtime fails to fold their Transpose
        name = site.builder.fresh(f"{tensor.name}.T")
        grid = tensor.quantization if axis is None else tensor.quantization.along(axis)
        real = site.builder.added(Tensor.constant(name, tensor.array.T, grid, dtype=tensor.dtype))
        return qdq.kept_apart(site.builder, name, real) if tensor.name in site.builder.apart.constants else real
    return qdq.dequantized(site.builder, tensor, site.emit("Transpose", site.stored(index), perm=[1, 0]), axis)


def alike(site: Site, index: int) -> ir.Value | None:
    """The real numbers of a weight or bias in the type of those of the first input, as ONNX requires: PyTorch keeps
    some weights as float16 and multiplies by them in float32."""
    if not site.has(index):
        return None
    wanted, given = (real_type(site, site.tensor(each)) for each in (0, index))
    return site.real(index) if given == wanted else site.to(wanted, site.real(index))


def bias(site: Site) -> ir.Value | None:
    """The bias of a product: its real numbers; or, if the stated rule rounds it to units of the accumulator, int32."""
    if not site.has(2) or not site.node.rule.startswith("integer_bias"):
        return alike(site, 2)
    x, w, b = (site.tensor(index) for index in range(3))
    whole = int32_bias(site.node, x, w, b)
    if whole is None or np.array_equal(whole.dequantize(), b.array):
        return alike(site, 2)
    return site.builder.added(replace(whole, name=site.builder.fresh(b.name + QUANTIZED)))
