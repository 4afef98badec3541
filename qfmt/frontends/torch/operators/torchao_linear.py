"""Linear layers with a weight of torchao: `qfmt::quantized_linear`, which occurs in traces of modules in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arithmetic import SYMMETRIC_LEAST_SCALE
from ....errors import SourceError
from ...json_text import parse
from .. import shapes
from ..building import Builder
from ..lifts import lifts
from ..torchao import INTX, Activation, of_json
from ..values import TensorValue
from .decomposed import RECIPROCAL

FLOAT32_TINY = float(np.finfo(np.float32).tiny)
"""The default least scale of torchao's asymmetric grids."""


PARTS = ("qdata", "scale", "zero_point", "act_quant_scale", "act_quant_zero_point", "act_pre_scale")
"""The tensors of a weight, in the order of the call's arguments."""


@lifts(f"qfmt::quantized_linear(x, {', '.join(PARTS)}, bias, told)")
def quantized_linear(lift: Builder, a: Any) -> Any:
    """torch.nn.functional.linear as torchao computes it: the `linear` of each class in its workflows."""
    described = parse(a.told.encode(), lift.budget)
    parts = {name: part for name in PARTS if (part := getattr(a, name)) is not None}
    read = of_json(described["kind"], parts, described["told"])
    if read.real_dtype != "float32":
        hint = "call model.float() before quantize_"
        raise SourceError(f"computes in {read.real_dtype}, which is not supported", hint=hint)
    value = lift.tensor(a.x)
    if value.shape is not None:
        shapes.need(lift, value, (*[None] * (len(value.shape) - 1), a.qdata.shape[1]), any_rank=True)
    if read.pre_scale is not None:
        value = lift.emit("Mul", [value, read.pre_scale])
    name = next(iter(a.qdata.names), "").removesuffix("_qdata")
    inputs = [lift.stored(read.stored, name, dtype=read.dtype, quantization=read.quantization), a.bias]
    activation = read.activation
    if activation is None:
        return lift.emit("qfmt.Linear", [value, *inputs])
    if activation.grid is not None:
        q = lift.emit("QuantizeLinear", [value], quantization=activation.grid, dtype="int8", rule=RECIPROCAL)
        return lift.emit("qfmt.Linear", [lift.emit("DequantizeLinear", [q], dtype="float32"), *inputs])
    if activation.dtype != "int8":
        raise SourceError(f"quantizes its input at run time, {activation}, which is not supported")
    if activation.symmetric:
        attributes = {"reduce_range": int(activation.reduce_range), "per_token": int(activation.per == "token")}
        return lift.emit("qfmt.DynamicLinear", [value, *inputs], attributes, rule="dynamic_symmetric")
    least = FLOAT32_TINY if described["kind"] == INTX else SYMMETRIC_LEAST_SCALE
    return lift.emit("qfmt.Linear", [_on_grid(lift, value, activation, least), *inputs])


def _on_grid(lift: Builder, x: TensorValue, activation: Activation, least_scale: float) -> TensorValue:
    """x on the int8 grid of the range of each row, or of the whole tensor, as floats.

    `_choose_qparams_affine` and `_quantize_affine_no_dtype_cast` of torchao 0.18: s = max(range / 255, least scale),
    z = clamp(-128 - rint(low / s)), q = clamp(rint(x · (1 / s)) + z). Sums that int8 layers
    compute with integers, and round once, are floats here.
    """
    low, high = activation.limits
    axes = [lift.constant(np.array([-1], np.int64))] if activation.per == "token" else []
    lowest, highest, zero = (lift.tensor(float(each)) for each in (low, high, 0))
    least = lift.emit("Min", [lift.emit("ReduceMin", [x, *axes], {"keepdims": 1}), zero])
    most = lift.emit("Max", [lift.emit("ReduceMax", [x, *axes], {"keepdims": 1}), zero])
    width = lift.emit("Div", [lift.emit("Sub", [most, least]), lift.tensor(float(high - low))])
    scale = lift.emit("Max", [width, lift.tensor(least_scale)])
    steps = lift.emit("Round", [lift.emit("Div", [least, scale])])
    point = lift.emit("Clip", [lift.emit("Sub", [lowest, steps]), lowest, highest])
    rounded = lift.emit("Round", [lift.emit("Mul", [x, lift.emit("Reciprocal", [scale])])])
    q = lift.emit("Clip", [lift.emit("Add", [rounded, point]), lowest, highest])
    return lift.emit("Mul", [lift.emit("Sub", [q, point]), scale])
