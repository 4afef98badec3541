"""Operators that compute nothing: into and out of integers, and what moves them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .lowering import Site, lowers, plain


@lowers("QuantizeLinear")
def quantize(site: Site) -> ir.Value | None:
    """The grid is the output's: what defines that tensor quantizes it."""
    return site.real(0)


@lowers("DequantizeLinear")
def dequantize(site: Site) -> None:
    """The real numbers of the input, under the name of the output."""
    source, name = site.node.inputs[0], site.node.outputs[0]
    real = site.builder.real(source)
    site.builder.define(name, real)
    site.builder.know_real(source, site.builder.stored(name))


@lowers("ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear")
def with_scale(site: Site) -> Sequence[ir.Value]:
    """With scales that are computed. The output's type is an attribute from opset 21, or 23, on."""
    name = site.node.operator.removeprefix("ai.onnx.")
    attributes = dict(site.attributes)
    decides = 2 if name == "QuantizeLinear" else 1
    follows = site.tensor(decides).dtype if site.has(decides) else "uint8"
    if attributes["output_dtype"] == follows:
        del attributes["output_dtype"]
    return plain(site, [site.stored(index) for index in range(len(site.node.inputs))], attributes, name)
