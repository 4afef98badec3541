"""Every operator between dequantize and quantize, in operators that torch.export and Inductor know.

The arithmetic is that of `quantized_decomposed`: float32, rounded once per node. It is not bit for bit that of the
integer kernels.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from operator import getitem
from typing import Any

import torch

from ...arithmetic import LEAST_SCALE
from ...model import DTYPES
from .arithmetic import Grid
from .dynamic import dynamic_linear_by_rule
from .emit import PLAIN, Emitter, Engine, Lacks, Site, Table
from .floats import FLOAT, REAL, computed
from .integers import INTEGERS
from .interpreted import LOOK_UP, NUMPY
from .moves import MOVES
from .products import PRODUCTS
from .reference import REFERENCE
from .values import torch_dtype
from .weights import WEIGHTS, real_constant

aten = torch.ops.aten


def _decomposed() -> Any:
    """The operators; they are defined when a module of torch.ao is imported, which is deprecated."""
    if not hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("torch.ao.quantization.fx._decomposed")
    return torch.ops.quantized_decomposed


def _real(s: Site, index: int) -> Any:
    """An input as floats. Each reader dequantizes separately: Inductor matches that form.

    Constants of other types, such as int32 biases, are stored as floats. So are integers without a quantization.
    """
    tensor = s.tensor(index)
    if tensor.quantization is None:
        return s.call(aten.to.dtype, s.x(index), torch.float32) if DTYPES[tensor.dtype].is_integer else s.x(index)
    if tensor.data is not None and torch_dtype(tensor.dtype) not in PER_CHANNEL:
        return real_constant(s, index)
    x, limits = s.grid(index), DTYPES[tensor.dtype]
    _check(x)
    bounds = (limits.minimum, limits.maximum, x.dtype)
    if x.axis is None:
        return s.call(_decomposed().dequantize_per_tensor.default, s.x(index), x.scale, x.zero_point, *bounds)
    name = s.node.inputs[index]
    scales = s.builder.derive(f"{name}_scale32", torch.tensor(x.scale, dtype=torch.float32))
    points = s.builder.derive(f"{name}_zero_point64", torch.tensor(x.zero_point, dtype=torch.int64))
    return s.call(_decomposed().dequantize_per_channel.default, s.x(index), scales, points, x.axis, *bounds)


PER_CHANNEL = (torch.uint8, torch.int8, torch.int16)
PER_TENSOR = (*PER_CHANNEL, torch.uint16)
"""The types of quantized_decomposed that float32 represents exactly; torch subtracts no zero points from uint16."""


def _check(grid: Grid) -> None:
    if grid.dtype not in (PER_TENSOR if grid.axis is None else PER_CHANNEL):
        raise Lacks(f"quantized_decomposed computes on 8 and 16 bits, not {grid.dtype}")


def _integers(s: Site, value: Any) -> Any:
    """Floats as the output of the node; a fused ReLU becomes a ReLU again."""
    if s.out.quantization is None:
        return value
    y, limits = s.out_grid, DTYPES[s.out.dtype]
    _check(y)
    low = y.minimum
    if y.minimum == y.zero_point and y.minimum != limits.minimum:
        value, low = s.call(aten.relu.default, value), limits.minimum
    if y.axis is not None:
        raise Lacks("has an output quantized per channel")
    grid = (y.scale, y.zero_point, low, y.maximum, y.dtype)
    return s.result(_decomposed().quantize_per_tensor.default, value, *grid)


def _dynamic_linear(s: Site) -> Any:
    """As in PT2E: a separate operator computes scale and zero point. Other rules than PT2E's follow the stated
    rule."""
    if s.node.rule != "dynamic_reciprocal" or s.attribute("reduce_range") or s.attribute("per_token"):
        return dynamic_linear_by_rule(s)
    limits = (0, 255)
    chosen = s.call(_decomposed().choose_qparams.tensor, s.x(0), *limits, LEAST_SCALE, torch.uint8)
    grid = (s.call(getitem, chosen, 0), s.call(getitem, chosen, 1), *limits, torch.uint8)
    x = s.call(_decomposed().quantize_per_tensor.tensor, s.x(0), *grid)
    operands = (s.call(_decomposed().dequantize_per_tensor.tensor, x, *grid), _real(s, 1))
    return s.call(aten.linear.default, *operands, s.x(2) if s.has(2) else None)


def _between(s: Site) -> Any:
    if s.is_float:
        raise Lacks("is not quantized")
    if s.node.operator == "QuantizeLinear" and s.tensor(0).dtype in ("bool", "float64"):
        raise Lacks(f"quantized_decomposed quantizes no {s.tensor(0).dtype}")
    return _integers(s, computed(s, _real))


QDQ_EMITTERS: dict[str, Emitter] = {
    **MOVES,
    **dict.fromkeys(REAL, _between),
    "qfmt.DynamicLinear": _dynamic_linear,
}
QDQ = Table("qdq", PLAIN, QDQ_EMITTERS.get)
QDQ_ENGINE = Engine("qdq", (QDQ, FLOAT, WEIGHTS, INTEGERS, LOOK_UP, PRODUCTS, REFERENCE, NUMPY), own=4, traceable=True)
