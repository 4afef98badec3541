"""Linear layers with a weight of torchao: `qfmt::quantized_linear`, which stands in traces of modules in memory."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...errors import SourceError
from .decomposed import RECIPROCAL
from .lift import Lifter, lifts
from .torchao import INTX, Activation, of_json
from .values import TensorValue

FLOAT32_TINY = float(np.finfo(np.float32).tiny)


@lifts("qfmt::quantized_linear")
def quantized_linear(
    lift: Lifter,
    x: Any,
    weight: Any,
    scale: Any,
    zero_point: Any,
    act_quant_scale: Any,
    act_quant_zero_point: Any,
    act_pre_scale: Any,
    bias: Any,
    told: str,
) -> Any:
    """torch.nn.functional.linear as torchao computes it: the `linear` of each class in its workflows."""
    named = {
        "qdata": weight, "scale": scale, "zero_point": zero_point, "act_quant_scale": act_quant_scale,
        "act_quant_zero_point": act_quant_zero_point, "act_pre_scale": act_pre_scale,
    }  # fmt: skip
    described = json.loads(told)
    parts = {name: part for name, part in named.items() if part is not None}
    read = of_json(described["kind"], parts, described["told"])
    if read.real_dtype != "float32":
        hint = "call model.float() before quantize_"
        raise SourceError(f"computes in {read.real_dtype}, which is not converted", hint=hint)
    value = lift.tensor(x)
    if value.shape is not None:
        lift.need(value, (*[None] * (len(value.shape) - 1), weight.shape[1]))
    if read.pre_scale is not None:
        value = lift.emit("Mul", [value, read.pre_scale])
    inputs = [lift.stored(read.stored, dtype=read.dtype, quantization=read.quantization), bias]
    activation = read.activation
    if activation is None:
        return lift.emit("qfmt.Linear", [value, *inputs])
    if activation.grid is not None:
        q = lift.emit("QuantizeLinear", [value], quantization=activation.grid, dtype="int8", rule=RECIPROCAL)
        return lift.emit("qfmt.Linear", [lift.emit("DequantizeLinear", [q], dtype="float32"), *inputs])
    if described["kind"] == INTX:
        return lift.emit("qfmt.Linear", [_on_grids_of_rows(lift, value), *inputs])
    return _dynamic(lift, activation, [value, *inputs])


def _dynamic(lift: Lifter, activation: Activation, inputs: list[Any]) -> Any:
    if activation.dtype != "int8" or not activation.symmetric:
        what = f"quantizes its input while the network runs, {activation}, which is not converted"
        raise SourceError(what, hint="choose MappingType.SYMMETRIC, int8")
    attributes = {"reduce_range": int(activation.reduce_range), "per_token": int(activation.per == "token")}
    return lift.emit("qfmt.DynamicLinear", inputs, attributes, rule="dynamic_symmetric")


def _on_grids_of_rows(lift: Lifter, x: TensorValue) -> TensorValue:
    """x on the int8 grid that the range of each row gives, as real numbers.

    `_apply_int8_act_asym_per_token_quant_dequant` and `_choose_qparams_affine` of torchao 0.18: s = max(range / 255,
    the smallest normal float32), z = clamp(-128 - rint(low / s)), q = clamp(rint(x · (1 / s)) + z).
    """
    axis, zero = lift.constant(np.array([-1], np.int64)), lift.tensor(0.0)
    lowest, highest = lift.tensor(-128.0), lift.tensor(127.0)
    least = lift.emit("Min", [lift.emit("ReduceMin", [x, axis], {"keepdims": 1}), zero])
    most = lift.emit("Max", [lift.emit("ReduceMax", [x, axis], {"keepdims": 1}), zero])
    width = lift.emit("Div", [lift.emit("Sub", [most, least]), lift.tensor(255.0)])
    scale = lift.emit("Max", [width, lift.tensor(FLOAT32_TINY)])
    steps = lift.emit("Round", [lift.emit("Div", [least, scale])])
    point = lift.emit("Clip", [lift.emit("Sub", [lowest, steps]), lowest, highest])
    rounded = lift.emit("Round", [lift.emit("Mul", [x, lift.emit("Reciprocal", [scale])])])
    q = lift.emit("Clip", [lift.emit("Add", [rounded, point]), lowest, highest])
    real: TensorValue = lift.emit("Mul", [lift.emit("Sub", [q, point]), scale])
    return real
