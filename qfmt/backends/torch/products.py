"""Convolutions and matrix products of integers less their zero points, as float32: exact sums, then the stated rule.

A float sum is exact, in any order, if the type represents the sum of its positive and that of its negative terms:
float32 up to 2²⁴. Channels with larger sums are summed in parts, or in float64. That requires kernels that multiply
and add: Winograd's do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...arithmetic import EXACT_IN_FLOAT32
from ...arithmetic.sums import Step, has_effect
from ...model import DTYPES, numpy_dtype
from ...ops import Operand
from ...ops.accumulation import exact_dtype, in_units_of_sums, scales_of_channels, whole
from .arithmetic import REQUANTIZE, after
from .emit import CENTRED, Lacks, Site, Table
from .processor import convolves_whole_numbers
from .windows import Geometry

mkldnn = torch.ops.mkldnn

MOST_PARTS = 8
LARGE = 1 << 15
"""From this many weights, a convolution keeps them in oneDNN's layout: converting them takes as long."""

# Sums


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 only while torch computes float32 products in full precision."""
    return torch.float64 if _rounds() else dtype


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _rounds() -> bool:
    """Whether float32 products are those of bfloat16 or TF32, or of NNPACK, which uses Winograd's method, if oneDNN
    is switched off."""
    settings = [getattr(torch.backends.mkldnn, kind, None) for kind in ("conv", "matmul")]
    reduced = [getattr(each, "fp32_precision", "none") not in ("none", "ieee") for each in settings]
    reduced.append(torch.get_float32_matmul_precision() != "highest")
    has_nnpack: bool = torch.backends.nnpack.is_available()  # type: ignore[no-untyped-call]
    return any(reduced) or (has_nnpack and not torch._C._get_mkldnn_enabled())


class Weight:
    """A large weight of a 2-d convolution, and its oneDNN layout for the latest input size."""

    def __init__(self, dense: Tensor) -> None:
        self.dense = dense
        self._packed: tuple[list[int], Tensor] = [], dense

    def convolved(self, x: Tensor, strides: list[int], pads: list[int], dilations: list[int], group: int) -> Tensor:
        size, packed = self._packed
        if size != list(x.shape):
            size = list(x.shape)
            packed = mkldnn._reorder_convolution_weight(self.dense, pads, strides, dilations, group, size)
            self._packed = size, packed
        result: Tensor = mkldnn._convolution_pointwise(x, packed, None, pads, strides, dilations, group, "none", [], "")
        return result


def conv_sums(x: Tensor, weight: Tensor | Weight, geometry: Geometry, parts: int = 1) -> Tensor:
    """Σ x · w; padding adds nothing. The channels of a group are summed in that many parts."""
    rank, transposed = len(geometry.strides), geometry.output_padding is not None
    if not transposed and geometry.pads[:rank] != geometry.pads[rank:]:
        x, geometry = functional.pad(x, torch_pads(geometry.pads)), geometry._replace(pads=[0] * 2 * rank)
    if not transposed and rank == 2:
        x = x.contiguous(memory_format=torch.channels_last)
    group = geometry.group
    if isinstance(weight, Weight):
        if sum_dtype(torch.float32) == torch.float32 and x.numel() and not torch.compiler.is_compiling():
            return _added(weight.convolved(x, *geometry.arguments(parts)), group, parts)
        weight = weight.dense
    kind = sum_dtype(weight.dtype)
    sums = getattr(functional, geometry.name)(x.to(kind), weight.to(kind), None, *geometry.arguments(parts))
    return _added(sums, group, parts)


def linear_sums(x: Tensor, weight: Tensor) -> Tensor:
    """Σ x · w over the last dimension."""
    kind = sum_dtype(weight.dtype)
    return functional.linear(x.to(kind), weight.to(kind))


def _added(sums: Tensor, group: int, parts: int) -> Tensor:
    """The parts of each group, added up."""
    if parts == 1:
        return sums
    first, *others = sums.reshape(sums.shape[0], group, parts, -1, *sums.shape[2:]).unbind(2)
    total = first.double()
    for each in others:
        total += each
    return total.flatten(1, 2)


def torch_pads(pads: list[int]) -> list[int]:
    """From the last dimension on, before and after each."""
    rank = len(pads) // 2
    return [width for i in reversed(range(rank)) for width in (pads[i], pads[rank + i])]


def float_weight(w: Any, x: Operand, group: int, *, transposed: bool = False) -> tuple[Tensor, int]:
    """The weights of a convolution in a float type that represents their sums with integers of `x`, laid out for that
    many parts of each group."""
    channels = w.shape[0] // group if transposed else w.shape[1]
    axes = (1 if transposed else 2, *range(3, w.ndim + 1))
    for parts in (count for count in range(1, MOST_PARTS + 1) if channels % count == 0):
        if transposed:
            laid_out = w.reshape(group * parts, -1, *w.shape[1:])
        else:
            split = w.reshape(group, -1, parts, channels // parts, *w.shape[2:]).swapaxes(1, 2)
            laid_out = split.reshape(group * parts, -1, *split.shape[3:])
        if exact_dtype(x, laid_out, axes) == np.float32 and convolves_whole_numbers():
            return torch.from_numpy(laid_out.reshape(-1, *laid_out.shape[2:]).astype(np.float32)), parts
    terms = (0, *range(2, w.ndim)) if transposed else tuple(range(1, w.ndim))
    return wide_weight(w, x, terms).double(), 1


def wide_weight(w: Any, x: Operand, axes: tuple[int, ...]) -> Tensor:
    kind = exact_dtype(x, w, axes)
    if kind == np.int64:
        raise Lacks("has sums that float64 cannot represent")
    return torch.from_numpy(w.astype(kind))


def constant_weight(s: Site) -> tuple[Any, Operand]:
    """The weight less its zero points, and the operand that determines the range of its factors."""
    x, w = s.tensor(0), s.tensor(1)
    if w.data is None or max(DTYPES[x.dtype].bits, DTYPES[w.dtype].bits) > 16:
        raise Lacks("sums products of integers that are not constant, or have more than 16 bits")
    return whole(Operand(w.array, w.quantization)), Operand(np.zeros(0, numpy_dtype(x.dtype)), x.quantization)


# The stated rule


def conv(x: Tensor, weight: Tensor, steps: list[Step], low: int, high: int, geometry: Geometry, parts: int) -> Tensor:
    """Sums, the steps of a requantize rule, the range of the output; all less their zero points."""
    return after(conv_sums(x, weight, geometry, parts), steps).clamp_(low, high)


def linear(x: Tensor, weight: Tensor, steps: list[Step], low: int, high: int) -> Tensor:
    return after(linear_sums(x, weight), steps).clamp_(low, high)


def matmul(a: Tensor, b: Tensor, steps: list[Step], low: int, high: int) -> Tensor:
    """In float64, which represents all sums of products of 16 bits."""
    return after(torch.matmul(a.double(), b.double()), steps).clamp_(low, high)


def finish(s: Site, along: list[int]) -> tuple[list[Any], int, int]:
    """The steps that bring sums to the output less its zero point, with their numbers `along` the channels, and its
    range."""
    x, w, y, weight = s.grid(0), s.grid(1), s.out_grid, s.tensor(1).quantization
    if weight is None or s.node.rule not in REQUANTIZE:
        raise Lacks(f"does not support the rule {s.node.rule!r}")
    if x.axis is not None or y.axis is not None or y.dtype.itemsize > 2:
        raise Lacks("needs an input and an output quantized per tensor, to at most 16 bits")
    scales = torch.from_numpy(scales_of_channels(weight, s.node.attributes)).float()
    scales = scales.reshape(() if w.axis is None else along)
    at = torch.tensor(x.scale, dtype=torch.float32) * scales
    bias, in_sums = _bias(s, along)
    steps = REQUANTIZE[s.node.rule](bias, at, y.scales(0), y.zero_points(0))
    steps = [("sum", in_sums), *steps] if in_sums is not None else steps
    zero_point = int(y.zero_point)
    if steps[-1][0] == "add":
        steps = steps[:-1]
    elif zero_point:
        steps = [*steps, ("add", torch.tensor(-float(zero_point), dtype=torch.float32))]
    return [_held(s, step) for step in steps if has_effect(step)], y.minimum - zero_point, y.maximum - zero_point


def _held(s: Site, step: Step) -> Any:
    """The step with its numbers as attributes of the module."""
    name, value = step
    if value is None:
        return step
    if not all(bool(each.isfinite().all()) for each in (value if name == "fma" else [value])):
        raise Lacks("has scales or biases that are not finite in float32")
    if name == "fma":
        return name, tuple(s.derive(name, each) for each in value)
    return name, s.derive(name, value)


def _bias(s: Site, along: list[int]) -> tuple[Tensor, Tensor | None]:
    """The bias as floats, or else as integers in units of the sums."""
    none = torch.zeros((), dtype=torch.float32)
    if not s.has(2):
        return none, None
    bias = s.tensor(2)
    if bias.data is None or not is_added(s):
        raise Lacks("needs a bias that is constant, and in units of the sums")
    if bias.quantization is None:
        return torch.from_numpy(np.array(bias.array).astype(np.float32)).reshape(along), None
    values = torch.from_numpy(np.array(bias.array)).reshape(along)
    fits = int(values.abs().max()) <= EXACT_IN_FLOAT32 if values.numel() else True
    return none, values.float() if fits else values.double()


def is_added(s: Site) -> bool:
    """Whether the bias is float, not integers in units of the sums."""
    bias, x, w = s.tensor(2), s.tensor(0).quantization, s.tensor(1).quantization
    if bias.quantization is None:
        return True
    if x is None or w is None:
        return False
    return in_units_of_sums(bias.quantization, x, w, s.node.attributes) and bias.dtype == "int32"


def real_bias(s: Site) -> Tensor | None:
    """The bias in float32, for kernels that require it: the buffer, or the value of integers in units of the sums.

    Lacks if it is computed, or quantized otherwise.
    """
    if not s.has(2):
        return None
    bias = s.tensor(2)
    if bias.data is None or not is_added(s):
        raise Lacks("needs a bias that is constant, and in units of the sums")
    if bias.quantization is None and bias.dtype != "float32":
        raise Lacks("requires float32 biases")
    real: Tensor = s.constant(2) if bias.quantization is None else torch.from_numpy(bias.dequantize())
    return real


def held(s: Site, weight: Tensor) -> Any:
    """The weight as an attribute of the module."""
    has_window = s.node.operator == "Conv" and weight.dim() == 4 and weight.shape[2:].numel() > 1
    packs = weight.dtype == torch.float32 and hasattr(mkldnn, "_reorder_convolution_weight")
    large = has_window and packs and weight.numel() >= LARGE
    return s.derive("weight", Weight(weight) if large else weight)


def _conv(s: Site) -> Any:
    geometry = Geometry.of(s)
    transposed = geometry.output_padding is not None
    weight, parts = float_weight(*constant_weight(s), geometry.group, transposed=transposed)
    steps = finish(s, [-1, *(1 for _ in geometry.strides)])
    return s.result(conv, s.x(0), held(s, weight), *steps, geometry, parts)


def _linear(s: Site) -> Any:
    return s.result(linear, s.x(0), held(s, wide_weight(*constant_weight(s), (1,))), *finish(s, [-1]))


def _matmul(s: Site) -> Any:
    a, b = s.grid(0), s.grid(1)
    if b.axis is not None:
        raise Lacks("has a second input quantized per channel")
    if a.dtype.itemsize + b.dtype.itemsize > 4:
        raise Lacks("has sums that float64 may not represent")
    return s.result(matmul, s.x(0), s.x(1), *finish(s, []))


PRODUCTS = Table(
    "reference", CENTRED,
    {"Conv": _conv, "ConvTranspose": _conv, "qfmt.Linear": _linear, "MatMul": _matmul}.get,
)  # fmt: skip
