"""Operators that compute nothing: into and out of integers, and what moves them."""

from __future__ import annotations

import onnx_ir as ir

from .constants import onnx_dtype
from .lowering import Site, lowers


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


@lowers("Cast")
def cast(site: Site) -> ir.Value:
    return site.emit("Cast", site.real(0), to=int(onnx_dtype(site.attributes["to"])))
