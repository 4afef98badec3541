"""Torch's convolutions and matrix products: quantized, float, and those that quantize their input at run time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ....errors import SourceError
from .. import arguments, shapes
from ..arguments import operands
from ..building import Builder
from ..calls import Packed
from ..lifts import by_rank, lifts
from ..values import TensorValue
from .logic import rounded_once
from .qparams import dynamic_linear


def many(value: Any, count: int) -> tuple[int, ...]:
    """Torch also accepts one number for all dimensions."""
    items = tuple(int(item) for item in value) if isinstance(value, list | tuple) else (int(value),)
    return items * count if len(items) == 1 else items


def _attributes(
    rank: int, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int
) -> dict[str, Any]:
    pads = many(padding, rank)
    return {
        "kernel_shape": tuple(kernel),
        "strides": many(stride, rank),
        "pads": pads + pads,
        "dilations": many(dilation, rank),
        "group": int(groups),
    }


@lifts(by_rank("quantized::conv{}d", "quantized::conv_transpose{}d"))
def quantized_conv(lift: Builder, rank: int, qx: Any, packed_weight: Any, *rest: Any) -> Any:
    """Arguments after the packed parameters: (scale, zero_point), before 1.6 preceded by the geometry."""
    scale, zero_point = rest[-2:]
    x, _ = arguments.quantized(lift, qx)
    weight, bias, attributes = conv_of(lift, x, packed_weight, rank)
    quantization = arguments.quantization(lift, scale, zero_point, x.dtype)
    operator = "ConvTranspose" if packed_weight.transposed else "Conv"
    return lift.emit(operator, [x, weight, bias], attributes, quantization=quantization)


def conv_of(
    lift: Builder, x: TensorValue, packed: Packed, rank: int
) -> tuple[TensorValue, TensorValue | None, dict[str, Any]]:
    """Weight, bias and attributes of packed convolution parameters; states what they require of `x`."""
    require_packed(lift, packed, "conv", "packed convolution parameters")
    weight, bias = weight_of(lift, packed), bias_of(lift, packed)
    kernel = weight.shape[2:] if weight.shape is not None else ()
    drop = max(len(packed.stride) - rank, 0)  # conv1d is packed as conv2d with a height of 1
    if len(kernel) > rank:  # unless another call changed it
        weight, kernel = _without_height(lift, weight), kernel[1:]
    stride, padding, dilation = (value[drop:] for value in (packed.stride, packed.padding, packed.dilation))
    kernel_sizes = [int(size) for size in kernel if isinstance(size, int)]
    attributes = _attributes(rank, kernel_sizes, stride, padding, dilation, packed.groups)
    channels = _input_channels(weight, packed)
    shapes.need(lift, x, (None, channels, *[None] * rank))
    if packed.transposed:
        attributes["output_padding"] = tuple(packed.output_padding)[drop:]
    return weight, bias, attributes


def _input_channels(weight: TensorValue, packed: Packed) -> int | None:
    size = weight.shape[0 if packed.transposed else 1] if weight.shape else None
    return None if not isinstance(size, int) else size if packed.transposed else size * packed.groups


def _without_height(lift: Builder, weight: TensorValue) -> TensorValue:
    """[O, I, 1, K] → [O, I, K]: the same constant with one dimension less."""
    return lift.reshaped_constant(weight, lambda shape: (*shape[:2], *shape[3:]))


def require_packed(lift: Builder, packed: Any, kind: str, what: str) -> None:
    """SourceError for anything but parameters of that kind; what is made of them belongs to their module."""
    if not isinstance(packed, Packed) or packed.kind != kind:
        raise SourceError(f"is called without {what}")
    lift.within(module_of(packed))


@lifts("quantized::linear")
def quantized_linear(lift: Builder, X: Any, W_prepack: Any, Y_scale_i: Any, Y_zero_point_i: Any) -> Any:  # noqa: N803
    require_packed(lift, W_prepack, "linear", "packed linear parameters")
    x, _ = arguments.quantized(lift, X)
    quantization = arguments.quantization(lift, Y_scale_i, Y_zero_point_i, x.dtype)
    inputs = [x, weight_of(lift, W_prepack), bias_of(lift, W_prepack)]
    return lift.emit("qfmt.Linear", inputs, quantization=quantization)


_CONV = "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1"
_CONV_MODE = "input, weight, bias, stride, padding, dilation, groups"
_CONV_TRANSPOSE = "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"


@lifts(*(f"aten::conv{rank}d({_CONV})" for rank in (1, 2, 3)), f"aten::_convolution_mode({_CONV_MODE})")
def conv(lift: Builder, a: Any) -> Any:
    x, w, kernel = _operands(lift, a)
    rank, groups, padding = len(kernel), arguments.whole(lift, a.groups), a.padding
    channels = w.shape[1] * groups if w.shape and isinstance(w.shape[1], int) else None
    shapes.need(lift, x, (None, channels, *[None] * rank))
    attributes = _attributes(rank, kernel, a.stride, 0 if isinstance(padding, str) else padding, a.dilation, groups)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(attributes["dilations"], kernel, strict=True)]
        attributes["pads"] = tuple(t // 2 for t in total) + tuple(t - t // 2 for t in total)
    return lift.emit("Conv", [x, w, a.bias], attributes)


def _operands(lift: Builder, a: Any) -> tuple[TensorValue, TensorValue, list[int]]:
    """Input and weight of a convolution, and its kernel's sizes."""
    w = lift.tensor(a.weight)
    if w.shape is None:
        raise SourceError("has a weight whose shape is not known")
    return lift.tensor(a.input), w, [int(size) for size in w.shape[2:] if isinstance(size, int)]


_CONVOLUTION = "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups"
_FLAGS = "benchmark:_=0, deterministic:_=0, cudnn_enabled:_=0, allow_tf32:_=0"


@lifts(f"aten::convolution({_CONVOLUTION})", f"aten::_convolution({_CONVOLUTION}, {_FLAGS})")
def convolution(lift: Builder, a: Any) -> Any:
    return conv_transpose(lift, a) if a.transposed else conv(lift, a)


@lifts(*(f"aten::conv_transpose{rank}d({_CONV_TRANSPOSE})" for rank in (1, 2, 3)))
def conv_transpose(lift: Builder, a: Any) -> Any:
    x, w, kernel = _operands(lift, a)
    rank = len(kernel)
    attributes = _attributes(rank, kernel, a.stride, a.padding, a.dilation, a.groups)
    shapes.need(lift, x, (None, w.shape[0] if w.shape else None, *[None] * rank))
    return lift.emit("ConvTranspose", [x, w, a.bias], attributes | {"output_padding": many(a.output_padding, rank)})


@lifts("aten::linear")
def linear(lift: Builder, input: Any, weight: Any, bias: Any = None) -> Any:
    return dynamic_linear(lift, input, weight, bias)


@lifts("aten::addmm")
def addmm(lift: Builder, self: Any, mat1: Any, mat2: Any, beta: float = 1, alpha: float = 1) -> Any:
    weight = _transposed(lift, lift.tensor(mat2)) if beta == alpha == 1 else None
    if weight is not None:  # what a linear layer is decomposed into
        return linear_layer(lift, mat1, weight, self)
    return baddbmm(lift, self, mat1, mat2, beta, alpha)


@lifts("aten::baddbmm")
@rounded_once
def baddbmm(lift: Builder, self: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1) -> Any:
    """alpha · batch1 · batch2 + beta · self, which is ignored, NaN and all, if beta is 0."""
    product = lift.emit("MatMul", [batch1, batch2])
    if product.is_whole and not (isinstance(beta, int) and isinstance(alpha, int)):
        return NotImplemented
    if alpha != 1:
        product = lift.emit("Mul", [*operands(lift, product, alpha)])
    if beta == 0:
        return product
    return lift.emit("Add", [product, self if beta == 1 else lift.emit("Mul", [*operands(lift, self, beta)])])


@lifts("aten::mm")
def mm(lift: Builder, self: Any, mat2: Any) -> Any:
    weight = _transposed(lift, lift.tensor(mat2))
    return NotImplemented if weight is None else linear_layer(lift, self, weight, None)


def linear_layer(lift: Builder, x: Any, weight: TensorValue, bias: Any) -> Any:
    result = dynamic_linear(lift, x, weight, bias)
    return lift.emit("qfmt.Linear", [x, weight, bias]) if result is NotImplemented else result


def _transposed(lift: Builder, value: TensorValue) -> TensorValue | None:
    """The quantized weight of which a matrix is the transpose, dequantized."""
    node = lift.makers.get(value.key)
    if node is None or node.operator != "Transpose" or node.attributes["perm"] != (1, 0):
        return None
    source = lift.makers.get(node.inputs[0])
    if source is None or source.operator != "DequantizeLinear" or lift.tensors[source.inputs[0]].data is None:
        return None
    tensor = lift.tensors[source.outputs[0]]
    return TensorValue(tensor.name, tensor.dtype, tensor.shape, None, "")


def bias_of(lift: Builder, packed: Packed) -> TensorValue | None:
    if packed.bias is None:
        return None
    return lift.stored(packed.bias, f"{module_of(packed) or packed.path}.bias".lstrip("."))


def weight_of(lift: Builder, packed: Packed, dtype: str = "") -> TensorValue:
    module = module_of(packed)
    aliases = [packed.path, *packed.aliases, f"{module}._packed_params" if module else ""]
    return lift.stored(packed.weight, f"{module or packed.path}.weight".lstrip("."), aliases, dtype)


_OWNER = re.compile(r"(?:_jit_pass_hoist_\w+\.)?(.+?)(?:\._packed_params){1,3}(?:\.\d+|\._packed_weight)?")
"""`fc._packed_params._packed_params`, or its name after PyTorch's mobile passes of 2019:
`_jit_pass_hoist_conv_packed_params.features.0.0._packed_params.1`."""


def module_of(packed: Packed) -> str:
    """The path of the module that owns packed parameters; "" if the archive does not state it."""
    for path in (packed.path, *packed.aliases):
        if owner := _OWNER.fullmatch(path):
            return owner[1]
    return ""


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
    return _dynamic(lift, relu, X, W_prepack, {"reduce_range": reduces_range(lift, reduce_range)})


@lifts({"quantized::linear_dynamic_fp16": False, "quantized::linear_relu_dynamic_fp16": True})
def linear_dynamic_fp16(lift: Builder, relu: bool, X: Any, W_prepack: Any) -> Any:  # noqa: N803
    return _dynamic(lift, relu, X, W_prepack, {})


def _dynamic(lift: Builder, relu: bool, value: Any, packed: Any, attributes: dict[str, int]) -> Any:
    x = lift.tensor(value)
    lift.within(module_of(packed) if isinstance(packed, Packed) else "")
    weight, bias = parameters_of(lift, packed)
    if x.shape is not None and weight.shape is not None:
        shapes.need(lift, x, (*[None] * (len(x.shape) - 1), weight.shape[1]), any_rank=True)
    if weight.quantization is None:
        y = lift.emit("qfmt.Linear", [x, weight, bias])
    else:
        y = lift.emit("qfmt.DynamicLinear", [x, weight, bias], attributes)
    return lift.emit("Relu", [y]) if relu else y


@lifts(by_rank("quantized::conv{}d_dynamic", "quantized::conv_transpose{}d_dynamic"))
def conv_dynamic(lift: Builder, rank: int, qx: TensorValue, packed_weight: Any, reduce_range: bool = False) -> Any:
    weight, bias, attributes = conv_of(lift, qx, packed_weight, rank)
    operator = "qfmt.DynamicConvTranspose" if packed_weight.transposed else "qfmt.DynamicConv"
    attributes["reduce_range"] = reduces_range(lift, reduce_range)
    return lift.emit(operator, [qx, weight, bias], attributes)
