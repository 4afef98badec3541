"""Convolutions and matrix products on plain integers: exact sums, then the stated requantize rule."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...arithmetic import EXACT_IN_FLOAT32
from ...ops.accumulation import EXACT_IN_FLOAT64, in_units_of_sums
from .arithmetic import REQUANTIZE, Grid, centred, requantize
from .emit import Emitter, Lacks, Site


def exact_dtype(x: Grid, weight_dtype: torch.dtype, count: int) -> torch.dtype:
    """The float type in which every sum of `count` products is exact, in whatever order: float32 if 2²⁴ holds them."""
    low, high = torch.iinfo(x.dtype).min - x.zero_point, torch.iinfo(x.dtype).max - x.zero_point
    limits = torch.iinfo(weight_dtype)
    reach = count * max(-low, high) * (limits.max - limits.min)
    if limits.min < 0:  # int8 weights have the zero point 0 wherever torch made them; others get the wider bound
        reach = count * max(-low, high) * max(-limits.min, limits.max)
    return torch.float32 if reach <= EXACT_IN_FLOAT32 else torch.float64


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 only while torch computes float32 products as such, and not in bfloat16 or TF32."""
    settings = [getattr(torch.backends.mkldnn, kind, None) for kind in ("conv", "matmul")]
    reduced = [getattr(each, "fp32_precision", "none") not in ("none", "ieee") for each in settings]
    return torch.float64 if any(reduced) or torch.get_float32_matmul_precision() != "highest" else dtype


def centred_weight(weight: Tensor, zero_point: Tensor, axis: int | None, dtype: torch.dtype) -> Tensor:
    shape = [-1 if i == axis else 1 for i in range(weight.dim())] if axis is not None else []
    return weight.to(dtype) - zero_point.to(dtype).reshape(shape)


def _along(values: Tensor, per_channel: bool, rank: int, channels: int) -> Tensor:
    """Scales or bias, shaped so that they run along the channels of the accumulator; 0-d if there is only one."""
    return values.reshape([-1 if i == channels else 1 for i in range(rank)]) if per_channel else values.reshape(())


def conv(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    bias: Tensor | None,
    x_grid: Grid,
    y_grid: Grid,
    rule: str,
    exact: torch.dtype,
    weight_axis: int | None,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    group: int,
) -> Tensor:
    """acc = Σ (x - zx) · (w - zw), exact; padding represents real zeros; then the requantize rule."""
    dtype, rank = sum_dtype(exact), len(strides)
    values = centred(x, x_grid, dtype)
    if pads[:rank] != pads[rank:]:
        values = functional.pad(values, torch_pads(pads))
        pads = [0] * rank
    kernel = centred_weight(weight, weight_zero_point, weight_axis, dtype)
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    acc = convolve(values, kernel, None, strides, pads[:rank], dilations, group)
    return _requantized(acc, bias, x_grid, weight_scale, weight_axis, y_grid, rule, 1)


def _requantized(
    acc: Tensor, bias: Tensor | None, x: Grid, scales: Tensor, axis: int | None, y: Grid, rule: str, channels: int
) -> Tensor:
    along = partial(_along, rank=acc.dim(), channels=channels)
    if bias is not None and not bias.is_floating_point():  # in units of the sums
        acc, bias = acc.double() + along(bias.double(), True), None
    addend = None if bias is None else along(bias, True)
    return requantize(acc, addend, x.scale, along(scales, axis is not None), y, rule)


def torch_pads(pads: list[int]) -> list[int]:
    """From the last dimension on, before and after each."""
    rank = len(pads) // 2
    return [width for i in reversed(range(rank)) for width in (pads[i], pads[rank + i])]


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    bias: Tensor | None,
    x_grid: Grid,
    y_grid: Grid,
    rule: str,
    exact: torch.dtype,
    weight_axis: int | None,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    group: int,
    output_padding: list[int],
) -> Tensor:
    """As `conv`: each input value paints a kernel, pads are cropped."""
    dtype, rank = sum_dtype(exact), len(strides)
    kernel = centred_weight(weight, weight_zero_point, weight_axis, dtype)
    convolve = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    acc = convolve(centred(x, x_grid, dtype), kernel, None, strides, pads[:rank], output_padding, group, dilations)
    scales = weight_scale.repeat(group) if weight_axis is not None else weight_scale
    return _requantized(acc, bias, x_grid, scales, weight_axis, y_grid, rule, 1)


def linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    bias: Tensor | None,
    x_grid: Grid,
    y_grid: Grid,
    rule: str,
    exact: torch.dtype,
    weight_axis: int | None,
) -> Tensor:
    """acc = Σ (x - zx) · (w - zw) over the last dimension, exact; then the requantize rule."""
    dtype = sum_dtype(exact)
    acc = functional.linear(centred(x, x_grid, dtype), centred_weight(weight, weight_zero_point, weight_axis, dtype))
    return _requantized(acc, bias, x_grid, weight_scale, weight_axis, y_grid, rule, acc.dim() - 1)


def matmul(a: Tensor, b: Tensor, a_grid: Grid, b_grid: Grid, y_grid: Grid, rule: str) -> Tensor:
    """acc = Σ (a - za) · (b - zb), exact; then the requantize rule, without a bias."""
    acc = torch.matmul(centred(a, a_grid, torch.float64), centred(b, b_grid, torch.float64))
    return requantize(acc, None, a_grid.scale, b_grid.scales(0), y_grid, rule)


def _accumulates(s: Site) -> dict[str, Any]:
    """What every emitter of an accumulating operator passes on."""
    x, w = s.grid(0), s.grid(1)
    if s.node.arithmetic not in REQUANTIZE:
        raise Lacks(f"does not support the rule {s.node.arithmetic!r}")
    if x.axis is not None or s.tensor(1).data is None or s.out_grid.axis is not None:
        raise Lacks("needs an input quantized per tensor and a constant weight")
    if s.has(2) and not _is_added(s):
        raise Lacks("has a bias on a grid of its own")
    shape = s.tensor(1).shape or ()
    sizes = [size for size in shape if isinstance(size, int)]
    count = prod(sizes[1:]) if s.node.operator != "ConvTranspose" else prod(sizes) // max(1, sizes[1])
    symmetric = not any(w.zero_point) if isinstance(w.zero_point, list) else w.zero_point == 0
    exact = exact_dtype(x, w.dtype, count) if symmetric else torch.float64
    if count << 8 * (x.dtype.itemsize + w.dtype.itemsize) + 2 > EXACT_IN_FLOAT64:
        raise Lacks("has sums that float64 cannot represent")
    return {"x_grid": x, "y_grid": s.out_grid, "rule": s.node.arithmetic, "exact": exact, "weight_axis": w.axis}


def _is_added(s: Site) -> bool:
    """Whether the bias is a real number, or integers in units of the sums."""
    bias, x, w = s.tensor(2), s.tensor(0).quantization, s.tensor(1).quantization
    if bias.quantization is None:
        return True
    if x is None or w is None:
        return False
    groups = int(s.attribute("group")) if s.node.operator == "ConvTranspose" else 1
    return in_units_of_sums(bias.quantization, x.scale[0], w.scale * groups) and bias.dtype == "int32"


def real_bias(s: Site) -> Tensor | None:
    """The bias in float32, for kernels that take no other: the buffer, or the value of integers in units of the sums.

    Lacks if it is computed, or on a grid of its own.
    """
    if not s.has(2):
        return None
    bias = s.tensor(2)
    if bias.data is None or not _is_added(s):
        raise Lacks("needs a bias that is constant, and in units of the sums")
    if bias.quantization is None and bias.dtype != "float32":
        raise Lacks("takes float32 biases")
    return s.constant(2) if bias.quantization is None else torch.from_numpy(bias.dequantize())


def _geometry(s: Site) -> dict[str, Any]:
    return {name: s.attribute(name) for name in ("strides", "pads", "dilations", "group")}


def _conv(s: Site) -> Any:
    return s.result(conv, s.x(0), *s.parameters(1), s.x(2), **_accumulates(s), **_geometry(s))


def _conv_transpose(s: Site) -> Any:
    geometry = _geometry(s) | {"output_padding": s.attribute("output_padding")}
    rank = len(geometry["strides"])
    if geometry["pads"][:rank] != geometry["pads"][rank:]:
        raise Lacks("crops the two sides differently")
    return s.result(conv_transpose, s.x(0), *s.parameters(1), s.x(2), **_accumulates(s), **geometry)


def _linear(s: Site) -> Any:
    return s.result(linear, s.x(0), *s.parameters(1), s.x(2), **_accumulates(s))


def _matmul(s: Site) -> Any:
    a, b, y = s.grid(0), s.grid(1), s.out_grid
    if b.axis is not None or s.node.arithmetic not in REQUANTIZE:
        raise Lacks("has a second input quantized per channel")
    if a.dtype.itemsize + b.dtype.itemsize > 4:
        raise Lacks("has sums that float64 may not represent")
    return s.result(matmul, s.x(0), s.x(1), a, b, y, s.node.arithmetic)


PRODUCT_EMITTERS: dict[str, Emitter] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "qfmt.Linear": _linear,
    "MatMul": _matmul,
}
