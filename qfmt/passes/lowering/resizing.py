"""Nearest-neighbour resizing: a move of integers, with sizes instead of float factors if that is equivalent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...model import Node
from ...ops.resize import LARGEST, neighbours
from ...ops.resize import is_nearest as selects_nearest
from .context import Context


def is_nearest(node: Node) -> bool:
    """Whether a node selects the nearest element, without a float value outside the edges."""
    return node.operator == "Resize" and selects_nearest(node.attributes)


def by_sizes(node: Node, context: Context) -> Node:
    """A nearest-neighbour Resize with sizes instead of factors, if it selects the same elements.

    Unknown sizes stay: only a factor of 1 leaves a dimension unchanged.
    """
    if not is_nearest(node) or len(node.inputs) < 3 or not node.inputs[2] or any(node.inputs[3:]):
        return node
    x, scales = (context.tensors[name] for name in (node.inputs[0], node.inputs[2]))
    if x.shape is None or not scales.is_constant:
        return node
    attributes: dict[str, Any] = dict(node.attributes)
    axes = [axis % len(x.shape) for axis in node.ints("axes")] or list(range(len(x.shape)))
    factors = dict(zip(axes, scales.array, strict=True))
    if any(not isinstance(x.shape[axis], int) for axis in axes):
        factors = {axis: factor for axis, factor in factors.items() if factor != 1}
    known = {axis: size for axis in factors if isinstance(size := x.shape[axis], int) and 0 < size < LARGEST}
    if not factors or len(known) < len(factors):
        return node
    sizes = []
    for axis, factor in factors.items():
        wanted = neighbours(known[axis], attributes, scale=factor) if factor * known[axis] < LARGEST else np.empty(0)
        if not len(wanted) or not np.array_equal(neighbours(known[axis], attributes, size=len(wanted)), wanted):
            return node
        sizes.append(len(wanted))
    attributes["axes"] = () if list(factors) == list(range(len(x.shape))) else tuple(factors)
    name = context.constant(f"{node.outputs[0]}.sizes", np.array(sizes, np.int64))
    return replace(node, inputs=(node.inputs[0], "", "", name), attributes=attributes)
