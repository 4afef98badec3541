"""Integers as sums of bytes, because ConvInteger and MatMulInteger multiply only bytes: q = 256 · high + low."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...model import DTYPES, Tensor
from ...ops import Operand
from ...ops.accumulation import whole
from ...passes.same_types import OFFSETS
from .lowering import Site


class Part(NamedTuple):
    """int8 or uint8 with their zero point (None: 0): q - z is the sum of (value - zero_point) · factor of all parts."""

    value: ir.Value
    zero_point: ir.Value | None
    dtype: str
    factor: int = 1

    def turned(self, site: Site) -> Part:
        """The transpose of a matrix."""
        key = (str(self.value.name), "turned")
        return self._replace(value=site.builder.once(key, lambda: site.emit("Transpose", self.value, perm=[1, 0])))

    def of_type(self, site: Site, dtype: str) -> Part:
        """The same as integers of that type: 128 is added or subtracted, also to the zero point."""
        if dtype == self.dtype:
            return self
        zero_point = self.zero_point or site.constant("zero_point", np.zeros((), self.dtype))

        def shifted(value: ir.Value) -> ir.Value:
            return site.builder.once((str(value.name), dtype), lambda: _shifted(site, value, dtype))

        return Part(shifted(self.value), shifted(zero_point), dtype, self.factor)


def _shifted(site: Site, value: ir.Value, dtype: str) -> ir.Value:
    """Integers of 8 bits of one type as those of the other."""
    if value.const_value is not None:
        integers = value.const_value.numpy().astype(np.int16) + OFFSETS[dtype]
        return site.builder.constant(f"{value.name}.{dtype}", integers.astype(dtype), dtype)
    moved = site.emit("Add", site.to("int32", value), site.constant("offset", np.int32(OFFSETS[dtype])))
    return site.to(dtype, moved)


def of_tensor(site: Site, index: int) -> list[Part]:
    """The parts of an input: itself, if it is of bytes with one zero point."""
    tensor = site.tensor(index)
    points = (0,) if tensor.quantization is None else tensor.quantization.zero_point
    bits, several = DTYPES[tensor.dtype].bits, len(set(points)) > 1
    if tensor.is_constant and (several or bits != 8):
        return of_constant(site, tensor.name, whole(Operand(tensor.array, tensor.quantization)))
    value = site.stored(index)
    assert value is not None
    kind = "int" if DTYPES[tensor.dtype].kind == "i" else "uint"
    if bits <= 8:
        if bits < 8:
            value = site.to(f"{kind}8", value)
        return [Part(value, _zero_point(site, tensor, points if several else points[0], f"{kind}8"), f"{kind}8")]
    point = int(points[0])
    wide, base = site.to("int32", value), site.constant("byte", np.int32(256))
    low = site.emit("Mod", wide, base)
    high = site.emit("Div", site.emit("Sub", wide, low), base)
    return [
        Part(site.to("uint8", low), _zero_point(site, tensor, point & 255, "uint8"), "uint8"),
        Part(site.to(f"{kind}8", high), _zero_point(site, tensor, point >> 8, f"{kind}8"), f"{kind}8", 256),
    ]


def of_constant(site: Site, what: str, values: Array) -> list[Part]:
    """The parts of integers of up to 17 bits."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for dtype in ("int8", "uint8"):
        if DTYPES[dtype].minimum <= low and high <= DTYPES[dtype].maximum:
            return [Part(site.builder.constant(f"{site.name}.{what}", values.astype(dtype), dtype), None, dtype)]
    first = Part(site.builder.constant(f"{site.name}.{what}.low", (values & 255).astype(np.uint8)), None, "uint8")
    return [first, *(part._replace(factor=part.factor * 256) for part in of_constant(site, what, values >> 8))]


def _zero_point(site: Site, tensor: Tensor, points: Any, dtype: str) -> ir.Value | None:
    if not np.any(points):
        return None
    return site.builder.constant(f"{tensor.name}.zero_point", np.array(points), dtype)
