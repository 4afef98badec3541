"""The stated rules on plain integer tensors: what `Model.run` computes, bit for bit.

NumPy computes what torch does not define to the last bit (float sums, exp, erf …), so that this is bit for bit, too.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...arithmetic import f32
from ...model import DTYPES
from ...ops.geometry import bins
from .arithmetic import MEAN, QUANTIZE, Grid, centred, dequantize, mean, quantize, rescale
from .dynamic import dynamic_linear_by_rule
from .emit import PLAIN, Emitter, Engine, Lacks, Site, Table
from .floats import bounds, cast, check_sizes, check_types, computed
from .integers import INTEGERS, spatial
from .interpreted import LOOK_UP, NUMPY
from .moves import MOVES
from .products import PRODUCTS, torch_pads
from .windows import plain_window, window

# Products and sums of elements, means


def product(a: Tensor, b: Tensor, a_grid: Grid, b_grid: Grid, y_grid: Grid, multiplier: float) -> Tensor:
    """rint(f32((qa - za) · (qb - zb)) · multiplier) + z"""
    return rescale(centred(a, a_grid, torch.float64) * centred(b, b_grid, torch.float64), multiplier, y_grid)


def total(a: Tensor, b: Tensor, a_grid: Grid, b_grid: Grid, y_grid: Grid, multiplier: float) -> Tensor:
    """rint(f32((qa - za) + (qb - zb)) · multiplier) + z, for inputs of one scale"""
    return rescale(centred(a, a_grid, torch.float64) + centred(b, b_grid, torch.float64), multiplier, y_grid)


def _mul(s: Site) -> Any:
    if s.node.rule != "product":
        return _computes(s)
    a, b, y = s.grid(0), s.grid(1), s.out_grid
    if a.axis is not None or b.axis is not None or a.dtype.itemsize + b.dtype.itemsize > 6:
        raise Lacks("multiplies integers per channel, or of more than 53 bits")
    multiplier = f32(a.scale) * f32(b.scale) * (f32(1) / f32(y.scale))
    return s.result(product, s.x(0), s.x(1), a, b, y, float(multiplier))


def _add(s: Site) -> Any:
    if s.node.rule != "sum":
        return _computes(s)
    a, b, y = s.grid(0), s.grid(1), s.out_grid
    return s.result(total, s.x(0), s.x(1), a, b, y, float(f32(a.scale) * (f32(1) / f32(y.scale))))


def reduce_mean(x: Tensor, axes: list[int] | None, keepdims: bool, grid: Grid, rule: str) -> Tensor:
    """A mean rule, over Σ (q - z) of the axes (None: the spatial ones)."""
    over = spatial(x) if axes is None else axes
    sums = x.to(torch.int64).sum(over, keepdim=keepdims)
    count = prod(x.shape[axis] for axis in over)
    return mean(sums - count * grid.zero_point, torch.tensor(count), grid, rule)


def average_pool(
    x: Tensor,
    kernel: list[int],
    strides: list[int],
    pads: list[int],
    ceil: bool,
    count_pads: bool,
    grid: Grid,
    rule: str,
) -> Tensor:
    """A mean rule, over Σ (q - z) of the window; padding represents real zeros."""
    values = centred(x, grid, torch.float64)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=torch.float64)  # operators of torch only: the module can be traced
    inside = functional.pad(ones, torch_pads(pads + pads), value=1.0)
    counts = window_sums(inside, kernel, strides, [0] * len(pads), ceil)
    if not count_pads:
        counts = window_sums(ones, kernel, strides, pads, ceil)
    sums = window_sums(values, kernel, strides, pads, ceil)
    return mean(sums, counts[tuple(slice(size) for size in (1, 1, *sums.shape[2:]))], grid, rule)


def window_sums(x: Tensor, kernel: list[int], strides: list[int], pads: list[int], ceil: bool) -> Tensor:
    """Sums over windows, exact in float64; a 1-d window is a 2-d one of height 1."""
    if len(kernel) == 1:
        return window_sums(x.unsqueeze(2), [1, *kernel], [1, *strides], [0, *pads], ceil).squeeze(2)
    pool = functional.avg_pool2d if len(kernel) == 2 else functional.avg_pool3d
    return pool(x, kernel, strides, pads, ceil, True, 1)


def adaptive_average_pool(x: Tensor, sizes: list[int], grid: Grid, rule: str) -> Tensor:
    """A mean rule, over Σ (q - z) of each bin: along a dimension from ⌊i · in / out⌋ to ⌈(i + 1) · in / out⌉."""
    sums, counts = centred(x, grid, torch.float64), torch.ones((), dtype=torch.float32)
    for axis, size in zip(range(x.dim() - len(sizes), x.dim()), sizes, strict=True):
        lengths = [(part.start, part.stop - part.start) for part in bins(x.shape[axis], size)]
        sums = torch.cat([sums.narrow(axis, *part).sum(axis, keepdim=True) for part in lengths], axis)
        counts = counts.unsqueeze(-1) * torch.tensor([length for _, length in lengths])
    return mean(sums, counts, grid, rule)


def _kept_grid(s: Site) -> Grid:
    """The quantization of a mean, which is that of its input."""
    q = s.tensor(0).quantization
    if s.node.rule in QUANTIZE or s.is_float:
        raise Lacks("sums floats")
    if q is None or not q.same_grid(s.out.quantization) or q.is_per_channel:
        raise Lacks("changes the quantization")
    if s.node.rule not in MEAN:
        raise Lacks(f"does not support the rule {s.node.rule!r}")
    return s.out_grid


def _mean(s: Site) -> Any:
    return s.result(reduce_mean, s.x(0), *s.reduction(), _kept_grid(s), s.node.rule)


def _average_pool(s: Site) -> Any:
    grid = _kept_grid(s)
    kernel, strides, pads, ceil = plain_window(s)
    count_pads = bool(s.attribute("count_include_pad"))
    return s.result(average_pool, s.x(0), kernel, strides, pads, ceil, count_pads, grid, s.node.rule)


# Comparisons


def max_pool(
    x: Tensor, kernel: list[int], strides: list[int], pads: list[int], dilations: list[int], ceil: bool
) -> Tensor:
    """The largest element of each window, of any dtype; padding never wins. float64 holds integers of 32 bits."""
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
    wide = x if x.is_floating_point() else x.double() if x.dtype.itemsize > 2 else x.float()
    return pool(wide, kernel, strides, pads, dilations, ceil).to(x.dtype)


def _max_pool(s: Site) -> Any:
    kind = DTYPES[s.tensor(0).dtype]
    if kind.kind != "f" and kind.bits == 64:
        raise Lacks("pools integers that float64 may not represent")
    if kind.kind == "f" and kind.bits < 16:
        raise Lacks("torch does not pool floats of 8 and 4 bits")
    return s.result(max_pool, s.x(0), *window(s))


def limited(x: Tensor, low: int, high: int) -> Tensor:
    """min(max(q, low), high)"""
    return x.to(torch.int64).clamp(low, high).to(x.dtype)


def _clamping_grid(s: Site) -> Grid:
    """The quantization of an output whose range clamps integers."""
    if s.out_grid.axis is not None:
        raise Lacks("clamps a tensor that is quantized per channel")
    return s.out_grid


def _relu(s: Site) -> Any:
    check_types(s)
    if s.is_float:
        return s.result(torch.ops.aten.clamp_min.default, s.x(0), 0)
    y = _clamping_grid(s)
    return s.result(limited, s.x(0), max(y.minimum, y.zero_point), y.maximum)


def _clip(s: Site) -> Any:
    """Q(min) and Q(max), by the rule `reciprocal_offset`, are inside the range of the output."""
    check_types(s)
    given = bounds(s)
    if s.is_float:
        return s.result(torch.ops.aten.clamp.default, s.x(0), *given) if given != [None, None] else s.x(0)
    y = _clamping_grid(s)
    low, high = (
        limit if bound is None else int(quantize(torch.tensor(bound, dtype=torch.float32), y, "reciprocal_offset"))
        for bound, limit in zip(given, (y.minimum, y.maximum), strict=True)
    )
    return s.result(limited, s.x(0), low, high)


# Dequantize, compute, quantize: operations that IEEE 754 defines to the last bit

aten = torch.ops.aten

EXACT = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Neg", "Abs", "Round", "Reciprocal", "QuantizeLinear",
         "DequantizeLinear", "Concat", "PRelu")  # fmt: skip


def real(s: Site, index: int) -> Any:
    """An input as floats."""
    if s.tensor(index).quantization is None:
        return s.x(index)
    return s.call(dequantize, s.x(index), s.grid(index), s.node.rule)


def rounded(s: Site, value: Any) -> Any:
    """Floats as the output of the node."""
    if s.out.quantization is None:
        return value
    if s.node.rule not in QUANTIZE:
        raise Lacks(f"does not support the rule {s.node.rule!r}")
    return s.result(quantize, value, s.out_grid, s.node.rule)


def _computes(s: Site) -> Any:
    if s.out.quantization is not None and not s.node.rule:  # a Concat that only moves integers
        return s.result(aten.cat.default, [s.x(index) for index in range(len(s.node.inputs))], s.attribute("axis"))
    integers = s.is_float and any(s.tensor(i).dtype != "float32" for i in range(len(s.node.inputs)))
    if integers and s.node.operator == "Div":
        raise Lacks("divides integers")
    return rounded(s, computed(s, real))


def _cast(s: Site) -> Any:
    if not s.is_float:
        raise Lacks("is quantized")
    return cast(s, s.x(0), s.result)


REFERENCE_EMITTERS: dict[str, Emitter] = {
    **MOVES,
    **dict.fromkeys(EXACT, _computes),
    "Mul": _mul,
    "Add": _add,
    "qfmt.DynamicLinear": dynamic_linear_by_rule,
    "GlobalAveragePool": _mean,
    "qfmt.AdaptiveAveragePool": lambda s: s.result(
        adaptive_average_pool, s.x(0), check_sizes(s.attribute("output_size")), _kept_grid(s), s.node.rule
    ),
    "ReduceMean": _mean,
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "Relu": _relu,
    "Clip": _clip,
    "Cast": _cast,
}


REFERENCE = Table("reference", PLAIN, REFERENCE_EMITTERS.get)
REFERENCE_ENGINE = Engine("reference", (PRODUCTS, REFERENCE, LOOK_UP, INTEGERS, NUMPY), own=4)
