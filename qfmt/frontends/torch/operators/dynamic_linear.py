"""Torch's products that quantize their input at run time, and those with float16 weights."""

from __future__ import annotations

from typing import Any

from ....errors import SourceError
from .. import arguments, shapes
from ..building import Builder
from ..calls import Packed
from ..lifts import by_rank, lifts
from ..values import TensorValue
from .linear import bias_of, conv_of, module_of, weight_of


def parameters_of(lift: Builder, packed: Any) -> tuple[TensorValue, TensorValue | None]:
    """Weight and bias of packed linear parameters; the weight is float16 if PyTorch packs it so."""
    return weight_of(lift, packed, narrowed(packed)), bias_of(lift, packed)


def narrowed(packed: Any) -> str:
    """The dtype that PyTorch narrows the weight of a linear layer to; "" if it is quantized."""
    if not isinstance(packed, Packed) or packed.kind not in ("linear", "linear_fp16"):
        raise SourceError("is called without packed linear parameters")
    if len(packed.weight.shape) != 2:
        raise SourceError(f"is called with a weight of {len(packed.weight.shape)} dimensions")
    return "float16" if packed.kind == "linear_fp16" else ""


def reduces_range(lift: Builder, reduce_range: Any) -> int:
    """Whether a layer quantizes its input to 7 bits: qnnpack ignores the option, ONNX does not have it."""
    return arguments.flag(lift, reduce_range) if lift.engine not in ("qnnpack", "onnx") else 0


@lifts({"quantized::linear_dynamic": False, "quantized::linear_relu_dynamic": True})
def linear_dynamic(lift: Builder, relu: bool, X: Any, W_prepack: Any, reduce_range: bool = False) -> Any:  # noqa: N803
    return _linear(lift, relu, X, W_prepack, {"reduce_range": reduces_range(lift, reduce_range)})


@lifts({"quantized::linear_dynamic_fp16": False, "quantized::linear_relu_dynamic_fp16": True})
def linear_dynamic_fp16(lift: Builder, relu: bool, X: Any, W_prepack: Any) -> Any:  # noqa: N803
    return _linear(lift, relu, X, W_prepack, {})


def _linear(lift: Builder, relu: bool, value: Any, packed: Any, attributes: dict[str, int]) -> Any:
    x = lift.tensor(value)
    lift.within(module_of(packed) if isinstance(packed, Packed) else "")
    weight, bias = parameters_of(lift, packed)
    if x.shape is not None and weight.shape is not None:
        shapes.need(lift, x, (*[None] * (len(x.shape) - 1), weight.shape[1]))
    if weight.quantization is None:
        y = lift.emit("qfmt.Linear", [x, weight, bias])
    else:
        y = lift.emit("qfmt.DynamicLinear", [x, weight, bias], attributes)
    return lift.emit("Relu", [y]) if relu else y


@lifts(by_rank("quantized::conv{}d_dynamic", "quantized::conv_transpose{}d_dynamic"))
def conv_dynamic(lift: Builder, rank: int, qx: Any, packed_weight: Any, reduce_range: bool = False) -> Any:
    x = lift.tensor(qx)
    weight, bias, attributes = conv_of(lift, x, packed_weight, rank)
    operator = "qfmt.DynamicConvTranspose" if packed_weight.transposed else "qfmt.DynamicConv"
    attributes["reduce_range"] = reduces_range(lift, reduce_range)
    return lift.emit(operator, [x, weight, bias], attributes)
