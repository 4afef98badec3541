"""Scales and zero points of calls of `quantized_decomposed`: stated, or computed by the network (dynamic quantization).

torch/ao/quantization/fx/_decomposed.py and utils.py, `determine_qparams`. Calls with a computed scale become operators
on real numbers; those of a whole linear layer become `qfmt.DynamicLinear`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arithmetic import LEAST_SCALE
from ....errors import SourceError
from ....graph import MAXIMUM_RANK
from ....model import DTYPES, Quantization, first_holding
from ....ops.registry import DYNAMIC_ENGINES
from ...stored import StoredTensor
from .. import arguments
from ..building import Builder
from ..calls import Value
from ..lifts import lifts
from ..values import TensorValue, narrowest


def per_tensor(lift: Builder, scale: Any, zero_point: Any, dtype: str, limits: tuple[Any, Any]) -> Quantization:
    factor = _positive(float(arguments.number(lift, scale)))
    low, high = limits_of(lift, dtype, limits)
    return Quantization.of((factor,), (arguments.whole(lift, zero_point),), low, high, None, narrowest(factor))


def per_channel(
    lift: Builder, scales: Any, zero_points: Any, axis: int, dtype: str, limits: tuple[Any, Any]
) -> Quantization:
    factors = tuple(_positive(float(factor)) for factor in _constants(lift, scales))
    points = tuple(arguments.whole(lift, point) for point in _constants(lift, zero_points))
    if len(factors) != len(points) or not 0 <= axis < MAXIMUM_RANK:
        raise SourceError(f"has {len(factors)} scales and {len(points)} zero points along the axis {axis}")
    low, high = limits_of(lift, dtype, limits)
    kind = "float32" if all(narrowest(factor) == "float32" for factor in factors) else "float64"
    return Quantization.of(factors, points, low, high, axis, kind)


def _positive(scale: float) -> float:
    if not 0 < scale < float("inf"):
        raise SourceError(f"has the scale {scale}", hint="calibrate the model before it is converted")
    return scale


def limits_of(lift: Builder, dtype: str, limits: tuple[Any, Any]) -> tuple[int, int]:
    low, high = (arguments.whole(lift, limit) for limit in limits)
    if not DTYPES[dtype].minimum <= low < high <= DTYPES[dtype].maximum:
        raise SourceError(f"quantizes to {low}..{high}, which is not a range of {dtype}")
    return low, high


def _constants(lift: Builder, value: Any) -> list[Any]:
    """The numbers of a constant, which are counted each time: many tensors may have the same ones."""
    if isinstance(value, TensorValue) and (known := lift.known(value.key)) is not None:
        array = known
    elif isinstance(value, StoredTensor):
        array = value.array()
    else:
        raise SourceError("has scales that are known only at run time")
    lift.budget.hold(array.size)
    return list(array.reshape(-1).tolist())


def holding(low: int, high: int) -> str:
    """The smallest type that contains a range."""
    kinds = ("int8", "int16", "int32") if low < 0 else ("uint8", "uint16", "uint32")
    return first_holding(kinds, low, high) or kinds[-1]


class Grid(Value):
    """The run-time grid of a float tensor, from its range."""

    __slots__ = ("eps", "high", "low", "source")

    def __init__(self, source: str, low: int, high: int, eps: float) -> None:
        self.source, self.low, self.high, self.eps = source, low, high, eps


@lifts({"quantized_decomposed::choose_qparams": False, "quantized_decomposed::choose_qparams_symmetric": True})
def choose_qparams(
    lift: Builder, symmetric: bool, input: Any, quant_min: Any, quant_max: Any, eps: float, dtype: int
) -> Any:
    """`determine_qparams` of torch/ao/quantization/utils.py, in float32; scale and zero point without dimensions."""
    x, (low, high) = lift.tensor(input), limits_of(lift, arguments.dtype(dtype), (quant_min, quant_max))
    zero = lift.tensor(0.0)
    least = lift.emit("Min", [lift.emit("ReduceMin", [x], {"keepdims": 0}), zero])
    most = lift.emit("Max", [lift.emit("ReduceMax", [x], {"keepdims": 0}), zero])
    if symmetric:
        most = lift.emit("Max", [lift.emit("Neg", [least]), most])
        width = lift.tensor((high - low) / 2)
        scale = lift.emit("Max", [lift.emit("Div", [most, width]), lift.tensor(float(eps))])
        return scale, lift.tensor(128.0 if arguments.dtype(dtype) == "uint8" else 0.0)
    width = lift.emit("Sub", [most, least])
    scale = lift.emit("Max", [lift.emit("Div", [width, lift.tensor(float(high - low))]), lift.tensor(float(eps))])
    steps = lift.emit("Round", [lift.emit("Div", [least, scale])])
    point = lift.emit("Sub", [lift.tensor(float(low)), steps])
    lift.dynamic[scale.key] = Grid(x.key, low, high, float(eps))
    return scale, lift.emit("Clip", [point, lift.tensor(float(low)), lift.tensor(float(high))])


def on_the_spot(lift: Builder, x: TensorValue, scale: Any, zero_point: Any, limits: tuple[int, int]) -> TensorValue:
    """clamp(rint(x · (1 / s)) + z) with computed s and z, as integral float32 numbers."""
    rounded = lift.emit("Round", [lift.emit("Mul", [x, lift.emit("Reciprocal", [scale])])])
    low, high = (lift.tensor(float(limit)) for limit in limits)
    q = lift.emit("Clip", [lift.emit("Add", [rounded, zero_point]), low, high])
    grid = lift.dynamic.get(scale.key)
    if isinstance(grid, Grid) and (grid.source, grid.low, grid.high) == (x.key, *limits):
        lift.dynamic[q.key] = grid
    return q


def back(lift: Builder, q: TensorValue, scale: Any, zero_point: Any) -> TensorValue:
    result = lift.emit("Mul", [lift.emit("Sub", [q, zero_point]), scale])
    if q.key in lift.dynamic and lift.dynamic[q.key] is lift.dynamic.get(scale.key):
        lift.dynamic[result.key] = lift.dynamic[q.key]
    return result


def _handle(lift: Builder, key: str) -> TensorValue:
    tensor = lift.tensors[key]
    return TensorValue(key, tensor.dtype, tensor.shape, tensor.quantization, "")


def dynamic_linear(lift: Builder, value: Any, weight: Any, bias: Any) -> Any:
    """A linear layer with a dynamically quantized input and a quantized weight; NotImplemented for any other."""
    x, w = lift.tensor(value), lift.makers.get(lift.tensor(weight).key)
    made = lift.makers.get(x.key)
    shape = None
    if x.key not in lift.dynamic and made is not None and made.operator == "Reshape":
        x, shape = _handle(lift, made.inputs[0]), _handle(lift, made.inputs[1])
    grid = lift.dynamic.get(x.key)
    if not isinstance(grid, Grid) or grid.high - grid.low != 255 or grid.eps != LEAST_SCALE:
        return NotImplemented
    if w is None or w.operator != "DequantizeLinear":
        return NotImplemented
    stored = lift.tensors[w.inputs[0]]
    per = stored.quantization
    if stored.data is None or per is None or not per.is_affine or per.axis not in (None, 0):
        return NotImplemented
    source = _handle(lift, grid.source)
    if shape is not None:
        source = lift.emit("Reshape", [source, shape])
    inputs = [source, _handle(lift, stored.name)]
    rule = DYNAMIC_ENGINES.get(lift.engine, "")
    return lift.emit("qfmt.DynamicLinear", [*inputs, bias], {"reduce_range": 0}, rule=rule)


def is_computed(lift: Builder, value: Any) -> bool:
    return isinstance(value, TensorValue) and not lift.is_constant(value)


@lifts(
    "quantized_decomposed::choose_qparams_per_token_asymmetric",
    "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl",
)
def choose_qparams_per_token(lift: Builder, input: Any, dtype: int) -> Any:
    """One scale and zero point for each row; float64, which torch then computes with."""
    x, axis, zero = lift.tensor(input), lift.constant(np.array([-1], np.int64)), lift.tensor(0.0)
    least = lift.emit("Min", [lift.emit("ReduceMin", [x, axis], {"keepdims": 1}), zero])
    most = lift.emit("Max", [lift.emit("ReduceMax", [x, axis], {"keepdims": 1}), zero])
    width = lift.emit("Div", [lift.emit("Sub", [most, least]), lift.tensor(255.0)])
    scale = lift.emit("Max", [width, lift.tensor(float(np.finfo(np.float32).eps))])
    low, high = lift.tensor(-128.0), lift.tensor(127.0)
    down, up = lift.emit("Div", [least, scale]), lift.emit("Div", [most, scale])
    total = lift.emit("Add", [lift.emit("Add", [low, down]), lift.emit("Add", [high, up])])
    chosen = [lift.emit("Greater", [total, zero]), lift.emit("Sub", [low, down]), lift.emit("Sub", [high, up])]
    point = lift.emit("Round", [lift.emit("Clip", [lift.emit("Where", chosen), low, high])])
    return tuple(lift.emit("Cast", [each], {"to": "float64"}) for each in (scale, point))


@lifts("quantized_decomposed::quantize_per_token")
def quantize_per_token(
    lift: Builder, input: Any, scales: Any, zero_points: Any, quant_min: Any, quant_max: Any, dtype: int
) -> Any:
    """clamp(rint(x · (1 / s) + z)) in float64; integral floats instead of integers."""
    x = lift.emit("Cast", [input], {"to": "float64"})
    scaled = lift.emit("Mul", [x, lift.emit("Reciprocal", [scales])])
    rounded = lift.emit("Round", [lift.emit("Add", [scaled, zero_points])])
    limits = limits_of(lift, arguments.dtype(dtype), (quant_min, quant_max))
    bounds = (lift.constant(np.array(limit, np.float64)) for limit in limits)
    return lift.emit("Clip", [rounded, *bounds])


@lifts(
    "quantized_decomposed::dequantize_per_token(input, scales, zero_points, quant_min, quant_max, dtype,"
    " output_dtype=6)"
)
def dequantize_per_token(lift: Builder, a: Any) -> Any:
    real = lift.emit("Mul", [lift.emit("Sub", [a.input, a.zero_points]), a.scales])
    return lift.emit("Cast", [real], {"to": arguments.dtype(a.output_dtype)})
