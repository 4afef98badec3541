"""The rounding rules of `qfmt.arithmetic` on torch tensors: same names, same formulas, same bits.

Integers are plain tensors. Every `+ - · /` is one float32 operation of torch, rounded once, as in IEEE 754.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...arithmetic import EXACT_IN_FLOAT32, named
from ...arithmetic.dynamic import dynamic_rules
from ...arithmetic.quantizing import Namespace, quantize_rules, sum_rounded_once
from ...arithmetic.sums import Step, mean_rules, requantize_steps
from ...model import Quantization


class Grid(NamedTuple):
    """A quantization in generated code: scale and zero point are lists if there is an axis."""

    scale: Any
    zero_point: Any
    minimum: int
    maximum: int
    dtype: torch.dtype
    axis: int | None = None

    @classmethod
    def of(cls, quantization: Quantization, dtype: torch.dtype) -> Grid:
        q = quantization
        if q.axis is None:
            return cls(q.scale[0], q.zero_point[0], q.quant_min, q.quant_max, dtype)
        return cls(list(q.scale), list(q.each_zero_point), q.quant_min, q.quant_max, dtype, q.axis)

    def scales(self, rank: int) -> Tensor:
        """float32; 0-d, or shaped so that it broadcasts against a tensor of `rank`."""
        return self._broadcastable(torch.tensor(self.scale, dtype=torch.float64), rank).float()

    def zero_points(self, rank: int) -> Tensor:
        """float32, which represents every zero point of at most 16 bits exactly."""
        return self._broadcastable(torch.tensor(self.zero_point, dtype=torch.float64), rank).float()

    def _broadcastable(self, values: Tensor, rank: int) -> Tensor:
        if self.axis is None:
            return values
        return values.reshape([-1 if axis == self.axis else 1 for axis in range(rank)])


def dequantize(values: Tensor, grid: Grid, rule: str = "") -> Tensor:
    """`f32(q - z) · f32(s)`: float32, with the shape of `values`. The rule `premultiplied` has its own formula."""
    scale = grid.scales(values.dim())
    if rule == "premultiplied":
        return fma(values.float(), scale, scale * -grid.zero_points(values.dim()))
    return centred(values, grid, torch.float32) * scale


def centred(values: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
    """`q - z` in a float type; exact for integers of up to 16 bits, rounded once for 32 bits."""
    if values.dtype.itemsize < 4 and grid.axis is None:
        return values.to(dtype).sub_(grid.zero_point) if grid.zero_point else values.to(dtype)
    if values.dtype.itemsize < 4 or dtype == torch.float64:
        return values.to(dtype) - grid.zero_points(values.dim()).to(dtype)
    return (values.double() - grid.zero_points(values.dim()).double()).to(dtype)


def stored(values: Tensor, zero_point: int, dtype: torch.dtype) -> Tensor:
    """`q - z` in float32, for integers of at most 16 bits, in the form of `q`."""
    return (values + zero_point if zero_point else values).to(dtype)


def quantize(values: Tensor, grid: Grid, rule: str) -> Tensor:
    """float32 → integers by a quantize rule (a key of QUANTIZE). NaN becomes quant_min."""
    rank = values.dim()
    return clamp(named(QUANTIZE, rule)(values.float(), grid.scales(rank), grid.zero_points(rank)), grid)


def clamp(rounded: Tensor, grid: Grid) -> Tensor:
    """Clamp integral values (float or integer) to the range of the result, as integers of its dtype; NaN →
    quant_min."""
    if not rounded.is_floating_point():
        return rounded.clamp(grid.minimum, grid.maximum).to(grid.dtype)
    if max(-grid.minimum, grid.maximum) > EXACT_IN_FLOAT32:
        rounded = rounded.double()
    return rounded.nan_to_num(float(grid.minimum)).clamp(grid.minimum, grid.maximum).to(grid.dtype)


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`a · b + c` in float32 with one rounding: in float64, rounded to odd (see `qfmt.arithmetic.fma`)."""
    if b.dim() == 0 and not torch.compiler.is_compiling() and add_is_fused():
        return torch.add(c, a, alpha=float(b))
    return _fma(a, b, c)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    rounded: Tensor = sum_rounded_once(torch, a.double() * b.double(), c.double())
    return rounded.float()


@cache
def add_is_fused() -> bool:
    """Whether torch.add(c, x, alpha=a) rounds once on this machine: for vectors, their ends, and broadcasts."""
    x = torch.linspace(-3, 3, 4099, dtype=torch.float32)
    alpha, c = torch.tensor([1 / 0.0317, 61.0], dtype=torch.float32)
    pairs = ((x, c), (c, x), (x, x.flip(0)), (x[:9], x[:, None]), (x[:9, None], x), (x[::2], x[:2050]))
    return all(torch.equal(torch.add(c, x, alpha=float(alpha)), _fma(x, alpha, c)) for x, c in pairs)


TORCH = Namespace(torch, Tensor.float, Tensor.double, fma, 1)
QUANTIZE, MEAN, DYNAMIC = quantize_rules(TORCH), mean_rules(TORCH), dynamic_rules(TORCH)
REQUANTIZE = requantize_steps(TORCH)


def after(acc: Tensor, steps: Sequence[Step]) -> Tensor:
    """Exact sums after the steps, each rounded once to float32; float32 sums are changed in place."""
    for step, value in steps:
        if step == "sum":  # of integers, exact before it is rounded
            acc = acc.add_(value) if acc.dtype == value.dtype == torch.float32 else (acc.double() + value).float()
        elif step == "fma":
            bias, factor = value
            acc = fma(bias, factor, acc.float())
        elif step == "round":
            acc = acc.round_()
        else:
            acc = acc.float()
            acc = acc.add_(value) if step == "add" else acc.mul_(value)
    return acc


def mean(total: Tensor, count: Tensor, grid: Grid, rule: str) -> Tensor:
    """Exact sums of `count` centred integers → their means by a mean rule."""
    return clamp(named(MEAN, rule)(total, count.float(), grid.zero_points(0)), grid)


def rescale(total: Tensor, multiplier: float, grid: Grid) -> Tensor:
    """Exact integers → output integers: `rint(f32(total) · multiplier) + z`; `multiplier` is a float32."""
    return clamp(torch.round(total.float() * torch.tensor(multiplier, dtype=torch.float32)) + grid.zero_points(0), grid)
