"""Where an operator that computes only moves integers."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Node, Tensor
from .registry import known


def only_moves(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a Concat, or a Resize to the nearest neighbour, gives integers unchanged: such a node states no rule.

    Its inputs and its output have one element type, and are quantized per tensor with the same scale and zero point;
    the range of the output contains those of the inputs.
    """
    operator = known(node)
    if operator is None or operator.selects is None:
        return False
    chosen = node.inputs[operator.selects(node.attributes)]
    return bool(chosen) and all(_is_within(tensors[name], tensors[node.outputs[0]]) for name in chosen)


def _is_within(x: Tensor, y: Tensor) -> bool:
    own, grid = x.quantization, y.quantization
    if x.dtype != y.dtype or own is None or grid is None or not own.is_per_tensor:
        return False
    return own.same_grid(grid) and grid.quant_min <= own.quant_min and own.quant_max <= grid.quant_max
