"""The results of torch's quantized kernels: their scale and zero point, and the range that they clamp to."""

from __future__ import annotations

from typing import Any

import torch

from ...model import DTYPES
from .emit import Lacks, Site

aten = torch.ops.aten


def is_relu(s: Site) -> bool:
    """Whether the output's range is that of a fused ReLU."""
    grid = s.out_grid
    return bool(grid.minimum == grid.zero_point)


def scale_and_zero_point(s: Site) -> tuple[float, int]:
    grid = s.out_grid
    if grid.axis is not None:
        raise Lacks("has an output quantized per channel")
    if s.node.operator != "QuantizeLinear" and s.tensor(0).dtype != s.out.dtype:
        raise Lacks(f"torch's kernels output the type of the input, {s.tensor(0).dtype}, not {s.out.dtype}")
    if s.node.operator != "QuantizeLinear":
        _check_bits(s)
    return grid.scale, grid.zero_point


def within_range(s: Site, target: Any, *arguments: Any, relu: bool = True, **named: Any) -> Any:
    """The call; its result is clamped if the range of the output is not that of torch's kernels.

    `relu`: whether the kernel clamps at the zero point if the output does.
    """
    if _is_whole(s, relu):
        return s.result(target, *arguments, **named)
    return clamped(s, s.call(target, *arguments, **named), relu=relu)


def clamped(s: Site, value: Any, *, relu: bool = False) -> Any:
    """The value, which has the output's quantization, clamped to its range."""
    check_clamp(s, s.out_grid.minimum, s.out_grid.maximum)
    return value if _is_whole(s, relu) else s.result(aten.clamp.default, value, *real_range(s))


def runs_qnnpack(s: Site) -> bool:
    """Whether torch runs kernels with QNNPACK where it has a choice at run time."""
    return s.builder.engine.kernels[:1] == ("qnnpack",)


def check_clamp(s: Site, low: int, high: int) -> None:
    """Lacks if the kernel cannot clamp to these integers."""
    if low >= high and runs_qnnpack(s):
        raise Lacks("QNNPACK clamps to ranges of two integers or more")


def real_range(s: Site) -> list[float]:
    """The range of the output as real numbers."""
    grid = s.out_grid
    return [(bound - grid.zero_point) * grid.scale for bound in (grid.minimum, grid.maximum)]


def _is_whole(s: Site, relu: bool) -> bool:
    """Whether the output has the range of torch's kernels."""
    grid, limits = s.out_grid, DTYPES[s.out.dtype]
    low = grid.zero_point if relu and is_relu(s) else limits.minimum
    return (grid.minimum, grid.maximum) == (low, limits.maximum)


def same_grid(s: Site) -> None:
    """torch keeps the quantization of the input; Lacks if the model does not."""
    x = s.tensor(0).quantization
    if x is None or not x.same_grid(s.out.quantization) or s.tensor(0).dtype != s.out.dtype:
        raise Lacks("torch keeps the quantization and the type of the input here")
    _check_bits(s)


def _check_bits(s: Site) -> None:
    if s.out.dtype == "int32":
        raise Lacks("torch computes integers of 32 bits in float32")
