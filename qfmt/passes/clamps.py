"""Relu and Clip before a QuantizeLinear become a narrower range, because rounding is monotone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..arithmetic import quantize
from ..model import Node, Quantization, Tensor, numpy_dtype
from ..ops import OPERATORS, Trait, has
from ..ops.activation import bounds


def is_clamp(node: Node, name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a node is Relu, or Clip with bounds that are known, of that tensor."""
    if not has(node, Trait.CLAMP) or node.inputs[0] != name:
        return False
    known = bounds(node, tensors)
    return known is not None and known[0] <= known[1]  # which NaN is not


def clamped(grid: Quantization, dtype: str, clamp: Node, tensors: Mapping[str, Tensor], engine: str) -> Quantization:
    """The grid with its range narrowed by a clamp before it."""
    rule = OPERATORS["QuantizeLinear"].engines[engine]
    kind = numpy_dtype(dtype)
    low, high = (int(quantize(np.array(value, np.float32), grid, kind, rule)) for value in bounds(clamp, tensors) or ())
    return replace(grid, quant_min=max(grid.quant_min, low), quant_max=min(grid.quant_max, high))
