"""Torch's normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....errors import SourceError
from ....model import Quantization
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue, Unsupported


def _weights(lift: Builder, weight: Any, bias: Any, shape: tuple[int, ...]) -> list[TensorValue]:
    """ONNX's normalizations always scale and shift; torch's may do neither."""
    scale = lift.constant(np.ones(shape, np.float32)) if weight is None else lift.tensor(weight)
    shift = lift.constant(np.zeros(shape, np.float32)) if bias is None else lift.tensor(bias)
    return [scale, shift]


def _channels(lift: Builder, x: TensorValue) -> tuple[int, ...]:
    size = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    if not isinstance(size, int):
        raise SourceError("needs the number of channels of its input", hint=shapes.hint(lift))
    return (size,)


def _batch_norm(lift: Builder, x: Any, values: list[Any], eps: float, quantization: Quantization | None) -> Any:
    weight, bias, mean, variance = values
    statistics = [lift.tensor(mean), lift.tensor(variance)]
    shape = tuple(size for size in statistics[0].shape or () if isinstance(size, int))
    inputs = [lift.tensor(x), *_weights(lift, weight, bias, shape), *statistics]
    return lift.emit("BatchNormalization", inputs, {"epsilon": float(eps)}, quantization=quantization)


@lifts("aten::batch_norm", "aten::_batch_norm_impl_index")
def batch_norm(
    lift: Builder,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    if training or running_mean is None:
        raise SourceError("normalizes with the statistics of the batch", hint="call model.eval() before saving")
    return _batch_norm(lift, input, [weight, bias, running_mean, running_var], eps, None)


@lifts("aten::_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    lift: Builder, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    y = _batch_norm(lift, input, [weight, bias, running_mean, running_var], eps, None)
    return y, Unsupported(), Unsupported()


@lifts("aten::_native_batch_norm_legit")
def batch_norm_of_one(
    lift: Builder, input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Without running statistics, and of a batch of one: what an instance norm is decomposed into."""
    x = lift.tensor(input)
    if not training or shapes.size(lift, x, 0) != 1:
        return NotImplemented
    return _instance_norm(lift, x, weight, bias, eps), Unsupported(), Unsupported()


@lifts("quantized::batch_norm", "quantized::batch_norm1d", "quantized::batch_norm2d", "quantized::batch_norm3d")
def quantized_batch_norm(
    lift: Builder,
    qx: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    eps: float,
    output_scale: Any,
    output_zero_point: Any,
) -> Any:
    quantization = arguments.quantization(lift, output_scale, output_zero_point, lift.tensor(qx).dtype)
    return _batch_norm(lift, qx, [weight, bias, mean, var], eps, quantization)


def _layer_norm(lift: Builder, x: Any, shape: Any, weight: Any, bias: Any, eps: float, **result: Any) -> Any:
    inputs = [x, *_weights(lift, weight, bias, tuple(shape))]
    return lift.emit("LayerNormalization", inputs, {"axis": -len(shape), "epsilon": float(eps)}, **result)


@lifts("aten::layer_norm")
def layer_norm(
    lift: Builder,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return _layer_norm(lift, lift.tensor(input), normalized_shape, weight, bias, eps)


@lifts("aten::native_layer_norm")
def native_layer_norm(lift: Builder, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    y = _layer_norm(lift, lift.tensor(input), normalized_shape, weight, bias, eps)
    return y, Unsupported(), Unsupported()


@lifts("quantized::layer_norm")
def quantized_layer_norm(
    lift: Builder,
    input: Any,
    normalized_shape: Any,
    weight: Any,
    bias: Any,
    eps: float,
    output_scale: Any,
    output_zero_point: Any,
) -> Any:
    x = lift.tensor(input)
    quantization = arguments.quantization(lift, output_scale, output_zero_point, x.dtype)
    return _layer_norm(lift, x, normalized_shape, weight, bias, eps, quantization=quantization)


def _group_norm(lift: Builder, x: TensorValue, groups: int, weight: Any, bias: Any, eps: float, **result: Any) -> Any:
    inputs = [x, *_weights(lift, weight, bias, _channels(lift, x))]
    return lift.emit("GroupNormalization", inputs, {"num_groups": groups, "epsilon": float(eps)}, **result)


@lifts("aten::group_norm")
def group_norm(
    lift: Builder,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    return _group_norm(lift, lift.tensor(input), num_groups, weight, bias, eps)


@lifts("aten::native_group_norm")
def native_group_norm(
    lift: Builder, input: Any, weight: Any, bias: Any, n: Any, c: Any, hw: Any, group: int, eps: float
) -> Any:
    y = _group_norm(lift, lift.tensor(input), group, weight, bias, eps)
    return y, Unsupported(), Unsupported()


@lifts("quantized::group_norm")
def quantized_group_norm(
    lift: Builder,
    qx: Any,
    num_groups: int,
    weight: Any,
    bias: Any,
    eps: float,
    output_scale: Any,
    output_zero_point: Any,
) -> Any:
    x = lift.tensor(qx)
    quantization = arguments.quantization(lift, output_scale, output_zero_point, x.dtype)
    return _group_norm(lift, x, num_groups, weight, bias, eps, quantization=quantization)


def _instance_norm(lift: Builder, x: TensorValue, weight: Any, bias: Any, eps: float, **result: Any) -> Any:
    inputs = [x, *_weights(lift, weight, bias, _channels(lift, x))]
    return lift.emit("InstanceNormalization", inputs, {"epsilon": float(eps)}, **result)


@lifts("aten::instance_norm")
def instance_norm(
    lift: Builder,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    if not use_input_stats:
        return _batch_norm(lift, input, [weight, bias, running_mean, running_var], eps, None)
    return _instance_norm(lift, lift.tensor(input), weight, bias, eps)


@lifts("quantized::instance_norm")
def quantized_instance_norm(
    lift: Builder, input: Any, weight: Any, bias: Any, eps: float, output_scale: Any, output_zero_point: Any
) -> Any:
    x = lift.tensor(input)
    quantization = arguments.quantization(lift, output_scale, output_zero_point, x.dtype)
    return _instance_norm(lift, x, weight, bias, eps, quantization=quantization)
