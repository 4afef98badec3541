"""Operators that compute nothing: quantize, dequantize, and data movement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...arithmetic import dequantize, f32, quantize
from ...model import DTYPES, numpy_dtype
from .lowering import Site, lowers, one_to_one, plain, typed_inputs
from .opsets import Lacks
from .qdq import HALVES, domain_of


@lowers("QuantizeLinear")
def to_integers(site: Site) -> None:
    """Defining the output tensor quantizes it with its own parameters."""
    name = site.node.outputs[0]
    site.builder.define_real(name, site.x)
    site.builder.name(site.builder.stored(name), site.name)


@lowers("DequantizeLinear")
def to_real(site: Site) -> None:
    """The real numbers of the input, under the name of the output."""
    source, name = site.node.inputs[0], site.node.outputs[0]
    real = site.builder.real(source)
    site.builder.name(real, site.name)
    site.builder.define(name, real)
    site.builder.know_real(source, site.builder.stored(name))


@lowers("ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear")
def with_scale(site: Site) -> Sequence[ir.Value]:
    """With computed scales. The output's type is an attribute from opset 21, or 23, on."""
    name = site.node.operator.removeprefix("ai.onnx.")
    attributes = dict(site.attributes)
    decides = 2 if name == "QuantizeLinear" else 1
    follows = site.tensor(decides).dtype if site.has(decides) else "uint8"
    if attributes["output_dtype"] == follows:
        del attributes["output_dtype"]
    inputs = [site.real(0), site.real(1), *(site.stored(index) for index in range(2, len(site.node.inputs)))]
    integers = site.output().dtype if name == "QuantizeLinear" else site.tensor(0).dtype
    if site.has(2) and site.tensor(2).dtype != integers:
        if DTYPES[integers].is_integer and not DTYPES[site.tensor(2).dtype].is_integer:
            raise Lacks("has zero points that are not integers")
        inputs[2] = site.cast(2, integers)
    domain = domain_of(site.builder, name, integers)
    if domain is None:
        raise Lacks(f"has a tensor of {integers}, which that opset cannot quantize with computed scales")
    if domain:
        if attributes["block_size"] or "output_dtype" in attributes:
            raise Lacks(
                f"has a tensor of {integers}, which that opset quantizes only per tensor, in the range of the type"
            )
        return [site.builder.emit(name, *inputs, name=f"{site.name}_{name}", domain=domain, axis=attributes["axis"])]
    if site.tensor(1).dtype in HALVES and site.builder.opset < 19:
        raise Lacks(f"has scales of {site.tensor(1).dtype}, which {name} has from opset 19 on")
    if site.tensor(1).dtype != "float32" and name == "QuantizeLinear" and site.builder.opset >= 23:
        attributes["precision"] = int(ir.DataType.FLOAT)  # else it divides in the type of the scale
    return plain(site, inputs, attributes, name)


@lowers("Cast")
def cast(site: Site) -> Sequence[ir.Value]:
    """ONNX Runtime computes most operators of float16 in float32, and leaves numbers unrounded where a Cast of the
    model meets one of its own. A Max of float16, which it has and which changes nothing, keeps them apart; it is not
    needed if the source has that Cast, too."""
    if site.node.source_operator in ("Cast", "CastLike"):
        return plain(site, [site.x], site.attributes)
    x, kinds = site.x, (site.tensor(0).dtype, site.output().dtype)
    (result,) = plain(site, [site.emit("Max", x) if kinds[0] == "float16" else x], site.attributes)
    return [site.emit("Max", result) if kinds[1] == "float16" else result]


LAST_END = 2**31 - 2
"""The largest end of a Slice backwards: ONNX Runtime reads the largest int32 and int64 as "to the first element"."""


@lowers("Slice")
def slice_(site: Site) -> Sequence[ir.Value]:
    """An end behind all elements may be any number behind them; ONNX Runtime misreads large ones of negative steps."""
    inputs, ends = typed_inputs(site), site.tensor(2)
    if not site.has(4) or (site.tensor(4).is_constant and (site.tensor(4).array > 0).all()):
        return plain(site, inputs, {})
    if not ends.is_constant:
        last = site.constant("last_end", np.array(LAST_END, ends.dtype))
        inputs[2] = site.emit("Where", site.emit("Less", inputs[2], last), inputs[2], last)
    else:
        steps = site.tensor(4).array if site.tensor(4).is_constant else np.array(-1)
        if (beyond := (ends.array > LAST_END) & (steps < 0)).any():
            inputs[2] = site.constant("ends", np.where(beyond, LAST_END, ends.array).astype(ends.array.dtype))
    return plain(site, inputs, {})


@lowers("Squeeze")
def squeeze(site: Site) -> ir.Value | Sequence[ir.Value]:
    """An empty list of axes is none of them; to ONNX Runtime it is all of size 1."""
    if site.has(1) and site.tensor(1).is_constant and not site.tensor(1).array.size:
        return site.emit("Identity", site.x)
    return one_to_one(site)


@lowers("Clip")
def clip(site: Site) -> Sequence[ir.Value]:
    """Clip on quantized tensors rounds its bounds by its own rule: a bound that QuantizeLinear rounds differently is
    adjusted."""
    inputs = typed_inputs(site)
    grid = site.output().quantization
    for index in (1, 2):
        if not site.has(index) or grid is None:
            continue
        bound = site.tensor(index)
        if not bound.is_constant:
            continue
        real, dtype = bound.array.astype(f32).reshape(()), numpy_dtype(site.output().dtype)
        meant = quantize(real, grid, dtype, "reciprocal_offset")
        if (meant != quantize(real, grid, dtype, "divide")).any():
            inputs[index] = site.constant(bound.name, dequantize(meant, grid))
    return plain(site, inputs, site.attributes)
