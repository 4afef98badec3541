"""Relu and Clip before a QuantizeLinear become a narrower range, because rounding is monotone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..arithmetic import quantize
from ..model import Node, Quantization, Tensor, numpy_dtype
from ..ops import OPERATORS, Trait, has


def is_clamp(node: Node, name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a node is Relu, or Clip with bounds that are known, of that tensor."""
    if not has(node, Trait.CLAMP) or node.inputs[0] != name:
        return False
    bounds = [tensors[bound] for bound in node.inputs[1:] if bound]
    if not all(bound.is_constant and bound.quantization is None and bound.array.size == 1 for bound in bounds):
        return False
    low, high = _bounds(node, tensors)
    return low <= high  # NaN is not


def clamped(grid: Quantization, dtype: str, clamp: Node, tensors: Mapping[str, Tensor], engine: str) -> Quantization:
    """The grid with its range narrowed by a clamp before it."""
    rule = OPERATORS["QuantizeLinear"].engines[engine]
    kind = numpy_dtype(dtype)
    low, high = (int(quantize(np.array(value, np.float32), grid, kind, rule)) for value in _bounds(clamp, tensors))
    return replace(grid, quant_min=max(grid.quant_min, low), quant_max=min(grid.quant_max, high))


def _bounds(clamp: Node, tensors: Mapping[str, Tensor]) -> tuple[float, float]:
    if clamp.operator == "Relu":
        return 0.0, np.inf
    low, high = [*(tensors[name].array if name else None for name in clamp.inputs[1:]), None, None][:2]
    return (
        -np.inf if low is None else float(low.reshape(())),
        np.inf if high is None else float(high.reshape(())),
    )
