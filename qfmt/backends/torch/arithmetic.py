"""The rounding rules of `qfmt.arithmetic` on torch tensors: same names, same formulas, same bits.

Integers are plain tensors. Every `+ - · /` is one float32 operation of torch, rounded once, as in IEEE 754.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...arithmetic import EXACT_IN_FLOAT32, LEAST_SCALE, SMALLEST_SCALE, SYMMETRIC_LEAST_SCALE, named
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


def _divide(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """`rint(x / s) + z`"""
    return torch.round(x / s) + z


def _reciprocal(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """`rint(x · f32(1 / s)) + z`"""
    return torch.round(x * (1 / s)) + z


def _reciprocal_offset(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """`rint(f32(x · f32(1 / s)) + z)`"""
    return torch.round(x * (1 / s) + z)


def _reciprocal_fma(x: Tensor, s: Tensor, z: Tensor) -> Tensor:
    """`rint(fma(x, f32(1 / s), z))`"""
    return torch.round(fma(x, 1 / s, z))


QUANTIZE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "divide": _divide,
    "reciprocal": _reciprocal,
    "reciprocal_offset": _reciprocal_offset,
    "reciprocal_fma": _reciprocal_fma,
    "premultiplied": _reciprocal,
}
"""Rules that quantize a real number, before the clamp."""


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`a · b + c` in float32 with one rounding: in float64, rounded to odd (see `qfmt.arithmetic.fma`)."""
    if b.dim() == 0 and not torch.compiler.is_compiling() and add_is_fused():
        return torch.add(c, a, alpha=float(b))
    return _fma(a, b, c)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    product = a.double() * b.double()
    addend = c.double()
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(torch.int64)
    inexact_even = (error != 0) & (bits & 1 == 0) & total.isfinite()
    towards = torch.where((error > 0) == (total > 0), 1, -1)
    return (bits + torch.where(inexact_even, towards, 0)).view(torch.float64).float()


@cache
def add_is_fused() -> bool:
    """Whether torch.add(c, x, alpha=a) rounds once on this machine: for vectors, their ends, and broadcasts."""
    x, alpha, c = torch.linspace(-3, 3, 4099), torch.tensor(1 / 0.0317), torch.tensor(61.0)
    pairs = ((x, c), (c, x), (x, x.flip(0)), (x[:9], x[:, None]), (x[:9, None], x), (x[::2], x[:2050]))
    return all(torch.equal(torch.add(c, x, alpha=float(alpha)), _fma(x, alpha, c)) for x, c in pairs)


Step = tuple[str, Any]
"""The steps after a sum, and their numbers: see `after`."""


def _float_bias(bias: Tensor, at: Tensor, s: Tensor, z: Tensor) -> list[Step]:
    """`rint(F · f32(at / s)) + z`, `F` = `f32(f32(acc) + b / at)`, or `fma(b, f32(1 / at), f32(acc))` per tensor"""
    first = ("fma", (bias, 1 / at)) if at.dim() == 0 else ("add", bias / at)
    return [first, ("mul", at / s), ("round", None), ("add", z)]


def _integer_bias(bias: Tensor, at: Tensor, s: Tensor, z: Tensor) -> list[Step]:
    """`rint(f32(acc + rint(b / at)) · f32(at / s)) + z`"""
    return [("sum", torch.round(bias / at)), ("mul", at / s), ("round", None), ("add", z)]


def _integer_bias_reciprocal(bias: Tensor, at: Tensor, s: Tensor, z: Tensor) -> list[Step]:
    """`rint(f32(acc + rint(b · f32(1 / at))) · f32(at · f32(1 / s))) + z`"""
    return [("sum", torch.round(bias * (1 / at))), ("mul", at * (1 / s)), ("round", None), ("add", z)]


def _affine(bias: Tensor, at: Tensor, s: Tensor, z: Tensor) -> list[Step]:
    """`rint(f32(f32(f32(acc) · at + b) · f32(1 / s)) + z)`"""
    return [("mul", at), ("add", bias), ("mul", 1 / s), ("add", z), ("round", None)]


REQUANTIZE: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], list[Step]]] = {
    "float_bias": _float_bias,
    "integer_bias": _integer_bias,
    "integer_bias_reciprocal": _integer_bias_reciprocal,
    "affine": _affine,
}
"""Rules that requantize an exact integer accumulator, before the clamp: functions that return the steps."""


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


def requantize(
    acc: Tensor, bias: Tensor | None, input_scale: float, weight_scale: Tensor, grid: Grid, rule: str
) -> Tensor:
    """Accumulators → output integers by a requantize rule; arguments as those of `qfmt.arithmetic.requantize`."""
    at = torch.tensor(input_scale, dtype=torch.float32) * weight_scale.float()
    addend = torch.zeros(()) if bias is None else bias.float()
    steps = named(REQUANTIZE, rule)(addend, at, grid.scales(0), grid.zero_points(0))
    return clamp(after(acc.clone(), steps), grid)


def _mean_divide_offset(total: Tensor, count: Tensor, z: Tensor) -> Tensor:
    """`rint(f32(f32(Σ) / n) + z)`"""
    return torch.round(total.float() / count + z)


def _mean_reciprocal(total: Tensor, count: Tensor, z: Tensor) -> Tensor:
    """`rint(f32(Σ) · f32(1 / n)) + z`"""
    return torch.round(total.float() * (1 / count)) + z


def _mean_reciprocal_fma(total: Tensor, count: Tensor, z: Tensor) -> Tensor:
    """`rint(fma(f32(Σ), f32(1 / n), z))`"""
    return torch.round(fma(total.float(), 1 / count, z))


def _mean_stored(total: Tensor, count: Tensor, z: Tensor) -> Tensor:
    """`rint(f32(Σ + n · z) · f32(1 / n))`"""
    return torch.round((total.double() + count.double() * z).float() * (1 / count))


MEAN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mean_divide_offset": _mean_divide_offset,
    "mean_reciprocal": _mean_reciprocal,
    "mean_reciprocal_fma": _mean_reciprocal_fma,
    "mean_stored": _mean_stored,
}
"""Rules that compute the mean of n centred integers from their exact sum, with the same scale and zero point, before
the clamp."""


def mean(total: Tensor, count: Tensor, grid: Grid, rule: str) -> Tensor:
    """Exact sums of `count` centred integers → their means by a mean rule."""
    return clamp(named(MEAN, rule)(total, count.float(), grid.zero_points(0)), grid)


def rescale(total: Tensor, multiplier: float, grid: Grid) -> Tensor:
    """Exact integers → output integers: `rint(f32(total) · multiplier) + z`; `multiplier` is a float32."""
    return clamp(torch.round(total.float() * torch.tensor(multiplier, dtype=torch.float32)) + grid.zero_points(0), grid)


Range = tuple[Tensor, Tensor]
"""Scales and zero points, for each range."""


def _nudged_grid(low: Tensor, high: Tensor, top: int) -> Range:
    """`s = (high - low) / top`, `z = rint(-low / s)`, in float64; narrow ranges are stretched"""
    scale = (high.double() - low.double()) / top
    scale = scale.masked_fill((scale.float() == 0) | scale.float().reciprocal().isinf(), 0.1)
    stretch = torch.div(torch.full_like(low, SMALLEST_SCALE), scale.float())
    least = torch.where(scale < SMALLEST_SCALE, low * stretch, low).double()
    scale = scale.clamp_min(SMALLEST_SCALE)
    return scale, torch.round(-least / scale).clamp_max(top)


def _divided_grid(low: Tensor, high: Tensor, top: int) -> Range:
    """`s = f32(f32(high - low) / top)`, `z = rint(f32(-low / s))`; s = 1 for a range of 0"""
    scale = (high - low) / top
    scale = scale.masked_fill(scale == 0, 1.0)
    return scale, torch.round(-low / scale)


def _floored_grid(low: Tensor, high: Tensor, top: int) -> Range:
    """`s = max(f32(f32(high - low) / top), 2⁻¹²)`, `z = clamp(-rint(f32(low / s)))`"""
    scale = ((high - low) / top).clamp_min(LEAST_SCALE)
    return scale, (-torch.round(low / scale)).clamp(0, top)


def _symmetric_grid(low: Tensor, high: Tensor, top: int) -> Range:
    """`s = max(f32(max(-low, high) / (top / 2)), 2⁻²³)`, `z = 0`"""
    scale = (torch.maximum(-low, high) / (top / 2)).clamp_min(SYMMETRIC_LEAST_SCALE)
    return scale, torch.zeros_like(scale)


def _dynamic_fma(acc: Tensor, bias: Tensor, s: Tensor, sw: Tensor) -> Tensor:
    """`fma(f32(acc), f32(s · sw), b)`"""
    return fma(acc, s.float() * sw.float(), bias)


def _dynamic_add(acc: Tensor, bias: Tensor, s: Tensor, sw: Tensor) -> Tensor:
    """`f32(f32(acc) · f32(s · sw)) + b`"""
    return acc * (s.float() * sw.float()) + bias


def _dynamic_inverse(acc: Tensor, bias: Tensor, s: Tensor, sw: Tensor) -> Tensor:
    """`f32(f32(acc) · f32(i(s) · i(sw))) + b`, `i(s) = f32(1 / f32(1 / s))`"""
    return acc * (s.reciprocal().float().reciprocal() * sw.reciprocal().float().reciprocal()) + bias


def _dynamic_twice(acc: Tensor, bias: Tensor, s: Tensor, sw: Tensor) -> Tensor:
    """`f32(f32(f32(acc) · s) · sw) + b`"""
    return acc * s.float() * sw.float() + bias


class Dynamic(NamedTuple):
    """A rule for an input that is quantized at run time, as in `qfmt.arithmetic`."""

    grid: Callable[[Tensor, Tensor, int], Range]
    quantize: str
    real: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


DYNAMIC = {
    "dynamic_fma": Dynamic(_nudged_grid, "reciprocal_fma", _dynamic_fma),
    "dynamic_add": Dynamic(_nudged_grid, "reciprocal_fma", _dynamic_add),
    "dynamic_inverse": Dynamic(_nudged_grid, "reciprocal_offset", _dynamic_inverse),
    "dynamic_divide": Dynamic(_divided_grid, "divide", _dynamic_add),
    "dynamic_reciprocal": Dynamic(_floored_grid, "reciprocal", _dynamic_add),
    "dynamic_symmetric": Dynamic(_symmetric_grid, "reciprocal", _dynamic_twice),
}
"""Rules that quantize float32, and convert exact sums to float32; signed ones quantize to int8, others to uint8."""
