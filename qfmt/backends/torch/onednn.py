"""oneDNN's kernels on plain uint8 and int8 tensors, with packed weights: fast, and without deprecated dtypes.

Their arithmetic is the rule `affine`, up to rounding. `onednn.qadd` and `qmul` read uint8 as int8 (torch 2.13), so
an addition is a 1 × 1 convolution with the identity that accumulates into its second input; it is used only if
for all 65,536 pairs of integers it equals the node's rule.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch

from ...arithmetic import QUANTIZE as QUANTIZE_RULES
from ...arithmetic import f32
from ...model import DTYPES
from . import arithmetic
from .arithmetic import Grid
from .dynamic import dynamic_linear_by_rule
from .emit import PLAIN, Emitter, Engine, Lacks, Site, Table
from .floats import FLOAT, REAL, computed
from .integers import INTEGERS
from .interpreted import LOOK_UP, NUMPY
from .moves import MOVES
from .processor import AS_FLOATS, overflows
from .products import PRODUCTS, real_bias
from .reference import REFERENCE
from .weights import WEIGHTS
from .windows import Geometry, window

aten, onednn = torch.ops.aten, torch.ops.onednn

CONV = {1: onednn.qconv1d_pointwise, 2: onednn.qconv2d_pointwise, 3: onednn.qconv3d_pointwise}


def weight_of(s: Site) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and scales in oneDNN's form."""
    weight = s.tensor(1)
    q = weight.quantization
    if weight.data is None or q is None or weight.dtype != "int8" or any(q.zero_point):
        raise Lacks("oneDNN requires constant int8 weights with zero point 0")
    if 0 in (weight.shape or ()):
        raise Lacks("oneDNN divides by the size of the weight, which is 0 (torch 2.13)")
    if s.grid(0).dtype != torch.uint8:
        raise Lacks("oneDNN supports only uint8 inputs here")
    if overflows(s, "onednn"):
        reason = "can overflow 16 bits in oneDNN's kernels on this processor"
        if s.builder.engine.exact:
            raise Lacks(reason)
        s.builder.notes.append(s.row("onednn", reason))
    count = (weight.shape or (0,))[0]
    scales = torch.tensor(q.scale.numbers() * (1 if q.is_per_channel else int(count or 1)), dtype=torch.float32)
    return s.constant(1), scales


def _bias(s: Site) -> Any:
    """The bias in the graph, as floats."""
    bias = real_bias(s)
    return s.x(2) if bias is None or s.tensor(2).quantization is None else s.derive("bias", bias)


def _held(s: Site, packed: torch.Tensor, scales: torch.Tensor) -> list[Any]:
    """Packed weights, scales and zero points as attributes of the module."""
    return [s.derive(what, each) for what, each in _parameters(packed, scales).items()]


def _parameters(packed: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"packed": packed, "scales": scales, "zero_points": torch.zeros(scales.shape, dtype=torch.int32)}


def convolution(s: Site, weight: torch.Tensor, scale: float, scales: torch.Tensor, bias: Any) -> tuple[Any, ...]:
    """The kernel, and its arguments up to the form of the output; `scale` is that of the input."""
    window, zero_point = _window(s, weight), s.grid(0).zero_point
    rank = len(window.strides)
    geometry = window.arguments()
    parameters = _held(s, onednn.qconv_prepack(weight, scales, scale, zero_point, *geometry, None), scales)
    x = _channels_last(s, rank, window.group)
    return CONV[rank].default, x, scale, zero_point, *parameters, bias, *geometry


def _window(s: Site, weight: torch.Tensor) -> Geometry:
    """The windows of a convolution; Lacks for those with which torch 2.13 has other sums, or crashes."""
    window, kernel = Geometry.of(s).even(), s.attribute("kernel_shape")
    rank, strides, single = len(kernel), window.strides, weight.shape[1] == 1
    dilations = [step if size > 1 else 1 for step, size in zip(window.dilations, kernel, strict=True)]
    faults = {
        "pads kernels of width 1 with the wrong number": (
            kernel[-1] == 1 and max(kernel) > 1 and any(window.pads) and s.grid(0).zero_point
        ),
        "sums groups of one channel wrongly if the strides grow": single and rank > 1 and strides[-1] > strides[-2],
        "sums groups of one channel wrongly in padded volumes": single and rank == 3 and window.pads[0],
        "sums dilated windows wrongly that lie in the padding": any(
            step > 1 and (pad % step or 2 * pad > (size - 1) * step)
            for size, pad, step in zip(kernel, window.pads[:rank], dilations, strict=True)
        ),
    }
    for fault, applies in faults.items():
        if applies:
            raise Lacks(f"oneDNN {fault} (torch 2.13)")
    return window._replace(dilations=dilations)


def linear(s: Site, weight: torch.Tensor, scale: float, scales: torch.Tensor, bias: Any) -> tuple[Any, ...]:
    """The same, of a linear layer."""
    parameters = _held(s, onednn.qlinear_prepack(weight, None), scales)
    return onednn.qlinear_pointwise.default, s.features(), scale, s.grid(0).zero_point, *parameters, bias


def called(put: Callable[..., Any], s: Site, kernel: Any, x: Any, *arguments: Any) -> Any:
    """The result of a kernel, with its dimensions also if it has no elements (torch 2.13 adds or drops some). `put` is
    the last call: `s.call` or `s.result`."""
    if kernel == CONV[1].default:
        return put(aten.flatten.using_ints, s.call(kernel, x, *arguments), 1, -2)
    if kernel == onednn.qlinear_pointwise.default and (kept := len(s.tensor(0).shape or ()) - 1) > 1:
        features = (s.tensor(1).shape or (0,))[0]
        like = s.call(aten.expand.default, s.call(aten.slice.Tensor, x, -1, 0, 1), [-1] * kept + [features])
        return put(aten.view_as.default, s.call(kernel, x, *arguments), like)
    return put(kernel, x, *arguments)


def _conv(s: Site) -> Any:
    weight, scales = weight_of(s)
    fuses = len(s.attribute("strides")) < 3
    return _put_out(s, *convolution(s, weight, s.grid(0).scale, scales, _bias(s)), fuses=fuses)


def _linear(s: Site) -> Any:
    weight, scales = weight_of(s)
    return _put_out(s, *linear(s, weight, s.grid(0).scale, scales, _bias(s)))


def _channels_last(s: Site, rank: int, group: int) -> Any:
    """torch 2.13 computes some grouped convolutions incorrectly if the channels of the input are not last in memory."""
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    if group == 1 or rank not in formats:
        return s.x(0)
    return s.call(aten.contiguous.default, s.x(0), memory_format=formats[rank])


def _put_out(s: Site, target: Any, *arguments: Any, fuses: bool = True) -> Any:
    """The call of a kernel with the form of its output: floats, or integers, with a ReLU if the kernel `fuses` one.

    They are clamped if the output's range differs from the kernel's.
    """
    if s.out.quantization is None:
        return called(s.result, s, target, *arguments, *AS_FLOATS)
    if s.out_grid.dtype != torch.uint8:
        raise Lacks("oneDNN supports only uint8 or float32 outputs here")
    y, limits = s.out_grid, DTYPES[s.out.dtype]
    relu = fuses and y.minimum == y.zero_point
    call = (*arguments, y.scale, y.zero_point, torch.uint8, "relu" if relu else "none", [], "")
    low = y.zero_point if relu else limits.minimum
    if (y.minimum, y.maximum) == (low, limits.maximum):
        return called(s.result, s, target, *call)
    return s.result(aten.clamp.default, called(s.call, s, target, *call), y.minimum, y.maximum)


def _add(s: Site) -> Any:
    a, b, y = s.grid(0), s.grid(1), s.out_grid
    channels, scales = _channels(s), None
    if channels and s.node.rule in QUANTIZE_RULES and y.minimum in (0, y.zero_point) and y.maximum == 255:
        scales = _exact_scales(a, b, y, s.node.rule)
    if channels is None or scales is None:
        in_place = None not in (shape := s.tensor(0).shape or (None,)) and shape == s.tensor(1).shape
        return by_rule(s, s.call(aten.add_.Tensor if in_place else aten.add.Tensor, real(s, 0), real(s, 1)))
    parameters = [s.derive(what, each) for what, each in _identity(scales[0], channels).items()]
    second = s.call(aten.clone.default, s.x(1), memory_format=torch.channels_last)  # it is overwritten
    return s.result(onednn.qconv2d_pointwise.binary, s.x(0), *_accumulation(*scales, parameters, second, channels))


def _channels(s: Site) -> int | None:
    """The number of channels of two uint8 images of one shape; None for other inputs or outputs."""
    first, second = s.tensor(0), s.tensor(1)
    shape = first.shape
    if shape is None or shape != second.shape or len(shape) != 4 or not isinstance(shape[1], int):
        return None
    grids = (s.grid(0), s.grid(1), s.out_grid)
    return shape[1] if all(grid.axis is None and grid.dtype == torch.uint8 for grid in grids) else None


def _identity(a: Grid, channels: int) -> dict[str, torch.Tensor]:
    """The depthwise 1 × 1 convolution that changes nothing."""
    ones, scales = torch.ones(channels, 1, 1, 1, dtype=torch.int8), torch.ones(channels, dtype=torch.float32)
    packed = onednn.qconv_prepack(ones, scales, a.scale, a.zero_point, [1, 1], [0, 0], [1, 1], channels, None)
    return _parameters(packed, scales)


def _accumulation(a: Grid, b: Grid, y: Grid, parameters: list[Any], second: Any, channels: int) -> tuple[Any, ...]:
    """The arguments of `qconv2d_pointwise.binary` after the first."""
    relu = "relu" if y.minimum == y.zero_point else "none"
    convolution = (*parameters, second, None, [1, 1], [0, 0], [1, 1], channels)
    result: tuple[Any, ...] = (y.scale, y.zero_point, torch.uint8, b.scale, b.zero_point, "sum", 1.0, relu, [], "")
    return (a.scale, a.zero_point, *convolution, *result)


def _exact_scales(a: Grid, b: Grid, y: Grid, rule: str) -> tuple[Grid, Grid, Grid] | None:
    """Scales for the kernel with which every pair of integers has the rule's result: those of the tensors, or scales
    that differ in the last bits of float32, which changes sums close to a half. None if there are none nearby."""
    every = torch.arange(256, dtype=torch.uint8)
    first, second = every.repeat_interleave(256).reshape(1, 1, 256, 256), every.repeat(256).reshape(1, 1, 256, 256)
    total = arithmetic.dequantize(first, a, rule) + arithmetic.dequantize(second, b, rule)
    wanted = arithmetic.quantize(total, y, rule)
    parameters = list(_identity(a, 1).values())
    for steps in sorted(product((0, 1, -1, 2, -2), repeat=3), key=lambda steps: sum(map(abs, steps))):
        moved = (_moved(a, steps[0]), _moved(b, steps[1]), _moved(y, steps[2]))
        got = onednn.qconv2d_pointwise.binary(first, *_accumulation(*moved, parameters, second.clone(), 1))
        if torch.equal(got, wanted):
            return moved
    return None


def _moved(grid: Grid, steps: int) -> Grid:
    """The quantization with its scale moved by that many units in the last place of float32."""
    scale = f32(grid.scale)
    for _ in range(abs(steps)):
        scale = np.nextafter(scale, f32(np.inf if steps > 0 else 0))
    return grid._replace(scale=float(scale))


# Quantize and dequantize with operators of torch, so that torch's interpreter can run them


def real(s: Site, index: int) -> Any:
    """An input as floats, with its own memory if it is quantized."""
    if s.tensor(index).quantization is None:
        return s.x(index)
    x, rule = s.grid(index), s.node.rule
    if x.axis is not None:
        return s.call(arithmetic.dequantize, s.x(index), x)
    if x.dtype.itemsize > 2:
        raise Lacks("is quantized to more than 16 bits")
    value, scale = s.call(aten.to.dtype, s.x(index), torch.float32), f32(x.scale)
    if rule != "premultiplied":
        return s.call(aten.mul_.Scalar, s.call(aten.sub.Scalar, value, x.zero_point), float(scale))
    offset = torch.tensor(float(scale * -f32(x.zero_point)), dtype=torch.float32)
    return _fused(s, s.builder.derive(f"{s.node.inputs[index]}_offset", offset), value, float(scale))


def by_rule(s: Site, value: Any) -> Any:
    """Floats as the output, by the quantize rule of the node; the value itself is not modified."""
    y, rule = s.out_grid, s.node.rule
    if y.axis is not None or y.dtype.itemsize > 2 or rule not in QUANTIZE_RULES:
        raise Lacks(f"does not quantize to {s.out.dtype} by {rule!r}")
    if s.tensor(0).quantization is None and s.tensor(0).dtype != "float32":
        value = s.call(aten.to.dtype, value, torch.float32)
    inverse = float(f32(1) / f32(y.scale))
    if rule == "reciprocal_fma":
        zero_point = s.derive("zero_point", torch.tensor(float(y.zero_point), dtype=torch.float32))
        return _integers(s, s.call(aten.round_.default, _fused(s, zero_point, value, inverse)))
    if rule == "divide":
        steps = s.call(aten.div.Scalar, value, float(f32(y.scale)))
    else:
        steps = s.call(aten.mul.Scalar, value, inverse)
    if rule == "reciprocal_offset":
        return _integers(s, s.call(aten.round_.default, s.call(aten.add_.Scalar, steps, y.zero_point)))
    return _integers(s, s.call(aten.add_.Scalar, s.call(aten.round_.default, steps), y.zero_point))


def _dequantize(s: Site) -> Any:
    if s.is_float:
        raise Lacks("is not quantized")
    return real(s, 0)


def _integers(s: Site, rounded: Any) -> Any:
    """Integral floats, with their own memory, as integers in the range of the output; NaN as its minimum."""
    y = s.out_grid
    numbers = s.call(aten.nan_to_num_.default, rounded, float(y.minimum))
    return s.result(aten.to.dtype, s.call(aten.clamp_.default, numbers, y.minimum, y.maximum), y.dtype)


def _fused(s: Site, addend: Any, value: Any, factor: float) -> Any:
    """addend + factor · value, rounded once."""
    if not arithmetic.add_is_fused():
        raise Lacks("torch does not fuse multiply-add on this machine")
    return s.call(aten.add.Tensor, addend, value, alpha=factor)


def _max_pool(s: Site) -> Any:
    kernel, strides, pads, dilations, ceil = window(s)
    if s.is_float or len(kernel) != 2 or s.out.dtype != "uint8":
        raise Lacks("torch supports this pool only for images of uint8")
    return s.result(torch.ops.quantized.max_pool2d.default, s.x(0), kernel, strides, pads, dilations, ceil)


def _mean(s: Site) -> Any:
    """By the mean rules. Sums of n centred 8-bit integers are exact in float32 up to n = 65,793."""
    x, y, rule = s.grid(0), s.out_grid, s.node.rule
    axes, keepdims = s.reduction()
    axes = list(range(2, s.rank())) if axes is None else axes
    if x.dtype.itemsize > 1 or x.axis is not None or (x.scale, x.zero_point) != (y.scale, y.zero_point):
        raise Lacks("changes the quantization")
    centred = s.call(aten.sub.Scalar, s.call(aten.to.dtype, s.x(0), torch.float32), x.zero_point)
    if rule == "mean_divide_offset":
        value = s.call(aten.add.Scalar, s.call(aten.mean.dim, centred, axes, keepdims), y.zero_point)
    elif rule == "mean_reciprocal_fma":  # n is a sum of ones; float64 holds Σ · f32(1 / n) + z exactly
        total = s.call(aten.to.dtype, s.call(aten.sum.dim_IntList, centred, axes, keepdims), torch.float64)
        count = s.call(aten.sum.dim_IntList, s.call(aten.ones_like.default, centred), axes, keepdims)
        product = s.call(aten.mul.Tensor, total, s.call(aten.reciprocal.default, count))
        value = s.call(aten.to.dtype, s.call(aten.add.Scalar, product, y.zero_point), torch.float32)
    else:
        raise Lacks(f"averages with a rule other than {rule!r}")
    return _integers(s, s.call(aten.round.default, value))


def _relu(s: Site) -> Any:
    if s.is_float:
        raise Lacks("is not quantized")
    y = s.out_grid
    if y.dtype.itemsize > 1 or y.axis is not None:
        raise Lacks("has more than 8 bits, or multiple scales")
    return s.result(aten.clamp.default, s.x(0), max(y.minimum, y.zero_point), y.maximum)


def _concat(s: Site) -> Any:
    """Inputs with the output's quantization are joined unchanged; the others go through a table of 256 results."""
    grids, y, axis = [s.grid(index) for index in range(len(s.node.inputs))], s.out_grid, s.attribute("axis")
    if any(grid.axis is not None or grid.dtype != y.dtype or grid.dtype.itemsize > 1 for grid in (*grids, y)):
        raise Lacks("joins tensors of different types")
    values = [_regridded(s, index, grid) for index, grid in enumerate(grids)]
    return s.result(aten.cat.default, values, axis)


def _regridded(s: Site, index: int, x: Grid) -> Any:
    y = s.out_grid
    same = (x.scale, x.zero_point) == (y.scale, y.zero_point)
    if same and y.minimum <= x.minimum and x.maximum <= y.maximum:
        return s.x(index)
    kind = DTYPES[s.tensor(index).dtype]
    every = torch.from_numpy(kind.every())
    rule = s.node.rule
    table = arithmetic.quantize(arithmetic.dequantize(every, x, rule), y, rule)
    return look_up(s, index, table, kind.minimum)


def look_up(s: Site, index: int, table: torch.Tensor, lowest: int) -> Any:
    """table[q - lowest], in operators of torch."""
    held = s.derive("table", table)
    places = s.call(aten.to.dtype, s.x(index), torch.int64)
    return s.call(aten.take.default, held, places if lowest == 0 else s.call(aten.sub.Scalar, places, lowest))


ONEDNN_EMITTERS: dict[str, Emitter] = {
    **MOVES,
    "Conv": _conv,
    "qfmt.Linear": _linear,
    "qfmt.DynamicLinear": dynamic_linear_by_rule,
    "Add": _add,
    "QuantizeLinear": lambda s: by_rule(s, real(s, 0)),
    "DequantizeLinear": _dequantize,
    "MaxPool": _max_pool,
    "GlobalAveragePool": _mean,
    "ReduceMean": _mean,
    "Relu": _relu,
    "Concat": _concat,
}


def _computes(s: Site) -> Any:
    """Dequantize, compute as torch does, quantize."""
    value = computed(s, real)
    return value if s.out.quantization is None else by_rule(s, value)


ONEDNN = Table("onednn", PLAIN, ONEDNN_EMITTERS.get)
COMPUTES = Table("torch's float kernels", PLAIN, dict.fromkeys(REAL, _computes).get)
ONEDNN_ENGINE = Engine(
    "onednn", (ONEDNN, FLOAT, WEIGHTS, LOOK_UP, INTEGERS, PRODUCTS, REFERENCE, COMPUTES, NUMPY), own=5, exact=True
)
