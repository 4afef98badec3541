"""Float operators by torch's own kernels: fast; the last bits are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...model import DTYPES
from ...ops.resize import known_neighbours
from ...ops.shapes import axis_of
from .emit import PLAIN, Lacks, Site, Table
from .moves import MOVES
from .products import torch_pads
from .spelled import Kernel, spelled
from .values import torch_dtype
from .windows import Geometry, of_rank, plain_window, window

aten = torch.ops.aten

RealOperator = Callable[[Site, list[Any]], Any]
"""A function from the operands, as floats in the graph, to the result."""


def _conv(s: Site, x: list[Any]) -> Any:
    geometry, value = Geometry.of(s), x[0]
    strides, pads, *_ = geometry
    rank = len(strides)
    if pads[:rank] != pads[rank:]:
        value = s.call(aten.constant_pad_nd.default, value, torch_pads(pads), 0.0)
        geometry = geometry._replace(pads=[0] * 2 * rank)
    overload = "input" if geometry.name in ("conv_transpose2d", "conv_transpose3d") else "default"
    target = getattr(getattr(aten, geometry.name), overload)
    return s.call(target, value, x[1], _third(x), *geometry.arguments())


def _linear(s: Site, x: list[Any]) -> Any:
    """A float16 weight, or a bias of integers, gets the type of the first operand."""
    kind = s.tensor(0).dtype
    others = s.is_float and kind not in HALVES
    operands = [
        s.call(aten.to.dtype, value, torch_dtype(kind)) if others and s.tensor(index).dtype != kind else value
        for index, value in enumerate(x[:3])
        if value is not None
    ]
    return s.call(aten.linear.default, *operands)


def _gemm(s: Site, x: list[Any]) -> Any:
    a, b = (s.call(aten.t.default, x[i]) if s.attribute(name) else x[i] for i, name in enumerate(("transA", "transB")))
    product, alpha, c = s.call(aten.mm.default, a, b), s.attribute("alpha"), _third(x)
    product = product if alpha == 1 else s.call(aten.mul.Scalar, product, alpha)
    return product if c is None else s.call(aten.add.Tensor, product, c, alpha=s.attribute("beta"))


FLOATS = {"float16", "bfloat16", "float32", "float64"}
INTEGERS = {"uint8", "int8", "int16", "int32", "int64"}
"""The types that torch computes with. It supports little more than storing the others."""

UNCAST = {"float4_e2m1fn", "float8_e8m0fnu"}
"""The types that torch does not convert, or converts in another way."""

ON_INTEGERS = {"Abs", "Add", "Clip", "Concat", "Div", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Relu", "Sub", "Where"}
"""Operators whose kernels compute with integers as `run` does. Others refuse integers, or make floats of them."""

MIXED = {"Pow", "qfmt.Linear"}
"""Operators that have inputs of different types here: the result is of the first. Elsewhere torch chooses the type."""


def check_types(s: Site, count: int = 1) -> None:
    """Lacks if torch's kernels do not compute with the types of the first inputs of a node that is not quantized."""
    if not s.is_float or s.node.operator in ("Cast", "DequantizeLinear", "QuantizeLinear"):
        return
    first = 1 if s.node.operator == "Where" else 0
    kinds = {s.tensor(index).dtype for index in range(first, count) if s.has(index)}
    known = FLOATS | INTEGERS if s.node.operator in ON_INTEGERS else FLOATS
    if s.node.operator in MIXED:
        kinds, known = {s.tensor(0).dtype}, FLOATS
    if len(kinds) > 1 or not kinds <= known:
        raise Lacks(f"computes with {' and '.join(sorted(kinds))}")


def _check_floats(s: Site) -> None:
    """torch's kernels of positions in between refuse integers, or widen them."""
    if s.is_float and s.tensor(0).dtype not in FLOATS:
        raise Lacks("computes with integers")


def cast(s: Site, x: Any, end: Callable[..., Any]) -> Any:
    """Another element type, as in `run`: integers keep their low bits, and 8-bit floats saturate unless the node says
    otherwise. `end` is the call that computes the output."""
    to = s.attribute("to")
    kind, saturates = DTYPES[to], s.attribute("saturate")
    if {s.tensor(0).dtype, to} & UNCAST or (to == "float8_e4m3fn" and not saturates):
        raise Lacks(f"casts {s.tensor(0).dtype} to {to}")
    if kind.is_integer and kind.bits < 8:  # torch has them in 8 bits
        half = 0 if kind.kind == "u" else 1 << (kind.bits - 1)
        up = s.call(aten.add.Scalar, s.call(aten.to.dtype, x, torch.int64), half)
        x = s.call(aten.sub.Scalar, s.call(aten.bitwise_and.Scalar, up, (1 << kind.bits) - 1), half)
    elif kind.kind == "f" and kind.maximum and saturates:
        x = s.call(aten.clamp.default, s.call(aten.to.dtype, x, torch.float32), kind.minimum, kind.maximum)
    return end(aten.to.dtype, x, torch_dtype(to))


def _third(x: list[Any]) -> Any:
    """An optional third operand."""
    return x[2] if len(x) > 2 else None


def _binary(target: Any) -> RealOperator:
    def emit(s: Site, x: list[Any]) -> Any:
        value = x[0]
        for other in x[1:]:
            value = s.call(target, value, other)
        return value

    return emit


def _unary(target: Any) -> RealOperator:
    return lambda s, x: s.call(target, x[0])


def _div(s: Site, x: list[Any]) -> Any:
    if s.tensor(0).dtype.startswith(("int", "uint")) and s.is_float:
        return s.call(aten.div.Tensor_mode, *x, rounding_mode="trunc")
    return s.call(aten.div.Tensor, *x)


def _power(s: Site, x: list[Any]) -> Any:
    result, kind = s.call(aten.pow.Tensor_Tensor, *x), s.tensor(0).dtype
    is_alike = not s.is_float or s.tensor(1).dtype == kind  # torch has the wider of two types
    return result if is_alike else s.call(aten.to.dtype, result, torch_dtype(kind))


def _thresholded_relu(s: Site, x: list[Any]) -> Any:
    """0 for NaN, unlike torch's threshold."""
    return s.call(aten.where.ScalarOther, s.call(aten.gt.Scalar, x[0], s.attribute("alpha")), x[0], 0.0)


def bounds(s: Site) -> list[float | None]:
    """Those of Clip, None for one that it does not have."""
    if s.is_float and len({s.tensor(index).dtype for index in range(3) if s.has(index)}) > 1:
        raise Lacks("has bounds of another type")
    return [s.scalar(index) if s.has(index) else None for index in (1, 2)]


def _clip(s: Site, x: list[Any]) -> Any:
    limits = bounds(s)
    return s.call(aten.clamp.default, x[0], *limits) if limits != [None, None] else x[0]


def prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope)


def _prelu(s: Site, x: list[Any]) -> Any:
    """The rule `product` multiplies the positive half, too: by 1 as the slope is quantized, if that is in range."""
    if s.node.rule != "product":
        return s.call(prelu, *x)
    slope = s.grid(1)
    one = min(max(round(1 / slope.scale) + slope.zero_point, slope.minimum), slope.maximum) - slope.zero_point
    positive = s.call(aten.mul.Scalar, s.call(aten.clamp_min.default, x[0], 0.0), one * slope.scale)
    negative = s.call(aten.mul.Tensor, s.call(aten.clamp_max.default, x[0], 0.0), x[1])
    return s.call(aten.add.Tensor, positive, negative)


def _hard_sigmoid(s: Site, x: list[Any]) -> Any:
    alpha, beta = s.attribute("alpha"), s.attribute("beta")
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return s.call(aten.hardsigmoid.default, x[0])
    scaled = s.call(aten.add.Scalar, s.call(aten.mul.Scalar, x[0], alpha), beta)
    return s.call(aten.clamp.default, scaled, 0.0, 1.0)


def _celu(s: Site, x: list[Any]) -> Any:
    if not s.attribute("alpha"):
        raise Lacks("divides by an alpha of 0")
    return s.call(aten.celu.default, x[0], s.attribute("alpha"))


def _selu(s: Site, x: list[Any]) -> Any:
    standard = (1.6732632423543772, 1.0507009873554805)
    if (s.attribute("alpha"), s.attribute("gamma")) != standard:
        return s.call(aten.elu.default, x[0], s.attribute("alpha"), s.attribute("gamma"))
    return s.call(aten.selu.default, x[0])


def _check_channels(s: Site) -> None:
    """Lacks if there is not one number for each channel: torch does not broadcast what a normalization is given."""
    shapes = {s.tensor(index).shape for index in range(1, len(s.node.inputs))}
    shapes |= {(size,) for size in (s.tensor(0).shape or ())[1:2] if isinstance(size, int)}
    if len(shapes) > 1 or any(shape is None or len(shape) != 1 for shape in shapes):
        raise Lacks("needs parameters with one number for each channel")


def _batch_norm(s: Site, x: list[Any]) -> Any:
    _check_channels(s)
    value, scale, bias, mean, variance = x
    return s.call(
        aten.batch_norm.default, value, scale, bias, mean, variance, False, 0.0, s.attribute("epsilon"), False
    )


def _layer_norm(s: Site, x: list[Any]) -> Any:
    shape = scale_shape(s)
    return s.call(aten.layer_norm.default, x[0], shape, x[1], _third(x), s.attribute("epsilon"), False)


def scale_shape(s: Site) -> list[int]:
    """The normalized sizes of a LayerNormalization: those of its scale and bias. Lacks if they differ."""
    shape = s.tensor(1).shape or ("",)
    if s.has(2) and s.tensor(2).shape != shape:
        raise Lacks("adds a bias of another shape than its scale")
    if s.rank() - axis_of(s.attribute("axis"), s.rank()) != len(shape):
        raise Lacks("normalizes over axes that its scale does not have")
    if not all(isinstance(size, int) for size in shape):
        raise Lacks("needs a scale whose sizes are known")
    return [int(size) for size in shape if size is not None]


def _group_norm(s: Site, x: list[Any]) -> Any:
    _check_channels(s)
    return s.call(aten.group_norm.default, x[0], s.attribute("num_groups"), x[1], x[2], s.attribute("epsilon"), False)


def _instance_norm(s: Site, x: list[Any]) -> Any:
    _check_channels(s)
    return s.call(aten.instance_norm.default, x[0], x[1], x[2], None, None, True, 0.0, s.attribute("epsilon"), False)


def _max_pool(s: Site, x: list[Any]) -> Any:
    arguments = window(s)
    return s.call(of_rank("max_pool", len(arguments[0])), x[0], *arguments)


def _average_pool(s: Site, x: list[Any]) -> Any:
    kernel, strides, pads, ceil = plain_window(s)
    count_pads = bool(s.attribute("count_include_pad"))
    return s.call(of_rank("avg_pool", len(kernel)), x[0], kernel, strides, pads, ceil, count_pads)


def check_sizes(size: list[int]) -> list[int]:
    """The sizes of an adaptive pool; Lacks if there is nothing to compute."""
    if 0 in size:
        raise Lacks("has no elements")
    return size


def _adaptive(s: Site, x: list[Any], size: list[int]) -> Any:
    return s.call(of_rank("adaptive_avg_pool", len(size)), x[0], check_sizes(size))


def _reduced(target: Any) -> RealOperator:
    def emit(s: Site, x: list[Any]) -> Any:
        return s.call(target, x[0], *s.reduction())

    return emit


def _resize(s: Site, x: list[Any]) -> Any:
    """Use torch's resizing; for other nearest-neighbour forms, the neighbours are gathered."""
    if (picked := _neighbours(s)) is not None:
        value = x[0]
        for axis, indices in picked.items():
            own = s.derive("neighbours", torch.from_numpy(indices))
            value = s.call(aten.index_select.default, value, axis, own)
        return value
    _check_floats(s)
    sizes, factors = resize_arguments(s)
    target, corners = upsampling(s)
    return s.call(target, x[0], sizes, *corners, factors)


def upsampling(s: Site) -> tuple[Any, list[bool]]:
    """Torch's kernel for a Resize, and its argument `align_corners` if it interpolates."""
    rank = s.rank() - 2
    if s.attribute("mode") == "linear":
        name = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")[rank - 1]
        return getattr(aten, name).vec, [s.attribute("coordinate_transformation_mode") == "align_corners"]
    name = f"upsample_nearest{rank}d" if s.attribute("nearest_mode") == "floor" else f"_upsample_nearest_exact{rank}d"
    return getattr(aten, name).vec, []


FORMS = {
    ("nearest", "asymmetric", "floor"),
    ("nearest", "half_pixel", "round_prefer_ceil"),
    ("linear", "half_pixel"),
    ("linear", "align_corners"),
}
"""The resizings that torch has."""


def _neighbours(s: Site) -> dict[int, Any] | None:
    """Axis → the selected elements; None if torch has this resizing, or they are not known now."""
    form = (s.attribute("mode"), s.attribute("coordinate_transformation_mode"), s.attribute("nearest_mode"))
    if form in FORMS or form[0] != "nearest" or form[1] == "tf_crop_and_resize":
        return None
    return known_neighbours(s.node, s.builder.model.tensors)


def resize_arguments(s: Site) -> tuple[Any, list[float] | None]:
    """Sizes or scale factors of the spatial dimensions, one of them None; Lacks if torch has no such form."""
    form = (s.attribute("mode"), s.attribute("coordinate_transformation_mode"))
    if form not in FORMS and (*form, s.attribute("nearest_mode")) not in FORMS:
        raise Lacks(f"torch does not support this Resize: {' '.join(form)}")
    for name in ("antialias", "axes", "exclude_outside"):
        if s.attribute(name):
            raise Lacks(f"torch does not support this {name} in Resize")
    if s.attribute("keep_aspect_ratio_policy") != "stretch":
        raise Lacks("torch does not keep an aspect ratio")
    if not 1 <= s.rank() - 2 <= 3:
        raise Lacks("torch resizes 1 to 3 dimensions")
    if s.has(3):
        sizes = s.sizes(3)
        return (sizes[2:] if isinstance(sizes, list) else s.call(_spatial, sizes)), None
    if not s.has(2) or s.tensor(2).data is None:
        raise Lacks("needs scales or sizes, scales that are constant")
    factors = [float(factor) for factor in s.tensor(2).array.reshape(-1)]
    if factors[:2] != [1.0, 1.0]:
        raise Lacks("torch resizes spatial dimensions only")
    return None, factors[2:]


def _spatial(sizes: list[int]) -> list[int]:
    return sizes[2:]


def _by(kernel: Kernel) -> RealOperator:
    def emit(s: Site, x: list[Any]) -> Any:
        places, named = kernel.arguments(s, x)
        return s.call(kernel.target, *places, **named)

    return emit


REAL: dict[str, RealOperator] = {
    **{name: _by(kernel) for name, kernel in spelled("aten").items()},
    "Conv": _conv,
    "ConvTranspose": _conv,
    "qfmt.Linear": _linear,
    "Gemm": _gemm,
    "QuantizeLinear": lambda s, x: x[0],
    "DequantizeLinear": lambda s, x: s.call(aten.to.dtype, x[0], torch.float32) if s.is_float else x[0],
    "Add": _binary(aten.add.Tensor),
    "Sub": _binary(aten.sub.Tensor),
    "Mul": _binary(aten.mul.Tensor),
    "Div": _div,
    "Pow": _power,
    "Min": _binary(aten.minimum.default),
    "Max": _binary(aten.maximum.default),
    "LessOrEqual": _binary(aten.le.Tensor),
    "Where": lambda s, x: s.call(aten.where.self, *x),
    "Neg": _unary(aten.neg.default),
    "Round": _unary(aten.round.default),
    "Clip": _clip,
    "Celu": _celu,
    "Selu": _selu,
    "ThresholdedRelu": _thresholded_relu,
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "Sigmoid": _unary(aten.sigmoid.default),
    "Tanh": _unary(aten.tanh.default),
    "Softmax": lambda s, x: s.call(aten.softmax.int, x[0], s.attribute("axis")),
    "LogSoftmax": lambda s, x: s.call(aten.log_softmax.int, x[0], s.attribute("axis")),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda s, x: _adaptive(s, x, [1] * (s.rank() - 2)),
    "qfmt.AdaptiveAveragePool": lambda s, x: _adaptive(s, x, s.attribute("output_size")),
    "ReduceMean": _reduced(aten.mean.dim),
    "ReduceSum": _reduced(aten.sum.dim_IntList),
    "ReduceMax": _reduced(aten.amax.default),
    "ReduceMin": _reduced(aten.amin.default),
    "Resize": _resize,
    "Concat": lambda s, x: s.call(aten.cat.default, x, s.attribute("axis")),
    "Cast": lambda s, x: cast(s, x[0], s.call),
}
"""Operator → torch's float computation: the kernel that its entry names, unless it needs another."""

HALVES = {"float16", "bfloat16"}

SUMS = {
    "Conv", "ConvTranspose", "qfmt.Linear", "Gemm", "AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool",
}  # fmt: skip
"""Operators of which torch has kernels that sum 16-bit floats in 16 bits, at least on some processors."""

NUMBERS = {"ReduceMean": 1, "ReduceSum": 1, "ReduceMax": 1, "ReduceMin": 1, "Clip": 1, "Resize": 1}
"""Operators that read only their first inputs as tensors; the others are parameters that are known now."""


def _float(s: Site) -> Any:
    if not s.is_float:
        raise Lacks("is quantized")
    return MOVES[s.node.operator](s) if s.node.operator in MOVES else computed(s, Site.x)


def computed(s: Site, real: Callable[[Site, int], Any]) -> Any:
    """Torch's float result for the inputs that are tensors; the function gets their positions."""
    count = NUMBERS.get(s.node.operator, len(s.node.inputs))
    if s.node.operator != "Resize":  # which may only move integers
        check_types(s, count)
    operands = [real(s, index) if s.has(index) else None for index in range(count)]
    kind = s.tensor(0).dtype
    if s.node.operator not in SUMS or kind not in HALVES:
        return REAL[s.node.operator](s, operands)
    wide = [each if each is None else s.call(aten.to.dtype, each, torch.float32) for each in operands]
    return s.call(aten.to.dtype, REAL[s.node.operator](s, wide), torch_dtype(kind))


FLOAT = Table("float", PLAIN, dict.fromkeys((*REAL, *MOVES), _float).get)
