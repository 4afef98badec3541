"""Torch's normalizations."""

from __future__ import annotations

from typing import Any

from ....errors import SourceError
from ....model import Quantization
from ...stored import StoredTensor
from .. import arguments, shapes
from ..building import Builder
from ..calls import EVALUATE, keeps_state
from ..lifts import lifts
from ..values import TensorValue, Unsupported
from .creation import filled
from .layouts import permute


def _grid(lift: Builder, a: Any, x: TensorValue) -> Quantization | None:
    """The grid of the result of a quantized normalization; None for a float one."""
    if not hasattr(a, "output_scale"):
        return None
    return arguments.quantization(lift, a.output_scale, a.output_zero_point, x.dtype)


def _weights(lift: Builder, a: Any, shape: tuple[int, ...]) -> list[TensorValue]:
    """ONNX's normalizations always scale and shift; torch's may not."""
    given = ((a.weight, 1), (a.bias, 0))
    return [filled(lift, shape, fill, "float32") if value is None else lift.tensor(value) for value, fill in given]


def _channels(lift: Builder, x: TensorValue, *stated: Any) -> tuple[int, ...]:
    """The number of channels: of the first of the tensors that has a number for each, else of the input."""
    size = next((lift.tensor(value).shape for value in stated if value is not None), None)
    if size is None:
        size = x.shape[1:2] if x.shape is not None else ()
    if len(size) != 1 or not isinstance(size[0], int):
        raise SourceError("needs the number of channels of its input", hint=shapes.hint(lift))
    if len(x.shape or ()) > 1:
        shapes.need(lift, x, (None, *size, *[None] * (len(x.shape or ()) - 2)), any_rank=True)
    return (size[0],)


_RUNNING = "input, weight, bias, running_mean, running_var"


@lifts(
    {
        f"aten::batch_norm({_RUNNING}, training, momentum, eps, cudnn_enabled=False)": 0,
        f"aten::_batch_norm_impl_index({_RUNNING}, training, momentum, eps, cudnn_enabled=False)": 0,
        f"aten::_native_batch_norm_legit_no_training({_RUNNING}, momentum, eps)": 2,
    },
    {
        f"quantized::batch_norm{rank}(qx:input, weight, bias, mean:running_mean, var:running_var, eps,"
        " output_scale, output_zero_point)": 0
        for rank in ("", "1d", "2d", "3d")
    },
)
def batch_norm(lift: Builder, unread: int, a: Any) -> Any:
    """Return `unread` results after the first one, which networks do not read. A layer without running statistics uses
    those of the batch, even after `eval()`."""
    by_batch = bool(getattr(a, "training", False))
    if by_batch != (a.running_mean is None):
        raise SourceError("normalizes with the statistics of the batch", hint=EVALUATE)
    return _with_unread((_norm_of_batch if by_batch else _batch_norm)(lift, a), unread)


def _with_unread(result: Any, unread: int) -> Any:
    return (result, *(Unsupported() for _ in range(unread))) if unread else result


def _batch_norm(lift: Builder, a: Any) -> Any:
    x, statistics = lift.tensor(a.input), [lift.tensor(a.running_mean), lift.tensor(a.running_var)]
    inputs = [x, *_weights(lift, a, _channels(lift, x, a.running_mean)), *statistics]
    return lift.emit("BatchNormalization", inputs, {"epsilon": float(a.eps)}, quantization=_grid(lift, a, x))


@lifts("aten::_native_batch_norm_legit(input, weight, bias, training, momentum, eps)")
def batch_norm_without_statistics(lift: Builder, a: Any) -> Any:
    return _with_unread(_norm_of_batch(lift, a), 2) if a.training else NotImplemented


def _norm_of_batch(lift: Builder, a: Any) -> TensorValue:
    """Over the batch as well: an instance norm of one long instance."""
    x = lift.tensor(a.input)
    rank = shapes.rank(lift, x)
    if rank > 2 and shapes.size(lift, x, 0) == 1:
        return _instance_norm(lift, a)
    turn = [1, 0, *range(2, rank)]
    turned = permute(lift, x, turn)
    sizes = shapes.sizes(lift, turned)
    a.input = shapes.reshape(lift, turned, [1, sizes[0], -1])
    result: TensorValue = permute(lift, shapes.reshape(lift, _instance_norm(lift, a), sizes), turn)
    return result


@lifts(
    {
        "aten::layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True)": 0,
        "aten::native_layer_norm(input, normalized_shape, weight, bias, eps)": 2,
        "quantized::layer_norm(input, normalized_shape, weight, bias, eps, output_scale, output_zero_point)": 0,
    }
)
def layer_norm(lift: Builder, unread: int, a: Any) -> Any:
    x, shape = lift.tensor(a.input), tuple(a.normalized_shape)
    attributes = {"axis": -len(shape), "epsilon": float(a.eps)}
    inputs = [x, *_weights(lift, a, shape)]
    y = lift.emit("LayerNormalization", inputs, attributes, quantization=_grid(lift, a, x))
    return _with_unread(y, unread)


@lifts(
    {
        "aten::group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True)": 0,
        "aten::native_group_norm(input, weight, bias, N, C, HxW, group:num_groups, eps)": 2,
        "quantized::group_norm(input, num_groups, weight, bias, eps, output_scale, output_zero_point)": 0,
    }
)
def group_norm(lift: Builder, unread: int, a: Any) -> Any:
    x = lift.tensor(a.input)
    attributes = {"num_groups": int(a.num_groups), "epsilon": float(a.eps)}
    inputs = [x, *_weights(lift, a, _channels(lift, x, a.weight, a.bias))]
    y = lift.emit("GroupNormalization", inputs, attributes, quantization=_grid(lift, a, x))
    return _with_unread(y, unread)


@lifts(
    f"aten::instance_norm({_RUNNING}, use_input_stats, momentum, eps, cudnn_enabled=False)",
    "quantized::instance_norm(input, weight, bias, eps, output_scale, output_zero_point)",
)
def instance_norm(lift: Builder, a: Any) -> Any:
    if not getattr(a, "use_input_stats", True):
        return _batch_norm(lift, a)
    for statistics in (getattr(a, "running_mean", None), getattr(a, "running_var", None)):
        if isinstance(statistics, TensorValue):
            if statistics.memory.kept:
                raise keeps_state("a tensor of the module")
            statistics.memory.change(lift.target)
        elif isinstance(statistics, StoredTensor):
            lift.changed_state.append((statistics.path, statistics.storage))
    return _instance_norm(lift, a)


def _instance_norm(lift: Builder, a: Any) -> TensorValue:
    x = lift.tensor(a.input)
    inputs = [x, *_weights(lift, a, _channels(lift, x, a.weight, a.bias))]
    return lift.emit("InstanceNormalization", inputs, {"epsilon": float(a.eps)}, quantization=_grid(lift, a, x))
