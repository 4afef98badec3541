"""Products whose input is quantized at run time: DynamicQuantizeLinear, and sums of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...arithmetic import DYNAMIC, SYMMETRIC_LEAST_SCALE
from ...model import Tensor
from . import qdq
from .constants import turned_constant
from .lowering import Site, lowers, plain
from .older import reduced
from .opsets import Lacks
from .products import product, transposed_weight

SYMMETRIC = "dynamic_symmetric"

Multiply = Callable[[ir.Value], ir.Value]


class Quantized(NamedTuple):
    """uint8 numbers with scale and zero point, both of which are scalars that the network computes."""

    integers: ir.Value
    scale: ir.Value
    zero_point: ir.Value

    def real(self, site: Site) -> ir.Value:
        return site.emit("DequantizeLinear", *self)


def _real(site: Site) -> ir.Value:
    """The input as float32, from which the rules compute its range."""
    x = site.tensor(0)
    return site.x if x.dtype == "float32" or x.quantization is not None else site.cast(0, "float32")


def quantized_now(site: Site, x: ir.Value) -> Quantized:
    """x on the grid of its range; on 0..127 of it, if the model states that. DynamicQuantizeLinear has no least scale;
    the rules of torch have one."""
    rule = DYNAMIC[site.node.rule if site.node.rule in DYNAMIC else "dynamic_fma"]
    if not site.attributes["reduce_range"] and not rule.least_scale:
        return Quantized(*site.emit_several("DynamicQuantizeLinear", [x], 3))
    numbers = (("zero", 0), ("one", 1), ("top", 127 if site.attributes["reduce_range"] else 255))
    zero, one, top = (site.constant(what, np.array(value, np.float32)) for what, value in numbers)
    low = site.emit("Min", site.emit("ReduceMin", x, keepdims=0), zero)
    high = site.emit("Max", site.emit("ReduceMax", x, keepdims=0), zero)
    step = site.emit("Div", site.emit("Sub", high, low), top)
    whole = scale = site.emit("Where", site.emit("Equal", step, zero), one, step)
    if rule.least_scale:
        scale = site.emit("Max", whole, site.constant("least", np.array(rule.least_scale, np.float32)))
    rounded = site.emit("Round", site.emit("Div", site.emit("Neg", low), whole if rule.stretches else scale))
    zero_point = site.to("uint8", rounded)
    return Quantized(site.emit("QuantizeLinear", x, scale, zero_point), scale, zero_point)


def multiplier(site: Site, weight: int, bias: int) -> Multiply:
    """A function that multiplies with a transposed weight and adds a bias; values of only these are written now."""
    tensor = site.tensor(weight)
    b = site.real(bias)
    if tensor.quantization is None or not _has_integer_sums(tensor):
        transposed = transposed_weight(site, weight)
        if tensor.quantization is None:
            return lambda x: product(site, x, transposed, b)
        return lambda x: product(site, quantized_now(site, x).real(site), transposed, b)
    transposed = _turned(site, weight)
    scale, zero_point = qdq.scale(site.builder, tensor), _zero_point(site, tensor)

    def multiply(x: ir.Value) -> ir.Value:
        q = quantized_now(site, x)
        sums = site.emit("MatMulInteger", q.integers, transposed, q.zero_point, zero_point)
        y = site.emit("Mul", site.to("float32", sums), site.emit("Mul", q.scale, scale))
        return y if b is None else site.emit("Add", y, b)

    return multiply


def _turned(site: Site, weight: int) -> ir.Value:
    """The integers of a weight as [in, out]: under their name in the source, or by a Transpose."""
    tensor, builder = site.tensor(weight), site.builder
    former = tensor.name.removesuffix(".T")
    if tensor.is_constant and former in tensor.aliases and former not in builder.model.tensors:
        return builder.once((tensor.name, "turned"), lambda: builder.initializer(former, turned_constant(tensor)))
    return site.emit("Transpose", site.stored(weight), perm=[1, 0])


def _has_integer_sums(w: Tensor) -> bool:
    grid = w.quantization
    if grid is None or not grid.scale or grid.axis not in (None, 0) or grid.has_float_zero_points:
        return False
    return w.dtype in ("int8", "uint8")


def _zero_point(site: Site, w: Tensor) -> ir.Value | None:
    """None if it is zero everywhere."""
    assert w.quantization is not None
    return qdq.zero_point(site.builder, w) if any(w.quantization.zero_point) else None


@lowers("qfmt.DynamicLinear")
def dynamic_linear(site: Site) -> ir.Value:
    x = _real(site)
    if site.node.rule == SYMMETRIC:
        return _symmetric(site, x)
    if site.attributes["per_token"]:
        raise Lacks("cannot quantize each row of an input to unsigned integers")
    return multiplier(site, 1, 2)(x)


def _symmetric(site: Site, x: ir.Value) -> ir.Value:
    """The rule `dynamic_symmetric`, step by step, with the same roundings."""

    def number(value: float) -> ir.Value:
        return site.constant("constant", np.array(value, np.float32))

    top = 127 if site.attributes["reduce_range"] else 255
    size = site.emit("Abs", x)
    most = (
        reduced(site, "ReduceMax", size, [-1])
        if site.attributes["per_token"]
        else site.emit("ReduceMax", size, keepdims=0)
    )
    step = site.emit("Div", most, number(top / 2))
    scale = site.emit("Max", step, number(SYMMETRIC_LEAST_SCALE))
    rounded = site.emit("Round", site.emit("Mul", x, site.emit("Reciprocal", scale)))
    limits = number(-(top + 1) / 2), number((top - 1) / 2)
    q, b = site.emit("Clip", rounded, *limits), site.real(2)
    if not _has_integer_sums(site.tensor(1)):
        return product(site, site.emit("Mul", q, scale), transposed_weight(site, 1), b)
    w = site.emit("Transpose", site.stored(1), perm=[1, 0])
    integers = site.to("int8", q)
    sums = site.emit("MatMulInteger", integers, w, None, _zero_point(site, site.tensor(1)))
    y = site.emit("Mul", site.to("float32", sums), scale)
    y = site.emit("Mul", y, qdq.scale(site.builder, site.tensor(1)))
    return y if b is None else site.emit("Add", y, b)


@lowers("qfmt.DynamicConv", "qfmt.DynamicConvTranspose")
def dynamic_convolution(site: Site) -> ir.Value | Sequence[ir.Value]:
    """ConvInteger, if it supports the weight; else Conv on the real numbers of the quantized input."""
    attributes = {key: value for key, value in site.attributes.items() if key != "reduce_range"}
    name = "ConvTranspose" if site.node.operator.endswith("Transpose") else "Conv"
    x, w = _real(site), site.tensor(1)
    if w.quantization is None:
        return plain(site, [x, site.real(1), site.real(2)], attributes, name)
    q = quantized_now(site, x)
    one_point = len(set(w.quantization.zero_point)) == 1
    if name == "Conv" and site.node.rule in DYNAMIC and w.shape and _has_integer_sums(w) and one_point:
        return _by_integers(site, q, attributes)
    (y,) = plain(site, [q.real(site), site.real(1), site.real(2)], attributes, name)
    if site.node.rule in DYNAMIC:
        return y
    return Quantized(site.emit("QuantizeLinear", y, q.scale, q.zero_point), q.scale, q.zero_point).real(site)


def _by_integers(site: Site, q: Quantized, attributes: dict[str, object]) -> ir.Value:
    w = site.tensor(1)
    assert w.quantization is not None and w.shape is not None
    point = w.quantization.zero_point[0]
    zero_point = site.builder.constant(f"{w.name}.zero_point", np.array(point), w.dtype) if point else None
    (sums,) = plain(site, [q.integers, site.stored(1), q.zero_point, zero_point], attributes, "ConvInteger")
    scales = np.array(w.quantization.scale, np.float32)
    along = [-1, *(1 for _ in w.shape[2:])]
    scale = site.builder.constant(f"{w.name}.scale", scales.reshape(along if scales.size > 1 else ()))
    y = site.emit("Mul", site.to("float32", sums), site.emit("Mul", q.scale, scale))
    if not site.has(2):
        return y
    return site.emit("Add", y, site.emit("Reshape", site.real(2), site.constant("channels", np.array(along))))
